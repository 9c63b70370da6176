"""Whatever the costs, masses and clouds: finite, and a plan of the right mass or a flag."""

import functools

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from transport_cases import solve

from seqdenoise.transport import cosine_transport

B, N, M, D = 3, 4, 5, 2
# Few enough to trace each once, and between them every mode, dtype, relaxation and epsilon.
OPTIONS = [
    {"mode": "auto", "epsilon": 1e-4, "relaxation": None, "dtype": tf.float32},
    {"mode": "auto", "epsilon": 0.1, "relaxation": 0.3, "dtype": tf.float32, "tolerance": 1e-4},
    {"mode": "auto", "epsilon": 10.0, "relaxation": None, "dtype": tf.float16},
    {"mode": "auto", "epsilon": 1e-3, "relaxation": 10.0, "dtype": tf.float64},
    {"mode": "kernel", "epsilon": 1e-2, "relaxation": None, "dtype": tf.float32},
    {"mode": "kernel", "epsilon": 1e-3, "relaxation": 1e-3, "dtype": tf.float32},
    {"mode": "kernel", "epsilon": 0.1, "relaxation": 10.0, "dtype": tf.float64},
    {"mode": "stabilised", "epsilon": 1e-4, "relaxation": 1e-3, "dtype": tf.float64},
    {"mode": "stabilised", "epsilon": 0.1, "relaxation": 10.0, "dtype": tf.float32},
    {"mode": "log", "epsilon": 1e-4, "relaxation": 1.0, "dtype": tf.float32},
    {"mode": "log", "epsilon": 1.0, "relaxation": None, "dtype": tf.bfloat16},
]
LEVELS = st.sampled_from([0.0, 0.25, 1.0]) | st.floats(0, 1)
COSTS = hnp.arrays(float, (B, N, M), elements=LEVELS)
# 0 is padding. The smallest next to the largest is below float32's resolution.
MASS = st.sampled_from([0.0, 1e-9, 0.5, 1.0])
EXPONENTS = st.integers(-6, 6)
COMPONENTS = st.sampled_from([-1.0, 0.0, 1.0, 1e-30, 1e30])


@settings(max_examples=150)
@given(
    options=st.sampled_from(OPTIONS),
    cost=COSTS,
    exponent=EXPONENTS,
    a=hnp.arrays(float, (B, N), elements=MASS),
    b=hnp.arrays(float, (B, M), elements=MASS),
    total=st.sampled_from([None, 1.0, 1e-8, 1e3]),
    padding=st.sampled_from([np.nan, np.inf, 0.0]),
)
def test_any_costs_and_masses(options, cost, exponent, a, b, total, padding):
    options = {"num_iterations": 101, **options}  # enough to be worth a graph
    half = options["dtype"] in (tf.float16, tf.bfloat16)
    cost = cost * 10.0 ** (min(exponent, 4) if half else exponent)
    if total is not None:
        total = 1.0 if half else total
        a, b = (total * x / np.maximum(x.sum(axis=1, keepdims=True), 1e-300) for x in (a, b))
    # As the solver gets them: half precision may round a mass to nothing.
    a, b = (tf.cast(tf.cast(x, options["dtype"]), tf.float64).numpy() for x in (a, b))
    real = (a > 0)[:, :, np.newaxis] & (b > 0)[:, np.newaxis, :]
    solved = solve(np.where(real, cost, padding), a, b, **options)
    transport, plan = solved.transport, solved.plan
    for name, values in zip(transport._fields, transport, strict=True):
        assert np.isfinite(values).all(), name
    assert np.isfinite(solved.gradient).all()
    assert (plan >= 0).all()
    assert not plan[~real].any()
    solvable = real.any(axis=(1, 2))
    assert transport.converged[~solvable].all()
    assert not transport.cost[~solvable].any()
    rho = options["relaxation"]
    for i in np.flatnonzero(solvable & transport.converged):
        tolerance = 0.01 * np.sqrt(a[i].sum() * b[i].sum())
        asked = a[i], b[i]
        if rho is not None:  # a row whose potential is many relaxations sends nothing, rightly
            asked = (
                a[i] * np.exp(-transport.row_potential[i].astype(float) / rho),
                b[i] * np.exp(-transport.column_potential[i].astype(float) / rho),
            )
        np.testing.assert_allclose(plan[i].sum(axis=1), asked[0], atol=tolerance)
        np.testing.assert_allclose(plan[i].sum(axis=0), asked[1], atol=tolerance)
        if rho is None or cost[i][real[i]].max() < rho:
            assert plan[i].sum() > 0


