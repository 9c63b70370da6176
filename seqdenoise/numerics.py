"""Safe norms, masked reductions and the only constants that guard against division by zero."""

from typing import Any

import tensorflow as tf

Tensor = Any  # TensorFlow ships no types; the name documents intent.

# A vector whose largest component is below the square root of the smallest normal number has no
# usable direction: its gradient, of order 1 / length, would overflow when multiplied once.
_MIN_LENGTH = {tf.float32: 1e-19, tf.float64: 1e-154}


def at_least_float32(x: Tensor) -> Tensor:
    """Casts half precision to float32 and leaves float32 and float64 alone."""
    x = tf.convert_to_tensor(x)
    return x if x.dtype in (tf.float32, tf.float64) else tf.cast(x, tf.float32)


def l2_normalize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scales vectors to unit length, safely for zero, tiny and huge ones.

    The vector is divided by its largest component before it is squared, so no square overflows or
    underflows. Unit vectors do not depend on that divisor, hence no gradient flows through it.

    Args:
        x: float `[..., d]`.

    Returns:
        The unit vectors, `[..., d]`, float32 or float64, zero where `x` has no direction; and bool
        `[...]`, True where it has one.

    Example:
        >>> unit, has_direction = l2_normalize(tf.constant([[3e30, 4e30], [0.0, 0.0]]))
        >>> unit.numpy().round(2).tolist(), has_direction.numpy().tolist()
        ([[0.6000000238418579, 0.800000011920929], [0.0, 0.0]], [True, False])
    """
    x = at_least_float32(x)

    @tf.custom_gradient
    def scaled_to_one(x: Tensor) -> Any:
        largest = tf.reduce_max(tf.abs(x), axis=-1, keepdims=True)
        is_long = largest >= _MIN_LENGTH[x.dtype]
        divisor = tf.where(is_long, largest, tf.ones_like(largest))
        scaled = x / divisor
        square = tf.reduce_sum(tf.square(scaled), axis=-1, keepdims=True)
        # A maximum may drop NaN, the sum does not. A NaN vector must not pass for a zero one.
        has_direction = is_long | tf.math.is_nan(square)
        inverse = tf.where(has_direction, tf.math.rsqrt(square), tf.zeros_like(square))
        unit = scaled * inverse

        # TensorFlow would go through all of the above backwards.
        def gradient(upstream: Tensor, _: Tensor) -> Tensor:
            along = tf.reduce_sum(upstream * unit, axis=-1, keepdims=True)
            return (upstream - along * unit) * (inverse / divisor)

        return (unit, tf.squeeze(has_direction, -1)), gradient

    return scaled_to_one(x)


def masked_mean(values: Tensor, mask: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean of the values whose mask is True; exactly 0 when there are none.

    Args:
        values: float, any shape.
        mask: bool, the same shape.
        weights: Optional non-negative float, the same shape. What it holds where `mask` is False is
            never read.

    Returns:
        A scalar of the dtype of `values`.

    Example:
        >>> mask = tf.constant([True, True, False])
        >>> float(masked_mean(tf.constant([1.0, 3.0, float("nan")]), mask))
        2.0
    """
    shares = masked_shares(mask, weights, values.dtype)
    return tf.reduce_sum(tf.where(mask, values, tf.zeros_like(values)) * shares)


def masked_shares(mask: Tensor, weights: Tensor | None, dtype: Any) -> Tensor:
    """What each value counts in the mean over those whose mask is True: all are 0 without any.

    Args:
        mask: bool, any shape.
        weights: As in `masked_mean`.
        dtype: float32 or float64.

    Returns:
        `dtype`, of the shape of `mask`.

    Example:
        >>> mask = tf.constant([True, True, False])
        >>> masked_shares(mask, tf.constant([1.0, 3.0, 9.0]), tf.float32).numpy().tolist()
        [0.25, 0.75, 0.0]
    """
    counted = tf.cast(mask, dtype)
    if weights is not None:
        counted = tf.where(mask, tf.cast(weights, dtype), tf.zeros_like(counted))
    return tf.math.divide_no_nan(counted, tf.reduce_sum(counted))


def masked_pool(sequence: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real events of each row; a zero vector for a row without any.

    Args:
        sequence: float `[B, L, D]`. Padding may hold anything, NaN included: it is replaced before
            any arithmetic, so it reaches neither the value nor the gradient.
        mask: bool `[B, L]`, True for a real event.

    Returns:
        `[B, D]`, float32 or float64.

    Example:
        >>> mask = tf.constant([[True, True, False]])
        >>> masked_pool(tf.constant([[[2.0], [4.0], [float("nan")]]]), mask).numpy()
        array([[3.]], dtype=float32)
    """
    sequence = at_least_float32(sequence)
    real = tf.cast(mask, sequence.dtype)
    count = tf.reduce_sum(real, axis=1, keepdims=True)

    @tf.custom_gradient
    def mean(x: Tensor) -> Any:
        # A product with zeros and ones reads the events once and writes no copy of them. Only a
        # padded slot that is not finite does not vanish in it, and then the copy is made. Either
        # way the same numbers are added in the same order.
        total = _row_products(real, x)
        total = tf.cond(
            tf.reduce_all(tf.math.is_finite(total)),
            lambda: total,
            lambda: _row_products(real, tf.where(mask[:, :, tf.newaxis], x, tf.zeros_like(x))),
        )

        def gradient(upstream: Tensor) -> Tensor:
            share = tf.math.divide_no_nan(real, count)
            return share[:, :, tf.newaxis] * upstream[:, tf.newaxis]

        return tf.math.divide_no_nan(total, count), gradient

    return mean(sequence)


def _row_products(weights: Tensor, x: Tensor) -> Tensor:
    """Sums `[B, D]` of `x` `[B, L, D]` times `weights` `[B, L]` over `L`."""
    return tf.matmul(weights[:, tf.newaxis], x)[:, 0]
