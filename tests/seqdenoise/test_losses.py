"""The contract of every contrastive loss, then what is particular to one."""

import inspect

import numpy as np
import oracles
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from loss_cases import (
    CASES,
    FLOATS,
    OUTSIDE,
    TEMPERATURES,
    VECTORS,
    Case,
    batch,
    by_row,
    case_named,
    evaluate,
    evaluate_in_the_graph,
    reference,
)

import seqdenoise
from seqdenoise import moco_loss, multi_positive_loss, negative_pairs

LOSSES = sorted({case.loss for case in CASES}, key=lambda loss: loss.__name__)
INFO_NCE = case_named("info_nce")
each_function = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
every_loss = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_loss_and_temperature = pytest.mark.parametrize(
    ("case", "temperature"),
    [
        pytest.param(case, temperature, id=f"{case.name}-{temperature}")
        for case in CASES
        for temperature in case.temperatures
    ],
)


def test_every_public_loss_has_a_case():
    public = {name for name in seqdenoise.__all__ if name.endswith("_loss")}
    assert public == {loss.__name__ for loss in LOSSES}
    assert public == {name for name in seqdenoise.losses.__all__ if name.endswith("_loss")}


@each_function
def test_every_option_of_a_loss_has_a_case(loss):
    tested = {"view_a", "view_b", "mask", "ids", "weights", "temperature"}
    # What it does depends on the order of the rows, as nothing here may; test_loss_identities.py.
    tested |= {"max_negatives"}
    for case in CASES:
        if case.loss is loss:
            tested |= {*case.options, *case.inputs}
    assert set(inspect.signature(loss).parameters) <= tested


@each_function
def test_every_loss_has_the_one_signature(loss):
    parameters = inspect.signature(loss).parameters
    assert list(parameters)[:3] == ["view_a", "view_b", "mask"]
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[2:])
    assert parameters["ids"].default is None
    assert parameters["weights"].default is None


@every_loss
def test_every_input_and_option_of_a_case_matters(case):
    inputs = batch(case)
    arguments = {**inputs, **case.options}
    value = float(case.loss(**arguments))
    for name, parameter in case.parameters.items():
        if name not in arguments or parameter.default is parameter.empty:
            continue
        fewer = {k: v for k, v in arguments.items() if k != name}
        if name == "ids":
            fewer.pop("queue_ids", None)
            if case.loss is moco_loss:
                continue  # without the queue's ids they say nothing
        assert float(case.loss(**fewer)) != value, name


@every_loss_and_temperature
def test_equals_the_oracle_in_float64(case, temperature):
    inputs = batch(case)
    assert not case.rounding_decides(inputs, tolerance=1e-4)
    got, _ = evaluate(case, inputs, temperature=temperature)
    np.testing.assert_allclose(got, reference(case, inputs, temperature=temperature), rtol=1e-10)


@every_loss
@pytest.mark.parametrize("used", [(), ("ids",), ("weights",)])
def test_equals_the_oracle_without_ids_or_weights(case, used):
    inputs = batch(case, used=used)
    got, _ = evaluate(case, inputs)
    np.testing.assert_allclose(got, reference(case, inputs), rtol=1e-10)


@every_loss_and_temperature
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (tf.float32, 1e-12),
        (tf.float32, 1e30),
        (tf.float16, 1.0),
        (tf.bfloat16, 1e30),
    ],
    ids=["float32_tiny", "float32_huge", "float16", "bfloat16_huge"],
)
def test_equals_the_oracle_of_the_same_rounded_inputs(case, temperature, dtype, scale):
    if case.takes_lengths:
        scale = 1.0  # products of the others do not fit
    inputs = batch(case)
    for name in inputs.keys() & FLOATS:
        inputs[name] = tf.cast(inputs[name] * scale, dtype)
    wide = {k: tf.cast(v, tf.float64).numpy() if k in FLOATS else v for k, v in inputs.items()}
    assert not case.rounding_decides(wide, tolerance=1e-5)
    got, gradients = evaluate(case, inputs, temperature=temperature)
    expected = reference(case, wide, temperature=temperature)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=case.rounding(temperature), atol=2e-7)
    for name, gradient in gradients.items():
        assert gradient.dtype == inputs[name].dtype
        assert np.isfinite(gradient.astype(np.float32)).all()