@functools.cache
def graph(dtype, relaxation, epsilon):
    @tf.function
    def cosine(x, y, a, b):
        with tf.GradientTape() as tape:
            tape.watch((x, y))
            transport = cosine_transport(x, y, a, b, epsilon=epsilon, relaxation=relaxation)
        return transport, tape.gradient(transport.cost, (x, y))

    return cosine


@settings(max_examples=80)
@given(
    options=st.sampled_from(
        [
            (tf.float32, None, 0.1),
            (tf.float32, 0.3, 1e-3),
            (tf.float16, 1.0, 0.05),
            (tf.bfloat16, None, 1e-4),
        ]
    ),
    x=hnp.arrays(float, (B, N, D), elements=COMPONENTS),
    y=hnp.arrays(float, (B, M, D), elements=COMPONENTS),
    mask=hnp.arrays(bool, (B, N)),
    other_mask=hnp.arrays(bool, (B, M)),
)
def test_any_clouds(options, x, y, mask, other_mask):
    if options[0] == tf.float16:
        x, y = (np.clip(z, -6e4, 6e4) for z in (x, y))
    a, b = (m / np.maximum(m.sum(axis=1, keepdims=True), 1) for m in (mask, other_mask))
    x, y, a, b = (tf.cast(z, options[0]) for z in (x, y, a, b))
    transport, gradients = graph(*options)(x, y, a, b)
    for name, values in zip(transport._fields, transport, strict=True):
        assert np.isfinite(values).all(), name
    # Of a vector of length 1e-30 it is as large as float32 has it.
    assert not any(np.isnan(tf.cast(g, tf.float32)).any() for g in gradients)
    solvable = mask.any(axis=1) & other_mask.any(axis=1)
    assert not transport.cost.numpy()[~solvable].any()
    assert ((transport.cost >= -1e-6) & (transport.cost <= 2.1)).numpy().all()
    total = transport.row_marginal.numpy().sum(axis=1)
    assert not total[~solvable].any()
    settled = solvable & transport.converged.numpy()
    if options[1] is None:
        np.testing.assert_allclose(total[settled], 1, atol=5e-3)
    assert (total[settled] > np.exp(-2 / (options[1] or np.inf)) / 2).all()


def test_clouds_whose_answer_is_known():
    e = np.array([1.0, 2.0])
    ones, none = np.full((1, 4), 0.25), np.zeros((1, 4))
    cases = [
        (np.tile(e, (1, 4, 1)), np.tile(e, (1, 4, 1)), ones, 0.0),  # all events identical
        (np.tile(e, (1, 4, 1)), np.tile(-e, (1, 4, 1)), ones, 2.0),  # opposite
        (np.zeros((1, 4, 2)), np.tile(e, (1, 4, 1)), ones, 1.0),  # without a direction
        (np.tile(e, (1, 4, 1)), np.tile(-e, (1, 4, 1)), np.array([[1.0, 0, 0, 0]]), 2.0),  # one
        (np.tile(e, (1, 4, 1)), np.tile(-e, (1, 4, 1)), none, 0.0),  # none
    ]
    for epsilon in (1e-4, 0.1, 10.0):
        for x, y, mass, expected in cases:
            x, y, mass = (tf.cast(z, tf.float32) for z in (x, y, mass))
            transport = cosine_transport(x, y, mass, mass, epsilon=epsilon, num_iterations=10)
            # At 1e-4 a plan is known to what float32 knows of 2 / 1e-4.
            np.testing.assert_allclose(transport.cost, [expected], rtol=3e-3, atol=1e-5)
            np.testing.assert_allclose(transport.row_marginal, mass, rtol=3e-3)
