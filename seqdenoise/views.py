"""The two views of a sequence: what of its features each one sees.

All views have one signature,

`(sequence, *, mask, seed, first_row=0, ...) -> (view_a, view_b, valid)`

and are pure functions of their inputs: two pooled vectors a row, and whether the row has a real
event in both views. A row's masks depend on `seed`, on the number of the row in the global batch
and on the static shape of a row, so they are the same eagerly, in a graph, under XLA and however
the batch is spread over devices.
"""

import zlib
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from seqdenoise.masks import (
    complementary_mask,
    correlated_halves,
    correlated_mask,
    half_of_events,
    kept_features,
    sampled_halves,
)
from seqdenoise.numerics import Tensor, at_least_float32, masked_pool

_ALGORITHM = "philox"  # Of the public functions; `masks` names it by number.


def view_seed(seed: int, name: str, step: Tensor) -> Tensor:
    """Derives the seed of one sequence's masks at one training step.

    The name enters by a checksum rather than by its position, so adding a sequence changes no other
    sequence's masks.

    Args:
        seed: The plug-in's seed.
        name: The sequence's name.
        step: int64 scalar, the number of training steps made.

    Returns:
        int64 `[2]`.
    """
    base = tf.constant([seed & 0x7FFFFFFF, zlib.crc32(name.encode()) & 0x7FFFFFFF], tf.int32)
    return fold_in(base, step)


def fold_in(seed: Tensor, number: Tensor | int) -> Tensor:
    """Derives a seed from another and a number, for draws independent of all others.

    Args:
        seed: int `[2]`.
        number: int scalar.

    Returns:
        `[2]` of the dtype of `number`, int32 for a Python number.

    Example:
        >>> bool(tf.reduce_all(fold_in([0, 7], 1) == fold_in([0, 7], 2)))
        False
    """
    return tf.random.experimental.stateless_fold_in(seed, number, alg=_ALGORITHM)