@every_loss_and_temperature
def test_gradient_equals_finite_differences_of_the_oracle(case, temperature):
    inputs = batch(case)
    _, gradients = evaluate(case, inputs, temperature=temperature)
    assert gradients.keys() == inputs.keys() & set(VECTORS)
    step = 1e-6
    for name, gradient in gradients.items():
        # Not in rows 3 and 5, which are copies: a triplet at a tie is mined after any step.
        for row, column in [(0, 0), (2, 1), (4, 2), (8, 3)]:
            index = (row, column % 2, column) if gradient.ndim == 3 else (row, column)
            sides = []
            for sign in (1, -1):
                moved = inputs[name].copy()
                moved[index] += sign * step
                changed = {**inputs, name: moved}
                sides.append(reference(case, changed, temperature=temperature))
            expected = (sides[0] - sides[1]) / (2 * step)
            np.testing.assert_allclose(gradient[index], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(
    "case", [c for c in CASES if "temperature" in c.parameters], ids=lambda case: case.name
)
def test_a_tensor_is_a_temperature_that_can_be_learned(case, temperature):
    inputs = batch(case)
    variable = tf.Variable(temperature, dtype=tf.float64)
    with tf.GradientTape() as tape:
        loss = case.loss(**inputs, temperature=variable, **case.options)
    np.testing.assert_array_equal(loss, evaluate(case, inputs, temperature=temperature)[0])
    step = 1e-5 * temperature
    above, below = (reference(case, inputs, temperature=temperature + s) for s in (step, -step))
    expected = (above - below) / (2 * step)
    np.testing.assert_allclose(tape.gradient(loss, variable), expected, rtol=1e-5, atol=1e-7)


@every_loss
def test_masked_equals_sliced(case):
    inputs = batch(case)
    kept = inputs["mask"]
    got, gradients = evaluate(case, inputs)
    expected, expected_gradients = evaluate(case, by_row(inputs, lambda x: x[kept]))
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient[kept], expected_gradients[name], rtol=1e-11, atol=1e-14)
        np.testing.assert_array_equal(gradient[~kept], 0)


@every_loss
@pytest.mark.parametrize("filler", [np.nan, np.inf, -np.inf, 1e300])
def test_nothing_in_a_masked_row_or_slot_matters(case, filler):
    inputs = batch(case)
    expected, expected_gradients = evaluate(case, inputs)
    for name, values in inputs.items():
        hidden = ~inputs["queue_mask" if name.startswith("queue") else "mask"]
        if name in FLOATS or name == "weights":
            values[hidden] = filler
        elif values.dtype != bool:
            values[hidden] = values[0]  # as if it were of the first row's user, or label
    got, gradients = evaluate(case, inputs)
    np.testing.assert_array_equal(got, expected)
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(gradient, expected_gradients[name])


@every_loss
def test_a_nan_in_a_valid_row_or_slot_surfaces(case):
    for name in batch(case).keys() & set(FLOATS):
        inputs = batch(case, np.float32)
        inputs[name][0] = np.nan
        assert np.isnan(evaluate(case, inputs)[0]), name
        # Graph optimisation and XLA have their own ways to lose one.
        for jit_compile in (False, True):
            assert np.isnan(evaluate_in_the_graph(case, inputs, jit_compile=jit_compile)[0]), name


@every_loss
@pytest.mark.parametrize("empty", ["mask", "weights", "view_a", "view_b"])
def test_without_anchors_loss_and_gradient_are_exactly_zero(case, empty):
    inputs = batch(case, np.float32)
    inputs[empty][:] = 0
    loss, gradients = evaluate(case, inputs)
    assert loss == 0.0
    for gradient in gradients.values():
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


@every_loss_and_temperature
def test_one_row_is_finite(case, temperature):
    inputs = by_row(batch(case, np.float32), lambda x: x[:1])
    loss, gradients = evaluate(case, inputs, temperature=temperature)
    expected = reference(case, inputs, temperature=temperature)
    np.testing.assert_allclose(loss, expected, rtol=case.rounding(temperature), atol=1e-6)
    for gradient in gradients.values():
        assert np.isfinite(gradient).all()


@every_loss
def test_does_not_depend_on_the_order_of_rows(case):
    inputs = batch(case)
    order = np.random.default_rng(1).permutation(len(inputs["mask"]))
    expected, expected_gradients = evaluate(case, inputs)
    got, gradients = evaluate(case, by_row(inputs, lambda x: x[order]))
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(
            gradient, expected_gradients[name][order], rtol=1e-10, atol=1e-14
        )


@every_loss
@pytest.mark.parametrize(
    ("jit_compile", "rows"), [(False, 9), (False, 4), (True, 9)], ids=["graph", "fewer", "xla"]
)
def test_graph_and_xla_equal_eager(case, jit_compile, rows):
    inputs = by_row(batch(case, np.float32), lambda x: x[:rows])
    default = case.parameters["temperature"].default if case.temperatures != [None] else None
    expected, expected_gradients = evaluate(case, inputs, temperature=default)
    got, gradients = evaluate_in_the_graph(case, inputs, jit_compile=jit_compile)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-4, atol=1e-6)


