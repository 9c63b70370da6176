import numpy as np
import pytest
import tensorflow as tf

from seqdenoise.numerics import at_least_float32, l2_normalize, masked_mean, masked_pool


@pytest.mark.parametrize("scale", [1e-18, 1e-3, 1.0, 1e18, 1e37])
def test_unit_length_and_gradient_at_any_magnitude(scale):
    x = tf.constant(np.array([[3.0, -4.0]]) * scale, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        unit, has_direction = l2_normalize(x)
        first = unit[0, 0]
    np.testing.assert_allclose(unit.numpy(), [[0.6, -0.8]], rtol=1e-6)
    assert has_direction.numpy().all()
    # d(x1 / |x|)/dx = ((1, 0) - u1 * u) / |x|
    expected = np.array([[1 - 0.6 * 0.6, 0.6 * 0.8]]) / (5 * scale)
    # Below the smallest normal float the processor rounds to 0, hence the absolute term.
    np.testing.assert_allclose(tape.gradient(first, x).numpy(), expected, rtol=1e-5, atol=1.2e-38)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_a_zero_vector_has_no_direction_and_no_gradient(dtype):
    x = tf.zeros([2, 3], dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        unit, has_direction = l2_normalize(x)
        total = tf.reduce_sum(unit)
    assert not has_direction.numpy().any()
    np.testing.assert_array_equal(unit.numpy(), np.zeros([2, 3]))
    np.testing.assert_array_equal(tf.cast(tape.gradient(total, x), tf.float32), np.zeros([2, 3]))


def test_a_real_nan_still_surfaces():
    nan = float("nan")
    unit, has_direction = l2_normalize(tf.constant([[nan, 1.0], [nan, nan], [1e38, nan]]))
    assert np.isnan(unit.numpy()).any(axis=1).all()
    assert has_direction.numpy().all()


def test_half_precision_is_widened_and_the_rest_left_alone():
    assert at_least_float32(tf.ones(1, tf.float16)).dtype == tf.float32
    assert at_least_float32(tf.ones(1, tf.bfloat16)).dtype == tf.float32
    assert at_least_float32(tf.ones(1, tf.float64)).dtype == tf.float64


def test_masked_mean_reads_neither_masked_values_nor_masked_weights():
    nan = float("nan")
    values, mask = tf.constant([1.0, nan, 4.0]), tf.constant([True, False, True])
    assert float(masked_mean(values, mask)) == 2.5
    weights = tf.constant([3.0, nan, 1.0])
    assert float(masked_mean(values, mask, weights)) == (3 * 1 + 4) / 4


def test_masked_mean_of_nothing_is_zero():
    values = tf.constant([1.0, 2.0])
    assert float(masked_mean(values, tf.constant([False, False]))) == 0.0
    assert float(masked_mean(values, tf.constant([True, True]), tf.zeros(2))) == 0.0


def test_masked_pool_is_the_mean_of_the_real_events():
    sequence = tf.constant([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]], [[1.0, 1.0]] * 3])
    mask = tf.constant([[True, True, False], [False, False, False]])
    np.testing.assert_array_equal(masked_pool(sequence, mask).numpy(), [[2.0, 4.0], [0.0, 0.0]])


@pytest.mark.parametrize("filler", [float("nan"), float("inf"), 1e38])
def test_padding_changes_neither_the_pool_nor_its_gradient(filler):
    mask = tf.constant([[True, True, False], [False, False, False]])
    clean = tf.random.stateless_normal([2, 3, 4], [1, 2])
    dirty = tf.where(mask[:, :, None], clean, filler)

    def value_and_gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            pooled = masked_pool(x, mask)
            total = tf.reduce_sum(pooled**2)
        return pooled.numpy(), tape.gradient(total, x).numpy()

    for got, expected in zip(value_and_gradient(dirty), value_and_gradient(clean), strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(value_and_gradient(dirty)[1][~mask.numpy()], 0)
