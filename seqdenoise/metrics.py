"""Health of a representation, and of its share in the training of what it shares with the host."""

from collections.abc import Sequence
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


def uniformity(vectors: Tensor, *, mask: Tensor, log: bool = True) -> Tensor:
    """`log E exp(-2 |x - y|^2)` over pairs of distinct valid rows: the lower, the better spread.

    Args:
        vectors: Unit vectors, float `[B, d]`.
        mask: bool `[B]`, True for a valid row.
        log: Whether to take the logarithm; without it the mean itself, in (0, 1].

    Returns:
        A scalar of at most 0 (without the logarithm, of at most 1); exactly that when all vectors
        coincide and with fewer than two valid rows.

    References:
        Wang, Isola (2020), section 4.1, t = 2.
    """
    vectors = at_least_float32(vectors)
    vectors = tf.where(mask[:, tf.newaxis], vectors, tf.zeros_like(vectors))
    squared_distance = 2 - 2 * tf.matmul(vectors, vectors, transpose_b=True)
    pairs = mask[:, tf.newaxis] & mask[tf.newaxis, :] & ~tf.eye(tf.shape(mask)[0], dtype=tf.bool)
    mean = masked_mean(tf.exp(-2 * squared_distance), pairs)
    mean = tf.where(tf.reduce_any(pairs), mean, tf.ones_like(mean))
    return tf.math.log(tf.maximum(mean, 1e-37)) if log else mean


def effective_rank(second_moment: Tensor) -> Tensor:
    """Number of directions a set of vectors really uses, from 1 (collapsed) to `d`.

    The exponential of the entropy of the singular values, normalised to sum to 1. The singular
    values of the vectors are the square roots of the eigenvalues of their second moment, up to a
    factor that cancels.

    Args:
        second_moment: float `[d, d]`, the sum (or mean) of `x x^T`.

    Returns:
        A scalar; 0 for a zero matrix, NaN for one that is not finite.

    References:
        Roy, Vetterli (2007), "The effective rank: a measure of effective dimensionality", section
        2.

    Example:
        >>> round(float(effective_rank(tf.eye(4))), 3)
        4.0
    """
    second_moment = at_least_float32(second_moment)
    finite = tf.reduce_all(tf.math.is_finite(second_moment))
    # The decomposition raises for NaN, and a metric must not end a training run.
    second_moment = tf.where(finite, second_moment, tf.zeros_like(second_moment))
    eigenvalues = tf.linalg.eigvalsh(second_moment)
    singular = tf.sqrt(tf.maximum(eigenvalues, 0.0))
    share = tf.math.divide_no_nan(singular, tf.reduce_sum(singular))
    rank = tf.exp(-tf.reduce_sum(tf.math.xlogy(share, share)))
    rank = tf.where(tf.reduce_sum(singular) > 0, rank, tf.zeros_like(rank))
    return tf.where(finite, rank, tf.constant(float("nan"), rank.dtype))


def gradient_balance(
    main_gradients: Sequence[Any], side_gradients: Sequence[Any]
) -> tuple[Tensor, Tensor]:
    """How strongly, and in which direction, the side loss pulls beside the main one.

    Computed eagerly or in a graph, not under XLA. A row of an embedding that occurs several times
    in a batch is summed first, as an optimizer does.

    Args:
        main_gradients: Gradients of the main loss with respect to the shared weights, tensors or
            `tf.IndexedSlices`, None where there is none.
        side_gradients: Gradients of the side loss with respect to the same weights.

    Returns:
        The ratio of the norms, side over main, and the cosine between the two: a ratio above 1 says
        that the side loss dominates, a negative cosine that the two disagree. Both 0 where a norm
        is 0.

    Raises:
        ValueError: The two have different lengths.

    Example:
        >>> ratio, cosine = gradient_balance([tf.constant([3.0, 4.0])], [tf.constant([0.0, 5.0])])
        >>> round(float(ratio), 3), round(float(cosine), 3)
        (1.0, 0.8)
    """
    if len(main_gradients) != len(side_gradients):
        raise ValueError(
            "`main_gradients` and `side_gradients` must be of the same weights. "
            f"Received: {len(main_gradients)} and {len(side_gradients)}"
        )
    pairs = list(zip(main_gradients, side_gradients, strict=True))
    product = tf.add_n([_dot(main, side) for main, side in pairs])
    main_square = tf.add_n([_dot(main, main) for main, _ in pairs])
    side_square = tf.add_n([_dot(side, side) for _, side in pairs])
    ratio = tf.math.divide_no_nan(tf.sqrt(side_square), tf.sqrt(main_square))
    norms = tf.sqrt(main_square) * tf.sqrt(side_square)
    return ratio, tf.math.divide_no_nan(product, norms)


def _dot(one: Any, other: Any) -> Tensor:
    """Inner product of two gradients of one weight, float32."""
    if one is None or other is None:
        return tf.constant(0.0)
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        # Only the rows that occur: the table may be far larger than what a batch looks up.
        rows, place = tf.unique(tf.concat([one.indices, other.indices], axis=0))
        split = tf.shape(one.indices)[0]
        one, other = (
            tf.math.unsorted_segment_sum(tf.cast(x.values, tf.float32), where, tf.size(rows))
            for x, where in ((one, place[:split]), (other, place[split:]))
        )
    elif isinstance(one, tf.IndexedSlices):
        one, other = one.values, tf.gather(other, one.indices)
    elif isinstance(other, tf.IndexedSlices):
        one, other = tf.gather(one, other.indices), other.values
    return tf.reduce_sum(tf.cast(one, tf.float32) * tf.cast(other, tf.float32))


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
        # Not the global policy's dtype: sums of float32 vectors, whatever computes them.
        super().__init__(name=name, **{**kwargs, "dtype": "float32"})
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
