"""The envelope gradient: that of the regularised minimum, with the plan held constant."""

import numpy as np
import ot
import pytest
import tensorflow as tf
import transport_oracles as oracles
from transport_cases import masses, problem, solve

from seqdenoise.transport import cosine_transport, sinkhorn


def clouds(n=5, m=4, d=3, batch=None, seed=0):
    rng = np.random.default_rng(seed)
    before = () if batch is None else (batch,)
    x = rng.normal(size=(*before, n, d)) * rng.uniform(0.1, 10, (*before, n, 1))
    y = rng.normal(size=(*before, m, d))
    return x, y, masses(rng, *before, n), masses(rng, *before, m)


@pytest.mark.parametrize("mode", ["log", "stabilised", "kernel"])
@pytest.mark.parametrize("relaxation", [None, 0.3])
def test_equals_finite_differences_of_the_regularised_minimum(mode, relaxation):
    cost, a, b = problem(4, 3)
    epsilon, step = 0.1, 1e-4
    options = {"epsilon": epsilon, "relaxation": relaxation, "mode": mode}
    gradient = solve(cost, a, b, num_iterations=500, **options).gradient

    def minimum(cost):
        plan = oracles.solve(cost, a, b, epsilon, relaxation)[0]
        return oracles.objective(plan, cost, a, b, epsilon, relaxation)

    for i in range(4):
        for j in range(3):
            shift = np.zeros_like(cost)
            shift[i, j] = step
            slope = (minimum(cost + shift) - minimum(cost - shift)) / (2 * step)
            np.testing.assert_allclose(gradient[i, j], slope, rtol=1e-5, atol=1e-9)


def test_equals_the_plan_of_pot():
    cost, a, b = problem()
    plan = ot.bregman.sinkhorn_log(a, b, cost, 0.05, numItermax=10_000, stopThr=1e-12)
    gradient = solve(cost, a, b, epsilon=0.05, num_iterations=2000).gradient
    np.testing.assert_allclose(gradient, plan, atol=1e-10)


def test_scales_with_the_upstream_gradient_of_its_own_problem():
    cost, a, b = problem(batch=3)
    upstream = np.array([1.0, -2.5, 0.0])
    solved = solve(cost, a, b, upstream, epsilon=0.1)
    expected = upstream[:, np.newaxis, np.newaxis] * solved.plan
    np.testing.assert_allclose(solved.gradient, expected, rtol=1e-12)


@pytest.mark.parametrize("relaxation", [None, 0.3])
@pytest.mark.parametrize(
    ("epsilon", "mode", "batch"),
    [(0.1, "auto", None), (0.1, "auto", 3), (0.02, "auto", 3), (0.1, "log", None)],
)
def test_the_cosine_form_equals_the_general_one(batch, relaxation, epsilon, mode):
    x, y, a, b = (tf.constant(z, tf.float32) for z in clouds(batch=batch))
    upstream = tf.constant(2.0 if batch is None else [2.0, -1.0, 0.5])
    options = {"epsilon": epsilon, "relaxation": relaxation, "mode": mode}

    @tf.function
    def both(x, y):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch((x, y))
            special = cosine_transport(x, y, a, b, **options)
            unit_x, unit_y = (z / tf.norm(z, axis=-1, keepdims=True) for z in (x, y))
            cost = 1 - tf.matmul(unit_x, unit_y, transpose_b=True)
            # The kernel mode of both, or of neither: this one's auto looks at the costs.
            general = sinkhorn(
                cost, a, b, **{**options, "mode": "stabilised" if epsilon < 0.034 else "kernel"}
            )
            special_total = tf.reduce_sum(upstream * special.cost)
            general_total = tf.reduce_sum(upstream * general.cost)
        return (
            (special, tape.gradient(special_total, (x, y))),
            (general, tape.gradient(general_total, (x, y))),
        )

    (special, from_special), (general, from_general) = both(x, y)
    assert mode == "log" or special.num_iterations == general.num_iterations
    for got, expected in zip(special[:-1], general[:-1], strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5)
    for got, expected in zip(from_special, from_general, strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=2e-5)


