"""The "simple" contrastive loss: similarities without exponentials."""

import tensorflow as tf

from seqdenoise.losses.pair_sums import pair_sums
from seqdenoise.losses.pairs import candidate_pairs, similarity_limit, unit_views
from seqdenoise.numerics import Tensor, masked_mean


def simple_contrastive_loss(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None = None,
    weights: Tensor | None = None,
    max_similarity: float | None = None,
    negative_weight: float | None = None,
) -> Tensor:
    r"""Small (down to -2) when a row's views are similar and the row is dissimilar to others.

    $$ L_i = -s(a_i, b_i) + \lambda \sum_{j \in N_i} s(a_i, b_j) $$

    with `s` the cosine similarity and `N_i` the negatives of row `i` (see `negative_pairs`). All
    negatives count alike, however hard. With `lambda = 1 / |N_i|` it is what the gradient of
    InfoNCE tends to, up to a factor, as the temperature grows. The result is the mean over anchors.

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
        max_similarity: Optional cosine between -1 and 1. Rows more similar to the anchor than that
            are not its negatives.
        negative_weight: `lambda`, at least 0. None is `1 / |N_i|`, which makes the second term a
            mean; a number makes it grow with the batch, and the loss fall below -2.

    Returns:
        A scalar, float32, or float64 for float64 views.

    Raises:
        ValueError: A shape does not fit, or an option is out of its range.

    References:
        Wang, Liu (2021), "Understanding the Behaviour of Contrastive Loss", equation 5, with
        cosines, and with known false negatives left out of the sum.

    Example:
        >>> a = tf.constant([[1.0, 0.0], [0.0, 1.0]])
        >>> float(simple_contrastive_loss(a, a, mask=tf.constant([True, True])))
        -1.0
    """
    if negative_weight is not None and not negative_weight >= 0:
        raise ValueError(f"`negative_weight` must be at least 0. Received: {negative_weight}")
    views = unit_views(view_a, view_b, mask=mask, ids=ids, weights=weights)
    positive = tf.reduce_sum(views.a * views.b, axis=1)
    limit = similarity_limit(max_similarity, positive.dtype, vectors=(views.a, views.b))
    others, count = pair_sums(views.b, candidate_pairs(views), limit=limit)
    total = tf.reduce_sum(views.a * others, axis=1)
    if negative_weight is None:
        repulsion = total / tf.maximum(count, 1.0)
    else:
        repulsion = tf.constant(negative_weight, total.dtype) * total
    return masked_mean(repulsion - positive, views.valid, views.weights)