def finite_batches(case):
    """Strategy for small batches of any finite vectors."""
    rows, slots, d = 6, 4, 3
    largest = 3.0 if case.takes_lengths else 2.0**66
    numbers = st.floats(-largest, largest, width=32)
    vectors = {
        "view_a": (rows, d),
        "view_b": (rows, d),
        "more_positives": (rows, 2, d),
        "adversarial": (rows, d),
        "queue": (slots, d),
    }
    # Components too short to have a direction are another test's matter.
    arrays = {
        name: hnp.arrays(np.float32, shape, elements=numbers).map(
            lambda x: np.where(np.abs(x) < 1e-15, np.float32(0), x)
        )
        for name, shape in vectors.items()
    }
    arrays |= {"mask": hnp.arrays(bool, rows), "queue_mask": hnp.arrays(bool, slots)}
    whole = {"ids": (rows, 0), "labels": (rows, -1), "queue_ids": (slots, 0)}
    for name, (length, lowest) in whole.items():
        arrays[name] = hnp.arrays(np.int64, length, elements=st.integers(lowest, 3))
    names = ("view_a", "view_b", "mask", "ids", *case.inputs)
    return st.fixed_dictionaries({name: arrays[name] for name in names})


@every_loss
@settings(max_examples=15)
@given(st.data())
def test_any_finite_batch_gives_a_finite_loss_and_the_oracle_s(case, data):
    inputs = data.draw(finite_batches(case))
    temperature = data.draw(st.sampled_from(case.temperatures))
    wide = {k: v.astype(np.float64) if k in FLOATS else v for k, v in inputs.items()}
    assume(not case.rounding_decides(wide, tolerance=1e-5))
    assume(not case.cancels(wide, temperature, tolerance=0.05))
    loss, gradients = evaluate(case, inputs, temperature=temperature)
    for gradient in gradients.values():
        assert np.isfinite(gradient).all()
    expected = reference(case, wide, temperature=temperature)
    np.testing.assert_allclose(loss, expected, rtol=case.rounding(temperature), atol=2e-6)


@every_loss
def test_bad_arguments_are_named(case):
    inputs = batch(case, np.float32)
    mask, ids, weights = inputs["mask"], inputs["ids"], inputs["weights"]
    changes = {
        "mask": [
            (mask[:4], r"must have shape \[9\]. Received: shape \(4,\)"),
            (mask.astype(np.float32), "must be bool.*Received: .*float32"),
        ],
        "weights": [(weights[:, None], r"must have shape \[9\].*\(9, 1\)")],
        "ids": [(ids[:, None], r"must have shape \[9\].*\(9, 1\)")],
        "view_a": [(inputs["view_a"][0], r"must have shape \[B, d\].*\(5,\)")],
        "view_b": [(inputs["view_b"][:, :4], r"must have shape \(9, 5\).*\(9, 4\)")],
        "labels": [
            (ids[:4], r"must have shape \[9\].*\(4,\)"),
            (weights, "must be integers.*Received: .*float"),
        ],
        "more_positives": [(np.ones([9, 5]), r"must have shape \[9, P, 5\].*\(9, 5\)")],
        "adversarial": [(np.ones([9, 4]), r"must have shape \(9, 5\) like.*\(9, 4\)")],
        "queue": [(np.ones([6, 4]), r"must have shape \[K, 5\].*\(6, 4\)")],
        "queue_mask": [
            (np.ones(5, bool), r"must have shape \[6\].*\(5,\)"),
            (np.ones(6), "must be bool.*Received: .*float64"),
        ],
        "queue_ids": [(ids, r"must have shape \[6\].*\(9,\)")],
        "temperature": [(0.0, "must be above 0. Received: 0.0")],
        "max_negatives": [(0, "must be at least 1. Received: 0")],
        "max_similarity": [
            (1.0, "must be a cosine between -1 and 1.*Received: 1.0"),
            (-1.0, "must be a cosine between -1 and 1.*Received: -1.0"),
        ],
        "negative_weight": [(-0.1, "must be at least 0. Received: -0.1")],
        "average": [("both", "must be one of .*inside.*Received: 'both'")],
        "tau_plus": [
            (1.0, r"must be in \[0, 1\). Received: 1.0"),
            (-0.1, r"must be in \[0, 1\).*-0.1"),
        ],
        "beta": [(-0.5, "must be at least 0. Received: -0.5")],
        "margin": [(0.0, "must be above 0. Received: 0.0")],
        "mining": [("easy", "must be one of .*semi_hard.*Received: 'easy'")],
        "adversarial_weight": [(-1.0, "must be at least 0. Received: -1.0")],
    }
    for name in case.parameters:
        if name not in ("symmetric", "normalize"):  # these are truth values
            for value, message in changes[name]:
                with pytest.raises(ValueError, match=f"`{name}` {message}"):
                    case.loss(**{**inputs, **case.options, name: value})


