"""Contrastive losses: pure functions of two views, all with one signature.

`(view_a, view_b, *, mask, ids=None, weights=None, temperature, ...) -> scalar`
"""

import tensorflow as tf

from seqdenoise.numerics import Tensor, at_least_float32, l2_normalize, masked_mean


def _check_shape(name: str, x: Tensor, expected: list[int | None], words: str) -> None:
    if not x.shape.is_compatible_with(expected):
        raise ValueError(f"`{name}` must have shape {words}. Received: shape {x.shape}")


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


def _one_way(similarity: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
    """`log(1 + sum_j exp(similarity_ij - positive_i))` over the negatives, each `[B]`.

    Neither overflows nor cancels: the sum is shifted by its largest term where that is above 1.
    """
    # exp(-inf) is 0 with gradient 0, so a row that is no negative counts for exactly nothing.
    logits = tf.where(negatives, similarity, tf.constant(float("-inf"), similarity.dtype))
    highest = tf.reduce_max(logits, axis=1)
    shift = tf.stop_gradient(tf.maximum(highest - positive, 0.0))
    total = tf.reduce_sum(tf.exp(logits - (positive + shift)[:, tf.newaxis]), axis=1)
    # With shift 0 this is log1p(total), which keeps the small losses of well separated rows.
    return shift + tf.math.log1p(tf.math.expm1(-shift) + total)


def info_nce_loss(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None = None,
    weights: Tensor | None = None,
    temperature: float | Tensor = 0.1,
    symmetric: bool = False,
) -> Tensor:
    r"""InfoNCE: small when the two views of a row are closer to each other than to other rows.

    $$ L_i = \log\Big(1 + \sum_{j \in N_i} e^{(s(a_i, b_j) - s(a_i, b_i)) / t}\Big) $$

    with `s` the cosine similarity, `t` the temperature and `N_i` the negatives of row `i` (see
    `negative_pairs`): minus the log of the softmax probability of `b_i` among `b_i` and the
    negatives. Writing it with the positive outside the sum keeps the gradient exact at small
    temperatures. The result is the mean over anchors.

    An anchor is a row that is valid, has a direction in both views and a positive weight. Rows that
    are not valid are neither anchors nor negatives and may hold anything. With no anchor the loss
    is exactly 0 and so is its gradient.

    Args:
        view_a: float `[B, d]`. Half precision is computed in float32.
        view_b: float `[B, d]`.
        mask: bool `[B]`, True for a valid row.
        ids: Optional int or string `[B]`; rows with equal ids are not each other's negatives.
        weights: Optional non-negative float `[B]`, one per anchor. A row of weight 0 is no anchor
            but stays a negative.
        temperature: Above 0, typically 0.05 to 0.5.
        symmetric: Averages the loss with that of the swapped views.

    Returns:
        A scalar, float32, or float64 for float64 views.

    Raises:
        ValueError: A shape does not fit, or `temperature` is not above 0.

    References:
        van den Oord, Li, Vinyals (2018), "Representation Learning with Contrastive Predictive
        Coding", equation 4, with cosine similarity and a temperature for the density ratio, and
        with known false negatives left out of the sum.

    Example:
        >>> a = tf.constant([[1.0, 0.0], [0.0, 1.0]])
        >>> mask = tf.constant([True, True])
        >>> round(float(info_nce_loss(a, a, mask=mask, temperature=1.0)), 4)  # log(1 + exp(-1))
        0.3133
        >>> float(info_nce_loss(a, a, mask=mask, ids=tf.constant([5, 5]), temperature=1.0))
        0.0
    """
    view_a, view_b = tf.convert_to_tensor(view_a), tf.convert_to_tensor(view_b)
    mask = tf.convert_to_tensor(mask)
    _check_shape("view_a", view_a, [None, None], "[B, d]")
    rows = view_a.shape[0]
    _check_shape("view_b", view_b, view_a.shape, f"{view_a.shape} like `view_a`")
    _check_shape("mask", mask, [rows], f"[{rows}]")
    if mask.dtype != tf.bool:
        raise ValueError(f"`mask` must be bool, True for a valid row. Received: {mask.dtype}")
    if isinstance(temperature, int | float):
        if not temperature > 0:
            raise ValueError(f"`temperature` must be above 0. Received: {temperature}")
        # `tf.cast` of a Python number would pass through float32.
        temperature = tf.constant(temperature, at_least_float32(view_a).dtype)

    # Cleaned before any arithmetic: a `where` after it would still let NaN into the gradient.
    row_mask = mask[:, tf.newaxis]
    unit_a, has_a = l2_normalize(tf.where(row_mask, view_a, tf.zeros_like(view_a)))
    unit_b, has_b = l2_normalize(tf.where(row_mask, view_b, tf.zeros_like(view_b)))
    valid = mask & has_a & has_b
    if weights is not None:
        weights = tf.cast(weights, unit_a.dtype)
        _check_shape("weights", weights, [rows], f"[{rows}]")
    if ids is not None:
        ids = tf.convert_to_tensor(ids)
        _check_shape("ids", ids, [rows], f"[{rows}]")

    scaled_a = unit_a / tf.cast(temperature, unit_a.dtype)
    positive = tf.reduce_sum(scaled_a * unit_b, axis=1)
    similarity = tf.matmul(scaled_a, unit_b, transpose_b=True)
    negatives = negative_pairs(valid, ids)
    losses = _one_way(similarity, positive, negatives)
    if symmetric:
        losses = (losses + _one_way(tf.transpose(similarity), positive, negatives)) / 2
    return masked_mean(losses, valid, weights)
