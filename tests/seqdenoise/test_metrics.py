import numpy as np
import oracles
import pytest
import tensorflow as tf

from seqdenoise import alignment, effective_rank, gradient_balance, uniformity
from seqdenoise.metrics import EffectiveRank, MeasuredMean


def unit_vectors(rows, d, seed):
    x = np.random.default_rng(seed).normal(size=(rows, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


MASK = np.array([True, True, False, True, True, False])


def test_alignment_and_uniformity_equal_their_oracles():
    a, b = unit_vectors(6, 4, 0), unit_vectors(6, 4, 1)
    np.testing.assert_allclose(
        alignment(a, b, mask=tf.constant(MASK)), oracles.alignment(a, b, MASK), rtol=1e-12
    )
    np.testing.assert_allclose(
        uniformity(a, mask=tf.constant(MASK)), oracles.uniformity(a, MASK), rtol=1e-10
    )


def test_masked_rows_do_not_count():
    a, b = unit_vectors(6, 4, 0), unit_vectors(6, 4, 1)
    expected = alignment(a, b, mask=MASK), uniformity(a, mask=tf.constant(MASK))
    a[~MASK], b[~MASK] = np.nan, np.nan
    np.testing.assert_array_equal(
        (alignment(a, b, mask=MASK), uniformity(a, mask=tf.constant(MASK))), expected
    )


@pytest.mark.parametrize("kept", [0, 1])
def test_uniformity_of_fewer_than_two_rows_is_zero(kept):
    mask = np.arange(6) < kept
    assert float(uniformity(unit_vectors(6, 4, 0), mask=tf.constant(mask))) == 0.0


def test_effective_rank_equals_that_of_the_singular_values():
    x = unit_vectors(40, 6, 3) * np.array([3, 2, 1, 0.5, 0.1, 0.0])
    np.testing.assert_allclose(effective_rank(x.T @ x), oracles.effective_rank(x), rtol=1e-6)


def test_effective_rank_of_collapsed_vectors_is_one():
    x = np.tile(unit_vectors(1, 5, 0), (20, 1))
    np.testing.assert_allclose(effective_rank(x.T @ x), 1.0, rtol=1e-3)
    assert float(effective_rank(tf.zeros([3, 3]))) == 0.0


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_effective_rank_of_broken_vectors_is_nan_and_no_error(broken):
    x = unit_vectors(6, 4, 0).astype(np.float32)
    x[2, 1] = broken
    metric = EffectiveRank(4)
    metric.update_state(x, np.ones(6, bool))
    assert np.isnan(float(metric.result()))
    # In the graph of `fit` it would end the training.
    assert np.isnan(float(tf.function(metric.result)()))


def test_effective_rank_metric_accumulates_valid_rows_and_resets():
    x = unit_vectors(6, 4, 0).astype(np.float32)
    dirty = np.where(MASK[:, None], x, np.nan).astype(np.float32)
    metric = EffectiveRank(4)
    assert np.isnan(float(metric.result()))
    metric.update_state(dirty[:3], MASK[:3])
    metric.update_state(dirty[3:], MASK[3:])
    np.testing.assert_allclose(float(metric.result()), oracles.effective_rank(x[MASK]), rtol=1e-4)
    metric.reset_state()
    assert np.isnan(float(metric.result()))


def test_a_mean_of_nothing_is_nan_not_zero():
    metric = MeasuredMean(name="m")
    assert np.isnan(float(metric.result()))
    metric.update_state([1.0, 3.0])
    assert float(metric.result()) == 2.0


def test_uniformity_without_the_logarithm():
    a = unit_vectors(6, 4, 0)
    mask = tf.constant(MASK)
    np.testing.assert_allclose(
        uniformity(a, mask=mask, log=False), np.exp(oracles.uniformity(a, MASK)), rtol=1e-10
    )
    assert float(uniformity(a, mask=tf.zeros([6], tf.bool), log=False)) == 1.0


def as_slices(dense, rows):
    """The gradient as an embedding has it: each row in two parts."""
    values = np.concatenate([dense[rows] * 0.25, dense[rows] * 0.75])
    return tf.IndexedSlices(
        tf.constant(values, tf.float32), tf.constant([*rows, *rows]), tf.constant(dense.shape)
    )


@pytest.mark.parametrize("main_is_sparse", [False, True])
@pytest.mark.parametrize("side_is_sparse", [False, True])
def test_gradient_balance_is_that_of_the_dense_gradients(main_is_sparse, side_is_sparse):
    rng = np.random.default_rng(0)
    main, side = np.zeros([2, 9, 3])
    main_rows, side_rows = [1, 4, 8], [4, 0]
    main[main_rows], side[side_rows] = rng.normal(size=(3, 3)), rng.normal(size=(2, 3))
    other = rng.normal(size=(2, 5))
    got = gradient_balance(
        [
            as_slices(main, main_rows) if main_is_sparse else tf.constant(main, tf.float32),
            tf.constant(other[0], tf.float32),
            None,
        ],
        [
            as_slices(side, side_rows) if side_is_sparse else tf.constant(side, tf.float32),
            tf.constant(other[1], tf.float32),
            tf.constant([2.0]),
        ],
    )
    one = np.concatenate([main.ravel(), other[0], [0.0]])
    two = np.concatenate([side.ravel(), other[1], [2.0]])
    norms = np.linalg.norm(one), np.linalg.norm(two)
    np.testing.assert_allclose(got, [norms[1] / norms[0], one @ two / np.prod(norms)], rtol=1e-5)


def test_gradient_balance_without_a_gradient_is_zero():
    assert [float(x) for x in gradient_balance([None], [tf.ones([2])])] == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"of the same weights\. Received: 1 and 2"):
        gradient_balance([None], [None, None])
