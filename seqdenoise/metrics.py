"""Health of a representation: alignment, uniformity and effective rank."""

from typing import Any

import tensorflow as tf

from seqdenoise.numerics import Tensor, at_least_float32, masked_mean


def alignment(view_a: Tensor, view_b: Tensor, *, mask: Tensor) -> Tensor:
    """Mean squared distance of the two views of a row: 0 when they coincide.

    Args:
        view_a: Unit vectors, float `[B, d]`.
        view_b: Unit vectors, float `[B, d]`.
        mask: bool `[B]`, True for a valid row.

    Returns:
        A scalar in [0, 4]; 0 without valid rows.

    References:
        Wang, Isola (2020), "Understanding Contrastive Representation Learning through Alignment and
        Uniformity on the Hypersphere", section 4.1, alpha = 2.
    """
    view_a, view_b = at_least_float32(view_a), at_least_float32(view_b)
    return masked_mean(tf.reduce_sum(tf.math.squared_difference(view_a, view_b), axis=-1), mask)


def uniformity(vectors: Tensor, *, mask: Tensor) -> Tensor:
    """`log E exp(-2 |x - y|^2)` over pairs of distinct valid rows: the lower, the better spread.

    Args:
        vectors: Unit vectors, float `[B, d]`.
        mask: bool `[B]`, True for a valid row.

    Returns:
        A scalar of at most 0; exactly 0 when all vectors coincide and with fewer than two valid
        rows.

    References:
        Wang, Isola (2020), section 4.1, t = 2.
    """
    vectors = at_least_float32(vectors)
    vectors = tf.where(mask[:, tf.newaxis], vectors, tf.zeros_like(vectors))
    squared_distance = 2 - 2 * tf.matmul(vectors, vectors, transpose_b=True)
    pairs = mask[:, tf.newaxis] & mask[tf.newaxis, :] & ~tf.eye(tf.shape(mask)[0], dtype=tf.bool)
    mean = masked_mean(tf.exp(-2 * squared_distance), pairs)
    return tf.where(tf.reduce_any(pairs), tf.math.log(tf.maximum(mean, 1e-37)), 0.0)


def effective_rank(second_moment: Tensor) -> Tensor:
    """Number of directions a set of vectors really uses, from 1 (collapsed) to `d`.

    The exponential of the entropy of the singular values, normalised to sum to 1. The singular
    values of the vectors are the square roots of the eigenvalues of their second moment, up to a
    factor that cancels.

    Args:
        second_moment: float `[d, d]`, the sum (or mean) of `x x^T`.

    Returns:
        A scalar; 0 for a zero matrix.

    References:
        Roy, Vetterli (2007), "The effective rank: a measure of effective dimensionality", section
        2.

    Example:
        >>> round(float(effective_rank(tf.eye(4))), 3)
        4.0
    """
    eigenvalues = tf.linalg.eigvalsh(at_least_float32(second_moment))
    singular = tf.sqrt(tf.maximum(eigenvalues, 0.0))
    share = tf.math.divide_no_nan(singular, tf.reduce_sum(singular))
    rank = tf.exp(-tf.reduce_sum(tf.math.xlogy(share, share)))
    return tf.where(tf.reduce_sum(singular) > 0, rank, tf.zeros_like(rank))


@tf.keras.utils.register_keras_serializable(package="seqdenoise")
class MeasuredMean(tf.keras.metrics.Mean):
    """A mean that is NaN, not 0, while nothing was measured.

    The side loss does not run in `evaluate`; a 0 beside it in the logs would read as a perfect one.
    """

    def result(self) -> Tensor:
        """The mean, or NaN."""
        mean = super().result()
        return tf.where(tf.convert_to_tensor(self.count) > 0, mean, float("nan"))


@tf.keras.utils.register_keras_serializable(package="seqdenoise")
class EffectiveRank(tf.keras.metrics.Metric):
    """Effective rank of all vectors seen since the last reset; NaN while there were none.

    Args:
        units: Length `d` of the vectors.
        name: Name in the logs.
        **kwargs: Arguments of `tf.keras.metrics.Metric`.
    """

    def __init__(self, units: int, name: str = "effective_rank", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.units = units
        self.second_moment = self.add_weight(
            name="second_moment", shape=(units, units), initializer="zeros"
        )

    def update_state(self, vectors: Tensor, mask: Tensor) -> None:
        """Adds the valid rows of `vectors`, float `[B, d]` with bool `mask` `[B]`."""
        vectors = tf.cast(vectors, tf.float32)
        vectors = tf.where(mask[:, tf.newaxis], vectors, tf.zeros_like(vectors))
        self.second_moment.assign_add(tf.matmul(vectors, vectors, transpose_a=True))

    def result(self) -> Tensor:
        """The effective rank, or NaN."""
        second_moment = tf.convert_to_tensor(self.second_moment)
        seen = tf.linalg.trace(second_moment) > 0
        return tf.where(seen, effective_rank(second_moment), float("nan"))

    def reset_state(self) -> None:
        """Forgets all vectors."""
        self.second_moment.assign(tf.zeros([self.units, self.units]))

    def get_config(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        return {**super().get_config(), "units": self.units}