def test_negative_pairs_are_other_valid_rows_with_another_id():
    mask = np.array([True, True, False, True])
    ids = np.array(["x", "y", "y", "x"])
    got = negative_pairs(tf.constant(mask), tf.constant(ids)).numpy()
    for i in range(4):
        for j in range(4):
            assert got[i, j] == (mask[i] and mask[j] and i != j and ids[i] != ids[j])


def test_a_known_false_negative_has_a_softmax_probability_of_exactly_zero():
    # The gradient with respect to a row that is nobody's negative comes from its own pair alone.
    a = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    inputs = {
        "view_a": a,
        "view_b": a[[0, 0, 2]] + np.float32(1e-3),
        "mask": np.ones(3, bool),
        "weights": np.array([0.0, 1.0, 0.0], np.float32),
    }
    ids = {"ids": np.array([8, 8, 9])}
    _, gradients = evaluate(INFO_NCE, inputs | ids, temperature=0.05)
    np.testing.assert_array_equal(gradients["view_b"][0], 0)
    _, without = evaluate(INFO_NCE, inputs, temperature=0.05)
    assert np.abs(without["view_b"][0]).max() > 1e-3


def test_uninformative_vectors_give_the_logarithm_of_the_number_of_candidates():
    same = np.ones((8, 4), np.float32)
    inputs = {"view_a": same, "view_b": same, "mask": np.ones(8, bool)}
    loss, _ = evaluate(INFO_NCE, inputs)
    np.testing.assert_allclose(loss, np.log(8), rtol=1e-6)


def test_string_ids():
    inputs = batch(INFO_NCE)
    expected, _ = evaluate(INFO_NCE, inputs)
    got, _ = evaluate(INFO_NCE, inputs | {"ids": inputs["ids"].astype(str)})
    np.testing.assert_array_equal(got, expected)


EASY = [
    INFO_NCE,
    case_named("info_nce_symmetric"),
    case_named("nt_xent"),
    case_named("multi_positive_more"),
    Case("multi_positive_outside", multi_positive_loss, oracles.multi_positive, OUTSIDE),
    case_named("debiased"),
    case_named("hard_negative"),
    case_named("moco"),
    case_named("rocl"),
]


@pytest.mark.parametrize("temperature", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("case", EASY, ids=lambda case: case.name)
def test_easy_rows_keep_their_small_loss_and_gradient_in_float32(case, temperature):
    # Positives at cosine 1 - 1e-3, negatives near 0: softmax cross-entropy would round all to 0.
    rng = np.random.default_rng(0)

    def near(x):
        return (x + 0.02 * rng.normal(size=x.shape)).astype(np.float32)

    a = np.eye(6, dtype=np.float32)
    inputs = {
        "view_a": a,
        "view_b": near(a),
        "mask": np.ones(6, bool),
        "more_positives": near(a[:, np.newaxis]),
        "adversarial": near(a),
        "queue": near(-a),
        "queue_mask": np.ones(6, bool),
    }
    inputs = {k: v for k, v in inputs.items() if k in {"view_a", "view_b", "mask", *case.inputs}}
    wide = {k: v.astype(np.float64) if k in FLOATS else v for k, v in inputs.items()}
    # In a graph, whose optimisation may add a small gradient to large ones that cancel.
    loss, gradients = evaluate(case, inputs, temperature=temperature, in_a_graph=True)
    expected, exact = evaluate(case, wide, temperature=temperature)
    assert 0 < expected < 0.1
    np.testing.assert_allclose(expected, reference(case, wide, temperature=temperature), rtol=1e-10)
    smallest = np.finfo(np.float32).tiny
    np.testing.assert_allclose(loss, expected, rtol=case.rounding(temperature), atol=smallest)
    for key, gradient in gradients.items():
        allowed = max(smallest, 10 * case.rounding(temperature) * np.abs(exact[key]).max())
        np.testing.assert_allclose(gradient, exact[key], rtol=0, atol=allowed)


def test_the_queue_is_a_constant_and_may_be_empty():
    case = case_named("moco")
    inputs = batch(case)
    queue = tf.Variable(inputs["queue"])
    with tf.GradientTape() as tape:
        loss = moco_loss(**{**inputs, "queue": queue})
    assert loss > 0
    assert tape.gradient(loss, queue) is None
    loss, gradients = evaluate(case, {**inputs, "queue_mask": np.zeros(6, bool)})
    assert loss == 0.0
    np.testing.assert_array_equal(gradients["view_a"], 0)


def test_the_queue_s_ids_need_the_rows_ids():
    inputs = batch(case_named("moco_ids"))
    with pytest.raises(ValueError, match=r"`queue_ids` needs the `ids`.*Received: ids=None"):
        moco_loss(**{**inputs, "ids": None})
