"""Views that are edits of a sequence: a stretch of it, some of its events, or all of them."""

import numpy as np
import tensorflow as tf

from seqdenoise.masks import random_bits
from seqdenoise.numerics import Tensor, masked_pool
from seqdenoise.views import checked_events, fold_in

# Edits of view A and of view B, by number: 0 crop, 1 mask, 2 reorder. All pairs of different ones.
_PAIRS = np.array([[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]], np.int32)
# A share of a whole number that is whole on paper is so in binary up to this.
_ROUNDING = 1e-9


def crop_mask_reorder_views(
    sequence: Tensor,
    *,
    mask: Tensor,
    seed: Tensor,
    crop: float = 0.6,
    masked: float = 0.3,
    first_row: Tensor | int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Edits a sequence in two ways, a view by each; nothing is complementary.

    Two different edits are drawn for each row, and each view is the mean of what its edit leaves
    (`edited_events`): a stretch of the events, the events but some, or all events.

    Args:
        sequence: float `[B, L, D]`, `D` known. Half precision is computed in float32. Padding may
            hold anything.
        mask: bool `[B, L]`, True for a real event, wherever in the row.
        seed: int `[2]`.
        crop: Share of the real events in the stretch, in `(0, 1]`.
        masked: Share of the real events left out, in `[0, 1)`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        Two tensors `[B, D]`, float32 or float64, zero for a row without a real event; and bool
        `[B]`, True for a row with one.

    Raises:
        ValueError: A shape does not fit, `D` is unknown, or a share is out of range.

    References:
        Xie et al. (2022), "Contrastive Learning for Sequential Recommendation" (CL4SRec), section
        III.B, with a mean in place of a transformer. So a masked event is left out, where theirs
        becomes the embedding of a `[mask]` item; and a view whose events they reorder is the whole
        sequence, since no order changes a mean.

    Example:
        >>> mask = tf.constant([[True, False]])
        >>> a, b, valid = crop_mask_reorder_views(tf.ones([1, 2, 3]), mask=mask, seed=[0, 1])
        >>> a.numpy().tolist(), b.numpy().tolist(), valid.numpy().tolist()
        ([[1.0, 1.0, 1.0]], [[1.0, 1.0, 1.0]], [True])
    """
    sequence, mask = checked_events(sequence, mask)
    left_a, left_b = edited_events(mask, seed=seed, crop=crop, masked=masked, first_row=first_row)
    return (
        masked_pool(sequence, left_a),
        masked_pool(sequence, left_b),
        tf.reduce_any(mask, axis=1),
    )


def edited_events(
    mask: Tensor,
    *,
    seed: Tensor,
    crop: float = 0.6,
    masked: float = 0.3,
    first_row: Tensor | int = 0,
) -> tuple[Tensor, Tensor]:
    """Draws two different edits for each row on its own, and what each leaves of its real events.

    Of `n` real events a crop leaves a stretch of `max(1, floor(crop * n))` consecutive ones, each
    place as likely; a mask takes away `floor(masked * n)`, each subset as likely; a reordering
    leaves all. Each of the six ordered pairs of edits is as likely (up to 2^-30).

    The draw depends on `L` and on the number of the real events, not on where padding lies between
    them; the same history padded to another length is edited otherwise.

    Args:
        mask: bool `[B, L]`, True for a real event, wherever in the row.
        seed: int `[2]`.
        crop: Share of the real events in the stretch, in `(0, 1]`.
        masked: Share of the real events left out, in `[0, 1)`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        Two tensors bool `[B, L]`, True at real events alone, of each row with one at least at one.

    Raises:
        ValueError: A share is out of range.

    Example:
        >>> left_a, left_b = edited_events(tf.ones([1, 10], tf.bool), seed=[0, 7])
        >>> tf.reduce_sum(tf.cast([left_a, left_b], tf.int32), axis=2).numpy().ravel().tolist()
        [10, 7]
    """
    if not 0 < crop <= 1:
        raise ValueError(f"`crop` must be in (0, 1]. Received: {crop}")
    if not 0 <= masked < 1:
        raise ValueError(f"`masked` must be in [0, 1). Received: {masked}")
    shape = tf.shape(mask)
    real = tf.cast(mask, tf.int32)
    count = tf.reduce_sum(real, axis=1, keepdims=True)
    order = tf.cumsum(real, axis=1) - 1  # Of an event among the real ones.
    numbers = random_bits(shape[0], 2, seed=fold_in(seed, 0), first_row=first_row)

    length = tf.maximum(_share(crop, count), tf.minimum(count, 1))
    start = tf.math.floormod(numbers[:, :1], count - length + 1)
    in_stretch = (order >= start) & (order < start + length)

    # The keys belong to the events by their order: those beyond the last one rank behind all.
    keys = random_bits(shape[0], shape[1], seed=seed, first_row=first_row)
    highest = tf.constant(tf.int32.max, tf.int32)
    keys = tf.where(tf.range(shape[1]) < count, tf.minimum(keys, highest - 1), highest)
    rank = tf.argsort(tf.argsort(keys, axis=1), axis=1)
    rank = tf.gather(rank, tf.maximum(order, 0), axis=1, batch_dims=1)
    unmasked = rank < tf.maximum(count - _share(masked, count), 1)

    # The two views' edits differ, so one draw of each edit serves both.
    pair = tf.gather(tf.constant(_PAIRS), tf.math.floormod(numbers[:, 1], len(_PAIRS)))
    left = [
        mask & (in_stretch | (edit != 0)) & (unmasked | (edit != 1))
        for edit in (pair[:, :1], pair[:, 1:])
    ]
    return left[0], left[1]


def _share(share: float, count: Tensor) -> Tensor:
    """`floor(share * count)`, int32."""
    return tf.cast(tf.floor(share * tf.cast(count, tf.float64) + _ROUNDING), tf.int32)
