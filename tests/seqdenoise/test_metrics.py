import numpy as np
import oracles
import pytest
import tensorflow as tf

from seqdenoise import alignment, effective_rank, uniformity
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