def dimension_views(
    sequence: Tensor, *, mask: Tensor, seed: Tensor, first_row: Tensor | int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Splits the dimensions of the pooled sequence between two views.

    $$ a = m \odot x, \quad b = (1 - m) \odot x, \quad x = \text{mean of the real events} $$

    with exactly half of the `m` of each row 1 (`complementary_mask`), hence `a + b = x`.

    Args:
        sequence: float `[B, L, D]`, `D` known and at least 2. Half precision is computed in
            float32. Padding may hold anything.
        mask: bool `[B, L]`, True for a real event.
        seed: int `[2]`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        Two tensors `[B, D]`, float32 or float64, zero for a row without a real event; and bool
        `[B]`, True for a row with one.

    Raises:
        ValueError: A shape does not fit, or `D` is unknown or below 2.

    Example:
        >>> sequence = tf.constant([[[1.0, 2.0, 3.0, 4.0], [3.0, 2.0, 1.0, 0.0]]])
        >>> mask = tf.constant([[True, True]])
        >>> a, b, valid = dimension_views(sequence, mask=mask, seed=[0, 1])
        >>> (a + b).numpy().tolist(), (a * b).numpy().tolist(), valid.numpy().tolist()
        ([[2.0, 2.0, 2.0, 2.0]], [[0.0, 0.0, 0.0, 0.0]], [True])
    """
    sequence, mask = checked_events(sequence, mask)
    half = complementary_mask(
        tf.shape(sequence)[0], sequence.shape[2], seed=seed, first_row=first_row
    )
    return *_shared_out(masked_pool(sequence, mask), half), tf.reduce_any(mask, axis=1)


def event_dimension_views(
    sequence: Tensor, *, mask: Tensor, seed: Tensor, first_row: Tensor | int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Splits the dimensions of each event between two views, before pooling.

    $$ a = \frac{1}{n} \sum_l m_l \odot x_l, \quad b = \frac{1}{n} \sum_l (1 - m_l) \odot x_l $$

    over the `n` real events, with exactly half of the `m_l` of each event 1, drawn for each event
    on its own. So both views see something of every dimension, and `a + b` is the pooled sequence
    up to rounding. An event's mask depends on its slot and on `L`: the same history padded to
    another length gets other masks.

    Args:
        sequence: float `[B, L, D]`, `D` known and at least 2. Half precision is computed in
            float32. Padding may hold anything.
        mask: bool `[B, L]`, True for a real event.
        seed: int `[2]`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        Two tensors `[B, D]`, float32 or float64, zero for a row without a real event; and bool
        `[B]`, True for a row with one.

    Raises:
        ValueError: A shape does not fit, or `D` is unknown or below 2.

    Example:
        >>> mask = tf.constant([[True, True, False]])
        >>> a, b, valid = event_dimension_views(tf.ones([1, 3, 4]), mask=mask, seed=[0, 1])
        >>> (a + b).numpy().tolist(), valid.numpy().tolist()
        ([[1.0, 1.0, 1.0, 1.0]], [True])
    """
    sequence, mask = checked_events(sequence, mask)
    shape = tf.shape(sequence)
    half = sampled_halves(
        shape[0] * shape[1],
        sequence.shape[2],
        seed=seed,
        first_row=tf.cast(first_row, tf.int64) * tf.cast(shape[1], tf.int64),
    )
    view_a, view_b = _shared_out(at_least_float32(sequence), tf.reshape(half, shape))
    return masked_pool(view_a, mask), masked_pool(view_b, mask), tf.reduce_any(mask, axis=1)


def event_views(
    sequence: Tensor, *, mask: Tensor, seed: Tensor, first_row: Tensor | int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Splits the events of a sequence between two views.

    View A is the mean of exactly `n // 2` of a row's `n` real events, drawn without regard to their
    order, and view B the mean of the others (`half_of_events`). The draw depends on `L`: the same
    history padded to another length is split otherwise.

    Args:
        sequence: float `[B, L, D]`, `D` known. Half precision is computed in float32. Padding may
            hold anything.
        mask: bool `[B, L]`, True for a real event.
        seed: int `[2]`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        Two tensors `[B, D]`, float32 or float64, zero where a view has no event; and bool `[B]`,
        True for a row of at least 2 real events.

    Raises:
        ValueError: A shape does not fit, or `D` is unknown.

    References:
        The item masks of Xie et al. (2022), "Contrastive Learning for Sequential Recommendation"
        (CL4SRec), hide events too, but each view by a draw of its own: such views may share events
        or both miss some, ours never do.

    Example:
        >>> sequence = tf.constant([[[1.0], [2.0], [3.0], [9.0]]])
        >>> mask = tf.constant([[True, True, True, False]])
        >>> a, b, valid = event_views(sequence, mask=mask, seed=[0, 1])
        >>> (a + 2 * b).numpy().tolist(), valid.numpy().tolist()  # one event, and two
        ([[6.0]], [True])
    """
    sequence, mask = checked_events(sequence, mask)
    half = half_of_events(mask, seed=seed, first_row=first_row)
    view_a = masked_pool(sequence, tf.logical_and(mask, half))
    view_b = masked_pool(sequence, tf.logical_and(mask, tf.logical_not(half)))
    return view_a, view_b, tf.reduce_sum(tf.cast(mask, tf.int32), axis=1) >= 2


def field_views(
    sequence: Mapping[str, Tensor], *, mask: Tensor, seed: Tensor, first_row: Tensor | int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Splits the fields of a sequence's events (item, category, brand ...) between two views.

    View A keeps exactly `F // 2` of the `F` fields of a row and view B the others, for all events
    of the row alike; the fields that a view does not see are zero in it.

    Args:
        sequence: Mapping from field to float `[B, L, D_f]`, at least 2 fields of one dtype, `D_f`
            known. Half precision is computed in float32. Padding may hold anything.
        mask: bool `[B, L]`, True for a real event; its fields are real together.
        seed: int `[2]`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        Two tensors `[B, D]`, float32 or float64, the pooled fields side by side in the order of
        their names, zero for a row without a real event; and bool `[B]`, True for a row with one.

    Raises:
        ValueError: A shape or dtype does not fit, a `D_f` is unknown, or there are fewer than 2
            fields.

    References:
        Yao et al. (2021), "Self-supervised Learning for Large-scale Item Recommendations", section
        3.2, random feature masking, with a draw for each row, exact halves, and zeros in place of a
        masked field's default embedding.

    Example:
        >>> fields = {"item": tf.ones([1, 2, 3]), "brand": tf.ones([1, 2, 1])}
        >>> mask = tf.constant([[True, True]])
        >>> a, b, valid = field_views(fields, mask=mask, seed=[0, 1])
        >>> sorted([a.numpy().tolist(), b.numpy().tolist()]), valid.numpy().tolist()
        ([[[0.0, 1.0, 1.0, 1.0]], [[1.0, 0.0, 0.0, 0.0]]], [True])
    """
    pooled, sizes, valid = _pooled_fields(sequence, mask)
    half = complementary_mask(tf.shape(pooled)[0], len(sizes), seed=seed, first_row=first_row)
    return *_shared_out(pooled, _per_dimension(half, sizes)), valid


def correlated_field_views(
    sequence: Mapping[str, Tensor],
    *,
    mask: Tensor,
    seed: Tensor,
    mutual_information: Mapping[str, Mapping[str, float]],
    first_row: Tensor | int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Splits the fields of a sequence's events between two views, related fields together.

    A random half of the fields leaves most of what a field says in the other half: the brand says
    much about the item. Here a seed field is drawn uniformly for each row, view A keeps it and the
    fields that know most about it, exactly `F // 2` in all, and view B keeps the rest. With fewer
    than 4 fields view A is the seed field alone, and `mutual_information` decides nothing.

    Args:
        sequence: Mapping from field to float `[B, L, D_f]`, at least 2 fields of one dtype, `D_f`
            known. Half precision is computed in float32. Padding may hold anything.
        mask: bool `[B, L]`, True for a real event; its fields are real together.
        seed: int `[2]`.
        mutual_information: Mapping from field to field to their mutual information, for exactly the
            fields of `sequence`, in any unit (`prepare` writes nats). Ties go by the fields' names.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        Two tensors `[B, D]`, float32 or float64, the pooled fields side by side in the order of
        their names, zero for a row without a real event; and bool `[B]`, True for a row with one.

    Raises:
        ValueError: A shape or dtype does not fit, a `D_f` is unknown, there are fewer than 2
            fields, or `mutual_information` does not name the fields or is not finite.

    References:
        Yao et al. (2021), "Self-supervised Learning for Large-scale Item Recommendations", section
        3.2, correlated feature masking. There one seed field serves the whole batch and half of the
        fields join it; here each row has its own, which counts among the half. Zeros take the place
        of a masked field's default embedding.

    Example:
        >>> fields = {"item": tf.ones([1, 2, 3]), "brand": tf.ones([1, 2, 1])}
        >>> information = {"item": {"brand": 0.7}, "brand": {"item": 0.7}}
        >>> mask = tf.constant([[True, True]])
        >>> a, b, valid = correlated_field_views(
        ...     fields, mask=mask, seed=[0, 1], mutual_information=information
        ... )
        >>> sorted([a.numpy().tolist(), b.numpy().tolist()]), valid.numpy().tolist()
        ([[[0.0, 1.0, 1.0, 1.0]], [[1.0, 0.0, 0.0, 0.0]]], [True])
    """
    pooled, sizes, valid = _pooled_fields(sequence, mask)
    halves = correlated_halves(list(sizes), mutual_information)
    half = correlated_mask(tf.shape(pooled)[0], halves, seed=seed, first_row=first_row)
    return *_shared_out(pooled, _per_dimension(half, sizes)), valid


def dropout_views(
    sequence: Tensor,
    *,
    mask: Tensor,
    seed: Tensor,
    rate: float = 0.1,
    first_row: Tensor | int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Passes the pooled sequence through dropout twice; nothing is complementary.

    The passes are independent of each other (`feature_dropout` with a seed of its own for each).

    Args:
        sequence: float `[B, L, D]`, `D` known. Half precision is computed in float32. Padding may
            hold anything.
        mask: bool `[B, L]`, True for a real event.
        seed: int `[2]`.
        rate: Probability of dropping a feature, in `[0, 1)`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        Two tensors `[B, D]`, float32 or float64, zero for a row without a real event; and bool
        `[B]`, True for a row with one.

    Raises:
        ValueError: A shape does not fit, `D` is unknown, or `rate` is not in `[0, 1)`.

    References:
        Gao, Yao, Chen (2021), "SimCSE: Simple Contrastive Learning of Sentence Embeddings", section
        3, with dropout on the encoder's input instead of inside a transformer.

    Example:
        >>> mask = tf.constant([[True, True]])
        >>> a, b, valid = dropout_views(tf.ones([1, 2, 8]), mask=mask, seed=[0, 1], rate=0.5)
        >>> sorted(set(a.numpy().ravel().tolist())), valid.numpy().tolist()
        ([0.0, 2.0], [True])
    """
    sequence, mask = checked_events(sequence, mask)
    pooled = masked_pool(sequence, mask)
    view_a, view_b = (
        feature_dropout(pooled, rate=rate, seed=fold_in(seed, number), first_row=first_row)
        for number in (0, 1)
    )
    return view_a, view_b, tf.reduce_any(mask, axis=1)


def feature_dropout(x: Tensor, *, rate: float, seed: Tensor, first_row: Tensor | int = 0) -> Tensor:
    """Inverted dropout: zeroes features at random and scales the others by `1 / (1 - rate)`.

    It differs from `tf.nn.experimental.stateless_dropout` in that it draws whole numbers, so that
    XLA drops the same features, and that a row's draw does not depend on the rows before it. On
    each of two complementary views, with a seed for each, it composes the two augmentations.

    Args:
        x: float `[B, D]`, `D` known. Half precision is computed in float32.
        rate: Probability of dropping a feature, in `[0, 1)`, exact to 2^-32.
        seed: int `[2]`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        `[B, D]`, float32 or float64.

    Raises:
        ValueError: `x` is not of rank 2, `D` is unknown, or `rate` is not in `[0, 1)`.

    Example:
        >>> x = tf.ones([2, 3])
        >>> bool(tf.reduce_all(feature_dropout(x, rate=0.0, seed=[0, 1]) == x))
        True
    """
    x = at_least_float32(x)
    if x.shape.rank != 2 or x.shape[1] is None:
        raise ValueError(f"`x` must have shape [B, D] with D known. Received: shape {x.shape}")
    kept = kept_features(tf.shape(x)[0], x.shape[1], rate=rate, seed=seed, first_row=first_row)
    return tf.where(kept, x, tf.zeros_like(x)) * tf.constant(1 / (1 - rate), x.dtype)


def checked_events(sequence: Tensor, mask: Tensor, name: str = "sequence") -> tuple[Tensor, Tensor]:
    """A sequence and its mask as tensors.

    Raises:
        ValueError: One is not float `[B, L, D]` with `D` known, or the other not bool `[B, L]`.
    """
    sequence, mask = tf.convert_to_tensor(sequence), tf.convert_to_tensor(mask)
    if sequence.shape.rank != 3 or sequence.shape[2] is None or not sequence.dtype.is_floating:
        raise ValueError(
            f"`{name}` must be float of shape [B, L, D] with D known. "
            f"Received: {sequence.dtype.name} of shape {sequence.shape}"
        )
    if mask.dtype != tf.bool or not mask.shape.is_compatible_with(sequence.shape[:2]):
        raise ValueError(
            f"`mask` must be bool of shape {sequence.shape[:2]}, True for a real event. "
            f"Received: {mask.dtype.name} of shape {mask.shape}"
        )
    return sequence, mask


def _pooled_fields(
    sequence: Mapping[str, Tensor], mask: Tensor
) -> tuple[Tensor, dict[str, int], Tensor]:
    """The pooled fields side by side in the order of their names, their sizes, the valid rows."""
    if not isinstance(sequence, Mapping) or len(sequence) < 2:
        received = sorted(sequence) if isinstance(sequence, Mapping) else type(sequence).__name__
        raise ValueError(
            "`sequence` must be a mapping from field to tensor with at least 2 fields. "
            f"Received: {received}"
        )
    fields = {}
    for field in sorted(sequence):
        fields[field], mask = checked_events(sequence[field], mask, f"sequence['{field}']")
    if len({x.dtype for x in fields.values()}) > 1:
        raise ValueError(
            "The fields of `sequence` must share a dtype. "
            f"Received: { {field: x.dtype.name for field, x in fields.items()} }"
        )
    pooled = tf.concat([masked_pool(x, mask) for x in fields.values()], axis=1)
    return pooled, {field: x.shape[2] for field, x in fields.items()}, tf.reduce_any(mask, axis=1)


def _per_dimension(field_mask: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """Repeats each field's entry of bool `[B, F]` over the field's dimensions."""
    return tf.gather(field_mask, np.repeat(np.arange(len(sizes)), list(sizes.values())), axis=1)


def _shared_out(x: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    zeros = tf.zeros_like(x)
    return tf.where(half, x, zeros), tf.where(half, zeros, x)
