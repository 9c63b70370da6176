"""The two views of a sequence: which half of its features each one sees.

Everything here is a pure function of its inputs and an explicit seed. The random numbers come from
a counter-based generator with the algorithm pinned, so the same seed gives the same masks eagerly,
in a graph, under XLA and on any device.
"""

import zlib

import tensorflow as tf

from seqdenoise.numerics import Tensor

_ALGORITHM = "philox"


def view_seed(seed: int, name: str, step: Tensor) -> Tensor:
    """Derives the seed of one sequence's masks at one training step.

    The name enters by a checksum rather than by its position, so adding a sequence changes no other
    sequence's masks.

    Args:
        seed: The plug-in's seed.
        name: The sequence's name.
        step: int64 scalar, the number of training steps made.

    Returns:
        int32 `[2]`.
    """
    base = tf.constant([seed & 0x7FFFFFFF, zlib.crc32(name.encode()) & 0x7FFFFFFF], tf.int32)
    return tf.random.experimental.stateless_fold_in(base, step, alg=_ALGORITHM)


def complementary_mask(num_rows: Tensor | int, num_features: int, *, seed: Tensor) -> Tensor:
    """Draws, for each row on its own, exactly half of the features.

    View A keeps the features where the mask is True and view B the others, so the views are
    disjoint and together complete. With an odd number of features view A gets the smaller half.

    Args:
        num_rows: Number of rows `B`, a number or an int scalar tensor.
        num_features: Number of features `D`, at least 2.
        seed: int `[2]`.

    Returns:
        bool `[B, D]` with `D // 2` True values in each row.

    Raises:
        ValueError: `num_features` is below 2.

    Example:
        >>> mask = complementary_mask(3, 6, seed=[0, 7])
        >>> mask.shape, tf.reduce_sum(tf.cast(mask, tf.int32), axis=1).numpy().tolist()
        (TensorShape([3, 6]), [3, 3, 3])
    """
    if num_features < 2:
        raise ValueError(
            "Complementary views need at least 2 features to share out. "
            f"Received: num_features={num_features}"
        )
    # Whole random integers, not floats: the bits are the same with and without XLA, the rounding of
    # a float drawn from them is not.
    keys = tf.random.stateless_uniform(
        [num_rows, num_features],
        seed,
        minval=None,
        maxval=None,
        dtype=tf.int32,
        alg=_ALGORITHM,
    )
    # A row of argsort is a uniformly random permutation of 0 .. D-1, so exactly D // 2 of its
    # entries are below D // 2, whatever ties the keys have.
    return tf.argsort(keys, axis=1) < num_features // 2


def dimension_views(pooled: Tensor, *, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Splits the dimensions of a pooled sequence between two views.

    View A is `m * x` and view B is `(1 - m) * x` with `m` from `complementary_mask`.

    Args:
        pooled: float `[B, D]`, one vector a row, `D` known and at least 2.
        seed: int `[2]`.

    Returns:
        Two tensors `[B, D]` of the dtype of `pooled`, whose sum is `pooled`.

    Raises:
        ValueError: `pooled` is not of rank 2, or `D` is unknown or below 2.

    Example:
        >>> a, b = dimension_views(tf.constant([[1.0, 2.0, 3.0, 4.0]]), seed=[0, 1])
        >>> (a + b).numpy().tolist(), (a * b).numpy().tolist()
        ([[1.0, 2.0, 3.0, 4.0]], [[0.0, 0.0, 0.0, 0.0]])
    """
    if pooled.shape.rank != 2 or pooled.shape[1] is None:
        raise ValueError(
            f"`pooled` must have shape [B, D] with D known. Received: shape {pooled.shape}"
        )
    mask = complementary_mask(tf.shape(pooled)[0], pooled.shape[1], seed=seed)
    zeros = tf.zeros_like(pooled)
    return tf.where(mask, pooled, zeros), tf.where(mask, zeros, pooled)
