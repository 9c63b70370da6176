"""What every loss starts from: checked inputs, unit vectors, and who is whose negative."""

from typing import Any, NamedTuple

import tensorflow as tf

from seqdenoise.losses.pair_sums import Limit, Pairs
from seqdenoise.numerics import Tensor, at_least_float32, l2_normalize


class UnitViews(NamedTuple):
    """The two views of a batch, checked, in float32 or float64.

    Attributes:
        a: `[B, d]`, unit vectors; zero where `valid` is False.
        b: `[B, d]`, likewise.
        valid: bool `[B]`, True for a row of the mask with a direction in both views.
        ids: int or string `[B]`, or None.
        weights: float `[B]`, or None.
    """

    a: Tensor
    b: Tensor
    valid: Tensor
    ids: Tensor | None
    weights: Tensor | None


def unit_views(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None,
    weights: Tensor | None,
) -> UnitViews:
    """Checks the arguments that all losses share, and scales the valid rows to unit length."""
    view_a, view_b = tf.convert_to_tensor(view_a), tf.convert_to_tensor(view_b)
    mask = tf.convert_to_tensor(mask)
    check_shape("view_a", view_a, [None, None], "[B, d]")
    rows = view_a.shape[0]
    check_shape("view_b", view_b, view_a.shape, f"{view_a.shape} like `view_a`")
    check_shape("mask", mask, [rows], f"[{rows}]")
    check_bool("mask", mask, "True for a valid row")
    unit_a, has_a = unit_rows(view_a, mask)
    unit_b, has_b = unit_rows(view_b, mask)
    valid = mask & has_a & has_b
    if weights is not None:
        weights = tf.cast(weights, unit_a.dtype)
        check_shape("weights", weights, [rows], f"[{rows}]")
    if ids is not None:
        ids = tf.convert_to_tensor(ids)
        check_shape("ids", ids, [rows], f"[{rows}]")
    # A row that is left out is zero in both views, also where one of them has a direction.
    return UnitViews(where_rows(valid, unit_a), where_rows(valid, unit_b), valid, ids, weights)


def check_shape(name: str, x: Tensor, expected: Any, words: str) -> None:
    """Raises a `ValueError` unless the static shape of `x` is compatible with the expected one."""
    if not x.shape.is_compatible_with(expected):
        raise ValueError(f"`{name}` must have shape {words}. Received: shape {x.shape}")


def check_bool(name: str, x: Tensor, words: str) -> None:
    """Raises a `ValueError` unless `x` is bool."""
    if x.dtype != tf.bool:
        raise ValueError(f"`{name}` must be bool, {words}. Received: {x.dtype}")


def positive_scalar(name: str, value: float | Tensor, dtype: Any) -> Tensor:
    """The option as a scalar of `dtype`; a Python number is checked to be above 0."""
    if isinstance(value, int | float):
        if not value > 0:
            raise ValueError(f"`{name}` must be above 0. Received: {value}")
        # `tf.cast` of a Python number would pass through float32.
        return tf.constant(value, dtype)
    return tf.cast(value, dtype)


def where_rows(mask: Tensor, x: Tensor) -> Tensor:
    """The rows of `x` `[B, ...]` whose mask is True, zeros for the others."""
    for _ in range(x.shape.rank - 1):
        mask = mask[..., tf.newaxis]
    return tf.where(mask, x, tf.zeros_like(x))


