"""Triplet margin loss with mining, without forming the `B^3` triplets."""

import tensorflow as tf

from seqdenoise.losses.pairs import (
    UnitViews,
    drop_similar,
    negative_pairs,
    positive_scalar,
    same_label_pairs,
    unit_views,
)
from seqdenoise.numerics import Tensor

_MININGS = ("all", "semi_hard", "hard")

# A squared distance is a difference of numbers near 2. Below this it is their rounding error, whose
# square root would be a distance, with a gradient, between vectors that coincide.
_MIN_SQUARED_DISTANCE = 1e-14

# Distances to two copies of one vector differ by rounding, in the vectors if these are float32. So
# near each other they are equal, and their triplet neither hard nor semi-hard.
_TIE = 1e-6


def triplet_loss(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None = None,
    weights: Tensor | None = None,
    labels: Tensor | None = None,
    max_similarity: float | None = None,
    margin: float = 0.2,
    mining: str = "all",
) -> Tensor:
    r"""Triplet margin: small when an anchor is nearer to its positives than to its negatives.

    $$ L_{ipn} = \max(d(a_i, b_p) - d(a_i, b_n) + \alpha, 0) $$

    with `d` the Euclidean distance of unit vectors and `alpha` the margin. The positive `p` is row
    `i` itself and, with `labels`, each row of the same label; `n` is a negative of row `i` (see
    `negative_pairs`) that is not a positive. The result is the mean over the mined triplets:

    - `"all"`: those of `L > 0`;
    - `"semi_hard"`: `0 < L < alpha`, the negative is farther than the positive, within the margin;
    - `"hard"`: `L > alpha`, the negative is nearer than the positive.

    An anchor is a row that is valid, has a direction in both views and a positive weight. Rows that
    are not valid are neither anchors nor positives nor negatives and may hold anything. With no
    mined triplet the loss is exactly 0 and so is its gradient. Which triplets are mined is a
    constant in the gradient; the loss jumps where one enters or leaves the mean. Distances within
    1e-6 of each other count as equal, so copies of the positive are neither hard nor semi-hard.

    Args:
        view_a: float `[B, d]`. Half precision is computed in float32; distances always in float64.
        view_b: float `[B, d]`.
        mask: bool `[B]`, True for a valid row.
        ids: Optional int or string `[B]`; rows with equal ids are not each other's negatives.
        weights: Optional non-negative float `[B]`, the weight of each triplet of an anchor. A row
            of weight 0 is no anchor but stays a positive or negative of others.
        labels: Optional int `[B]`; rows with equal labels are each other's positives. A negative
            label is none: the row's own other view is its only positive.
        max_similarity: Optional cosine between -1 and 1. Rows more similar to the anchor than that
            are not its negatives.
        margin: `alpha`, above 0; distances are at most 2.
        mining: `"all"`, `"semi_hard"` or `"hard"`.

    Returns:
        A scalar, float32, or float64 for float64 views.

    Raises:
        ValueError: A shape does not fit, or an option is out of its range.

    References:
        Schroff, Kalenichenko, Philbin (2015), "FaceNet: A Unified Embedding for Face Recognition
        and Clustering", equations 2 and 4, with the distance instead of its square, and all
        semi-hard triplets instead of one a pair. The mean over the triplets that are not 0 is that
        of Hermans, Beyer, Leibe (2017), "In Defense of the Triplet Loss for Person
        Re-Identification".

    Example:
        >>> a = tf.constant([[1.0, 0.0], [0.0, 1.0]])
        >>> b = tf.constant([[0.0, 1.0], [0.0, 1.0]])
        >>> mask = tf.constant([True, True])
        >>> round(float(triplet_loss(a, b, mask=mask, margin=0.2)), 4)  # d = sqrt 2, sqrt 2; 0, 0
        0.2
    """
    if mining not in _MININGS:
        raise ValueError(f"`mining` must be one of {_MININGS}. Received: {mining!r}")
    views = unit_views(view_a, view_b, mask=mask, ids=ids, weights=weights)
    # Close vectors have close squares: float32 would keep half of the digits of their distance.
    a, b = tf.cast(views.a, tf.float64), tf.cast(views.b, tf.float64)
    alpha = positive_scalar("margin", margin, tf.float64)
    similarity = tf.matmul(a, b, transpose_b=True)
    own = _safe_sqrt(tf.reduce_sum(tf.math.squared_difference(a, b), axis=1))
    squares = tf.reduce_sum(a * a, axis=1)[:, tf.newaxis] + tf.reduce_sum(b * b, axis=1)
    distance = _safe_sqrt(squares - 2 * similarity)
    negatives = drop_similar(negative_pairs(views.valid, views.ids), similarity, max_similarity)
    if labels is None:
        totals, counts = _own_triplets(own, distance, negatives, alpha, mining)
    else:
        distance = tf.linalg.set_diag(distance, own)
        positives = same_label_pairs(views.valid, labels)
        negatives &= ~positives
        totals, counts = _label_triplets(distance, positives, negatives, alpha, mining)
    weight = _anchor_weights(views)
    total = tf.reduce_sum(weight * totals)
    mean = tf.math.divide_no_nan(total, tf.reduce_sum(weight * counts))
    # Without a mined triplet the quotient is 0 whatever the total is; a NaN must show all the same.
    return tf.cast(tf.where(tf.math.is_nan(total), total, mean), views.a.dtype)