def test_the_cosine_form_equals_the_loops():
    x, y, a, b = clouds()
    x[1] = 0.0  # cosine 0 to everything
    cost = oracles.cosine_cost(x, y)
    plan, f, g = oracles.solve(cost, a, b, 0.05, 0.5)
    options = {"epsilon": 0.05, "relaxation": 0.5, "num_iterations": 1000}
    got = cosine_transport(*(tf.constant(z) for z in (x, y, a, b)), **options, tolerance=1e-12)
    np.testing.assert_allclose(got.cost, (plan * cost).sum(), atol=1e-10)
    np.testing.assert_allclose(got.row_marginal, plan.sum(axis=1), atol=1e-10)
    np.testing.assert_allclose(got.row_potential, f, atol=1e-10)
    np.testing.assert_allclose(got.column_potential, g, atol=1e-10)


def test_vectors_without_mass_have_no_gradient_whatever_they_are():
    x, y, a, b = clouds()
    a[1] = b[0] = 0.0
    a, b = a / a.sum(), b / b.sum()

    def gradients(x, y, a, b):
        x, y = tf.constant(x), tf.constant(y)
        with tf.GradientTape() as tape:
            tape.watch((x, y))
            cost = cosine_transport(x, y, tf.constant(a), tf.constant(b)).cost
        return float(cost), *(g.numpy() for g in tape.gradient(cost, (x, y)))

    expected, *short = gradients(
        np.delete(x, 1, 0), np.delete(y, 0, 0), np.delete(a, 1), np.delete(b, 0)
    )
    for fill in (np.nan, np.inf, 0.0):
        x[1], y[0] = fill, fill
        value, from_x, from_y = gradients(x, y, a, b)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        assert not from_x[1].any()
        assert not from_y[0].any()
        np.testing.assert_allclose(np.delete(from_x, 1, 0), short[0], atol=1e-14)
        np.testing.assert_allclose(np.delete(from_y, 0, 0), short[1], atol=1e-14)


def test_only_the_cost_has_a_gradient_and_only_to_costs_or_vectors():
    cost, a, b = (tf.constant(x) for x in problem())
    x, y, row_mass, column_mass = (tf.constant(z) for z in clouds())
    with tf.GradientTape(persistent=True) as tape:
        tape.watch((cost, a, b, x, y, row_mass, column_mass))
        general = sinkhorn(cost, a, b)
        special = cosine_transport(x, y, row_mass, column_mass)
    assert tape.gradient(general.cost, [a, b]) == [None, None]
    assert tape.gradient(special.cost, [row_mass, column_mass]) == [None, None]
    for field in (
        "row_marginal", "column_marginal", "row_potential", "column_potential", "marginal_error",
    ):  # fmt: skip
        assert tape.gradient(getattr(general, field), cost) is None
        assert tape.gradient(getattr(special, field), [x, y]) == [None, None]


def test_trains_inside_a_keras_model():
    class Aligned(tf.keras.layers.Layer):
        """Adds the cost of transporting one half of its input onto the other, projected."""

        def __init__(self):
            super().__init__()
            self.project = tf.keras.layers.Dense(4, use_bias=False)

        def call(self, inputs):
            x, y = self.project(inputs[:, :5]), inputs[:, 5:, :4]
            mass = tf.fill([tf.shape(x)[0], 5], 0.2)
            self.add_loss(tf.reduce_mean(cosine_transport(x, y, mass, mass).cost))
            return tf.reduce_sum(x, axis=[1, 2])

    tf.keras.utils.set_random_seed(0)
    inputs = np.random.default_rng(0).normal(size=(22, 10, 6)).astype("float32")
    model = tf.keras.Sequential([tf.keras.Input((10, 6)), Aligned()])
    # The targets weigh nothing: what trains is the transport alone. 22 rows: a partial last batch.
    model.compile(tf.keras.optimizers.Adam(0.05), loss="mse", loss_weights=[0.0])
    history = model.fit(inputs, np.zeros(22), batch_size=8, epochs=15, verbose=0).history["loss"]
    assert np.isfinite(history).all()
    assert history[-1] < history[0] - 0.05