def unit_rows(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors along the last axis, and which of them have a direction.

    Rows are cleaned before any arithmetic: a `where` after it would still let the NaN of a masked
    row into the gradient.
    """
    return l2_normalize(where_rows(mask, at_least_float32(x)))


def negative_pairs(mask: Tensor, ids: Tensor | None = None) -> Tensor:
    """Says which rows may serve as negatives of which.

    Row `j` is a negative of anchor `i` when it is valid, is another row, and does not carry the
    anchor's id: two rows of one user (or one item) are no evidence of difference.

    Args:
        mask: bool `[B]`, True for a valid row.
        ids: Optional int or string `[B]`.

    Returns:
        bool `[B, B]`, anchors along the first axis.

    Example:
        >>> negative_pairs(tf.constant([True, True, True]), tf.constant([7, 7, 8])).numpy().tolist()
        [[False, False, True], [False, False, True], [True, True, False]]
    """
    valid = tf.logical_and(mask[:, tf.newaxis], mask[tf.newaxis, :])
    if ids is None:
        same = tf.eye(tf.shape(mask)[0], dtype=tf.bool)
    else:
        same = tf.equal(ids[:, tf.newaxis], ids[tf.newaxis, :])
    return tf.logical_and(valid, tf.logical_not(same))


def candidate_pairs(views: UnitViews) -> Pairs:
    """`negative_pairs` of a batch, as a condition rather than a matrix."""
    keys = tf.range(tf.shape(views.valid)[0]) if views.ids is None else whole_numbers(views.ids)[0]
    return Pairs(views.valid, views.valid, differ=((keys, keys),))


def whole_numbers(*ids: Tensor) -> list[Tensor]:
    """Ids that are strings as numbers, equal ones for equal ones; others as they are."""
    if ids[0].dtype != tf.string:
        return list(ids)
    numbers = tf.unique(tf.concat(ids, axis=0)).idx
    return tf.split(numbers, [tf.shape(x)[0] for x in ids])


def similarity_limit(
    max_similarity: float | None,
    dtype: Any,
    temperature: float | Tensor = 1.0,
    vectors: tuple[Tensor, Tensor] | None = None,
) -> Limit | None:
    """What `drop_similar` drops, as a condition: cosines to the anchor above the limit.

    Args:
        max_similarity: The largest cosine, or None for no limit.
        dtype: Of the vectors.
        temperature: What the cosines are divided by.
        vectors: Anchors and columns of the cosines, where other products are summed.

    Returns:
        The condition, or None.

    Raises:
        ValueError: The limit is no cosine between -1 and 1.
    """
    if max_similarity is None:
        return None
    _check_similarity(max_similarity)
    return Limit(tf.constant(max_similarity, dtype) / temperature, *(vectors or ()))


def drop_similar(
    negatives: Tensor,
    logits: Tensor,
    max_similarity: float | None,
    temperature: float | Tensor = 1.0,
) -> Tensor:
    """Drops the negatives whose cosine to the anchor, `logits * temperature`, is above the limit.

    So similar a row is taken for a false negative. The choice is a constant in the gradient.
    """
    if max_similarity is None:
        return negatives
    _check_similarity(max_similarity)
    limit = tf.constant(max_similarity, logits.dtype) / temperature
    # A NaN must stay among the negatives and surface in the loss. `~(logits > limit)` would say so
    # too, but graph optimisation makes that `logits <= limit`.
    return negatives & ((logits <= limit) | tf.math.is_nan(logits))


def _check_similarity(max_similarity: float) -> None:
    if not -1 < max_similarity < 1:
        raise ValueError(
            f"`max_similarity` must be a cosine between -1 and 1, or None to keep all negatives. "
            f"Received: {max_similarity}"
        )


def same_label_pairs(valid: Tensor, labels: Tensor) -> Tensor:
    """Says which rows are positives of which by their labels, every row of itself among them.

    Args:
        valid: bool `[B]`.
        labels: int `[B]`; a negative label is none.

    Returns:
        bool `[B, B]`, anchors along the first axis.
    """
    keys = _label_keys(valid, labels)
    return tf.equal(keys[:, tf.newaxis], keys[tf.newaxis, :])


def other_positive_pairs(valid: Tensor, labels: Tensor) -> Pairs:
    """`same_label_pairs` without each row's own, as a condition rather than a matrix."""
    keys = _label_keys(valid, labels)
    rows = tf.range(tf.shape(keys)[0])
    return Pairs(valid, valid, differ=((rows, rows),), agree=((keys, keys),))


def _label_keys(valid: Tensor, labels: Tensor) -> Tensor:
    """The labels as int64, one of its own for a row that has none."""
    labels = tf.convert_to_tensor(labels)
    check_shape("labels", labels, valid.shape, f"[{valid.shape[0]}]")
    if not labels.dtype.is_integer:
        raise ValueError(
            f"`labels` must be integers, negative for a row without a label. "
            f"Received: {labels.dtype}"
        )
    labels = tf.cast(labels, tf.int64)
    own = -1 - tf.range(tf.shape(labels, out_type=tf.int64)[0])
    return tf.where(valid & (labels >= 0), labels, own)


def more_positive_logits(
    views: UnitViews, scaled_a: Tensor, more_positives: Tensor
) -> tuple[Tensor, Tensor]:
    """Cosines over the temperature of each anchor to its further positives.

    Args:
        views: The batch.
        scaled_a: `[B, d]`, the anchors over the temperature.
        more_positives: float `[B, P, d]`.

    Returns:
        `[B, P]`; and bool `[B, P]`, False for a positive without a direction and in a row that is
        not valid.
    """
    more_positives = tf.convert_to_tensor(more_positives)
    rows, d = views.a.shape
    check_shape("more_positives", more_positives, [rows, None, d], f"[{rows}, P, {d}]")
    unit, present = unit_rows(more_positives, views.valid)
    return tf.reduce_sum(scaled_a[:, tf.newaxis] * unit, axis=2), present