def _safe_sqrt(squared: Tensor) -> Tensor:
    """The square root, 0 with gradient 0 where it is rounding error; NaN stays NaN."""
    same = squared <= _MIN_SQUARED_DISTANCE
    root = tf.sqrt(tf.where(same, tf.ones_like(squared), squared))
    return tf.where(same, tf.zeros_like(root), root)


def _anchor_weights(views: UnitViews) -> Tensor:
    ones = tf.ones_like(views.valid, tf.float64)
    weights = ones if views.weights is None else tf.cast(views.weights, tf.float64)
    return tf.where(views.valid, weights, tf.zeros_like(weights))


def _own_triplets(
    own: Tensor, distance: Tensor, negatives: Tensor, alpha: Tensor, mining: str
) -> tuple[Tensor, Tensor]:
    """Sum of the losses and number of the mined triplets of each anchor, its own view positive."""
    positive = own[:, tf.newaxis]
    mined = distance < (positive - _TIE if mining == "hard" else positive + alpha)
    if mining == "semi_hard":
        mined &= distance >= positive + tf.minimum(alpha, _TIE)
    # A NaN counts as mined, so that it shows.
    mined = negatives & (mined | tf.math.is_nan(positive + distance))
    losses = tf.where(mined, positive + alpha - distance, tf.zeros_like(distance))
    return tf.reduce_sum(losses, axis=1), tf.reduce_sum(tf.cast(mined, tf.float64), axis=1)


def _label_triplets(
    distance: Tensor, positives: Tensor, negatives: Tensor, alpha: Tensor, mining: str
) -> tuple[Tensor, Tensor]:
    """As `_own_triplets`, with any number of positives."""
    # Each pair of a positive and a negative has the loss `d_p + alpha - d_n`, mined or not.
    zeros = tf.zeros_like(distance)
    of_positives = tf.where(positives, distance + alpha, zeros)
    of_negatives = tf.where(negatives, -distance, zeros)
    farthest = distance - _TIE if mining == "hard" else distance + alpha
    totals, counts = _sum_below(
        farthest, distance, positives, negatives, of_positives, of_negatives
    )
    if mining == "semi_hard":
        nearest = distance + tf.minimum(alpha, _TIE)
        nearer = _sum_below(nearest, distance, positives, negatives, of_positives, of_negatives)
        totals, counts = totals - nearer[0], counts - nearer[1]
    return totals, counts


def _sum_below(
    threshold: Tensor,
    distance: Tensor,
    positives: Tensor,
    negatives: Tensor,
    of_positives: Tensor,
    of_negatives: Tensor,
) -> tuple[Tensor, Tensor]:
    """Sums over the pairs of a positive and a negative with `distance_n < threshold_p`, by row.

    A pair contributes `of_positives_p + of_negatives_n`. A value is added once for each of its
    pairs; how many it has is a rank in the sorted keys, so a sort a row does what a loop over the
    pairs would. Which pairs there are is a constant in the gradient.

    Args:
        threshold: `[B, B]`, of the positives.
        distance: `[B, B]`, of the negatives.
        positives: bool `[B, B]`.
        negatives: bool `[B, B]`.
        of_positives: `[B, B]`, 0 where `positives` is False.
        of_negatives: `[B, B]`, 0 where `negatives` is False.

    Returns:
        The sums `[B]`, and the numbers of pairs `[B]`.
    """
    # The sort is stable: a threshold stays before the distances that equal it.
    keys = tf.stop_gradient(tf.concat([threshold, distance], axis=1))
    order = tf.argsort(keys, axis=1, stable=True)
    nobody = tf.zeros_like(positives)
    positive = tf.gather(tf.concat([positives, nobody], axis=1), order, batch_dims=1)
    negative = tf.gather(tf.concat([nobody, negatives], axis=1), order, batch_dims=1)
    values = tf.gather(tf.concat([of_positives, of_negatives], axis=1), order, batch_dims=1)
    positive, negative = tf.cast(positive, values.dtype), tf.cast(negative, values.dtype)
    of_positive = positive * tf.cumsum(negative, axis=1)
    of_negative = negative * tf.cumsum(positive, axis=1, reverse=True)
    sums = tf.reduce_sum((of_positive + of_negative) * values, axis=1)
    return sums, tf.reduce_sum(of_positive, axis=1)
