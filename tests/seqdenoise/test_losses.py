"""The contract of every contrastive loss, then what is particular to one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import oracles
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import seqdenoise
from seqdenoise import info_nce_loss, negative_pairs


@dataclass(frozen=True)
class Case:
    """A loss, its options and its reference."""

    name: str
    loss: Callable[..., Any]
    oracle: Callable[..., float]
    options: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("info_nce", info_nce_loss, oracles.info_nce),
    Case("info_nce_symmetric", info_nce_loss, oracles.info_nce, {"symmetric": True}),
]
TEMPERATURES = [0.01, 0.07, 0.5, 1.0]
every_loss = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def batch(dtype=np.float64):
    rng = np.random.default_rng(0)
    rows, d = 9, 5
    a = rng.normal(size=(rows, d))
    b = a + 0.5 * rng.normal(size=(rows, d))
    b[3] = b[5]  # a duplicate
    a[6] = 0.0  # a row without direction
    mask = np.ones(rows, bool)
    mask[[1, 7]] = False
    ids = np.array([1, 2, 3, 3, 4, 5, 6, 7, 1], np.int64)
    weights = rng.uniform(0.1, 2.0, rows)
    weights[4] = 0.0
    return a.astype(dtype), b.astype(dtype), {"mask": mask, "ids": ids, "weights": weights}


def evaluate(case, a, b, *, temperature=0.1, jit_compile=None, **rows):
    """Value and gradients, as NumPy arrays."""

    def run(a, b):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            loss = case.loss(a, b, temperature=temperature, **rows, **case.options)
        return loss, *tape.gradient(loss, [a, b])

    if jit_compile is not None:
        run = tf.function(run, jit_compile=jit_compile)
    loss, *gradients = run(tf.constant(a), tf.constant(b))
    return loss.numpy(), [gradient.numpy() for gradient in gradients]


def test_every_public_loss_has_a_case():
    public = {name for name in seqdenoise.__all__ if name.endswith("_loss")}
    assert public == {case.loss.__name__ for case in CASES}


@every_loss
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("used", [(), ("ids",), ("weights",), ("ids", "weights")])
def test_equals_the_oracle_in_float64(case, temperature, used):
    a, b, rows = batch()
    rows = {"mask": rows["mask"], **{key: rows[key] for key in used}}
    got, _ = evaluate(case, a, b, temperature=temperature, **rows)
    expected = case.oracle(a, b, temperature=temperature, **rows, **case.options)
    np.testing.assert_allclose(got, expected, rtol=1e-10)


@every_loss
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e30])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16])
def test_equals_the_oracle_of_the_same_rounded_inputs(case, temperature, scale, dtype):
    if dtype == tf.float16:
        scale = 1.0  # the others do not fit
    a, b, rows = batch()
    a, b = (tf.cast(tf.constant(x * scale), dtype) for x in (a, b))
    got, _ = evaluate(case, a, b, temperature=temperature, **rows)
    wide = [tf.cast(x, tf.float64).numpy() for x in (a, b)]
    expected = case.oracle(*wide, temperature=temperature, **rows, **case.options)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6 / temperature, atol=1e-7)


@every_loss
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_gradient_equals_finite_differences_of_the_oracle(case, temperature):
    a, b, rows = batch()
    _, gradients = evaluate(case, a, b, temperature=temperature, **rows)
    step = 1e-6
    for which, gradient in enumerate(gradients):
        for index in [(0, 0), (2, 1), (3, 2), (5, 0)]:
            sides = []
            for sign in (1, -1):
                moved = [a.copy(), b.copy()]
                moved[which][index] += sign * step
                sides.append(case.oracle(*moved, temperature=temperature, **rows, **case.options))
            expected = (sides[0] - sides[1]) / (2 * step)
            np.testing.assert_allclose(gradient[index], expected, rtol=1e-4, atol=1e-6)


@every_loss
def test_masked_equals_sliced(case):
    a, b, rows = batch()
    kept = rows["mask"]
    got, gradients = evaluate(case, a, b, **rows)
    sliced = {key: value[kept] for key, value in rows.items()}
    expected, expected_gradients = evaluate(case, a[kept], b[kept], **sliced)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient[kept], expected_gradient, rtol=1e-12, atol=1e-15)
        np.testing.assert_array_equal(gradient[~kept], 0)


@every_loss
@pytest.mark.parametrize("filler", [np.nan, np.inf, -np.inf, 1e300])
def test_nothing_in_a_masked_row_matters(case, filler):
    a, b, rows = batch()
    expected = evaluate(case, a, b, **rows)
    hidden = ~rows["mask"]
    a[hidden], b[hidden], rows["weights"][hidden] = filler, filler, filler
    got = evaluate(case, a, b, **rows)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[1], expected[1])


@every_loss
@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_a_nan_in_a_valid_row_surfaces(case, jit_compile):
    a, b, rows = batch(np.float32)
    a[0] = np.nan
    loss, _ = evaluate(case, a, b, jit_compile=jit_compile, **rows)
    assert np.isnan(loss)


@every_loss
@pytest.mark.parametrize("empty", ["mask", "weights", "directions"])
def test_without_anchors_loss_and_gradient_are_exactly_zero(case, empty):
    a, b, rows = batch(np.float32)
    if empty == "mask":
        rows["mask"][:] = False
    elif empty == "weights":
        rows["weights"][:] = 0.0
    else:
        a[:] = 0.0
    loss, gradients = evaluate(case, a, b, **rows)
    assert loss == 0.0
    np.testing.assert_array_equal(gradients, np.zeros_like(gradients))


@every_loss
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_one_row_is_finite(case, temperature):
    a, b, _ = batch(np.float32)
    loss, gradients = evaluate(case, a[:1], b[:1], mask=np.array([True]), temperature=temperature)
    assert np.isfinite(loss)
    assert np.isfinite(gradients).all()


@every_loss
def test_does_not_depend_on_the_order_of_rows(case):
    a, b, rows = batch()
    order = np.random.default_rng(1).permutation(len(a))
    expected, expected_gradients = evaluate(case, a, b, **rows)
    shuffled = {key: value[order] for key, value in rows.items()}
    got, gradients = evaluate(case, a[order], b[order], **shuffled)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected_gradient[order], rtol=1e-10, atol=1e-14)


@every_loss
@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_and_xla_equal_eager(case, jit_compile):
    a, b, rows = batch(np.float32)
    expected, expected_gradients = evaluate(case, a, b, **rows)
    got, gradients = evaluate(case, a, b, jit_compile=jit_compile, **rows)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    np.testing.assert_allclose(gradients, expected_gradients, rtol=1e-4, atol=1e-6)


@every_loss
@given(
    hnp.arrays(np.float32, (6, 3), elements=st.floats(-(2.0**66), 2.0**66, width=32)),
    hnp.arrays(np.float32, (6, 3), elements=st.floats(-(2.0**66), 2.0**66, width=32)),
    hnp.arrays(bool, 6),
    hnp.arrays(np.int64, 6, elements=st.integers(0, 3)),
    st.sampled_from(TEMPERATURES),
)
def test_any_finite_batch_gives_a_finite_loss_and_the_oracle_s(case, a, b, mask, ids, temperature):
    # Components too short to have a direction are another test's matter.
    a[np.abs(a) < 1e-15], b[np.abs(b) < 1e-15] = 0.0, 0.0
    loss, gradients = evaluate(case, a, b, mask=mask, ids=ids, temperature=temperature)
    assert np.isfinite(gradients).all()
    wide = a.astype(np.float64), b.astype(np.float64)
    expected = case.oracle(*wide, mask=mask, ids=ids, temperature=temperature, **case.options)
    np.testing.assert_allclose(loss, expected, rtol=1e-6 / temperature, atol=1e-6)


@every_loss
def test_bad_arguments_are_named(case):
    a, b, rows = batch(np.float32)
    call = {"mask": rows["mask"], "temperature": 0.1}
    for change, message in [
        ({"mask": rows["mask"][:4]}, r"`mask` must have shape \[9\]. Received: shape \(4,\)"),
        ({"mask": rows["mask"].astype(np.float32)}, "`mask` must be bool.*Received: .*float32"),
        ({"weights": rows["weights"][:, None]}, r"`weights` must have shape \[9\].*\(9, 1\)"),
        ({"ids": rows["ids"][:, None]}, r"`ids` must have shape \[9\].*\(9, 1\)"),
        ({"temperature": 0.0}, "`temperature` must be above 0. Received: 0.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            case.loss(a, b, **{**call, **change})
    with pytest.raises(ValueError, match=r"`view_a` must have shape \[B, d\]"):
        case.loss(a[0], b[0], **call)
    with pytest.raises(ValueError, match=r"`view_b` must have shape \(9, 5\)"):
        case.loss(a, b[:, :4], **call)


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
    b = a[[0, 0, 2]] + np.float32(1e-3)
    weights = np.array([0.0, 1.0, 0.0], np.float32)
    ids = np.array([8, 8, 9])
    case = CASES[0]
    mask = np.ones(3, bool)
    _, (_, gradient) = evaluate(case, a, b, mask=mask, ids=ids, weights=weights, temperature=0.05)
    np.testing.assert_array_equal(gradient[0], 0)
    _, (_, without) = evaluate(case, a, b, mask=mask, weights=weights, temperature=0.05)
    assert np.abs(without[0]).max() > 1e-3


def test_uninformative_vectors_give_the_logarithm_of_the_number_of_candidates():
    same = np.ones((8, 4), np.float32)
    loss, _ = evaluate(CASES[0], same, same, mask=np.ones(8, bool))
    np.testing.assert_allclose(loss, np.log(8), rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.02, 0.05, 0.2])
def test_easy_rows_keep_their_small_loss_and_gradient_in_float32(temperature):
    # Positives at cosine 1 - 1e-3, negatives near 0: softmax cross-entropy would round all to 0.
    rng = np.random.default_rng(0)
    a = np.eye(6, dtype=np.float32)
    b = a + 0.02 * rng.normal(size=(6, 6)).astype(np.float32)
    mask = np.ones(6, bool)
    loss, gradients = evaluate(CASES[0], a, b, mask=mask, temperature=temperature)
    wide = a.astype(np.float64), b.astype(np.float64)
    expected = oracles.info_nce(*wide, mask=mask, temperature=temperature)
    assert 0 < expected < 0.05
    np.testing.assert_allclose(loss, expected, rtol=1e-6 / temperature)
    _, exact = evaluate(CASES[0], *wide, mask=mask, temperature=temperature)
    for gradient, precise in zip(gradients, exact, strict=True):
        np.testing.assert_allclose(
            gradient, precise, rtol=1e-5 / temperature, atol=1e-5 * np.abs(precise).max()
        )


def test_string_ids():
    a, b, rows = batch()
    expected, _ = evaluate(CASES[0], a, b, mask=rows["mask"], ids=rows["ids"])
    got, _ = evaluate(CASES[0], a, b, mask=rows["mask"], ids=rows["ids"].astype(str))
    np.testing.assert_array_equal(got, expected)
