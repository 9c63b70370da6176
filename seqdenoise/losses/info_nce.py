"""InfoNCE: softmax cross-entropy of the positive among itself and the other rows."""

from seqdenoise.losses.mean_log_odds import mean_log_odds
from seqdenoise.losses.pairs import (
    candidate_pairs,
    positive_scalar,
    similarity_limit,
    unit_views,
)
from seqdenoise.numerics import Tensor, masked_shares


def info_nce_loss(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None = None,
    weights: Tensor | None = None,
    temperature: float | Tensor = 0.1,
    max_similarity: float | None = None,
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
        temperature: Above 0, typically 0.05 to 0.5; a number, or a scalar tensor to be learned.
        max_similarity: Optional cosine between -1 and 1. Rows more similar to the anchor than that
            are not its negatives.
        symmetric: Averages the loss with that of the swapped views.

    Returns:
        A scalar, float32, or float64 for float64 views.

    Raises:
        ValueError: A shape does not fit, or an option is out of its range.

    References:
        van den Oord, Li, Vinyals (2018), "Representation Learning with Contrastive Predictive
        Coding", equation 4, with cosine similarity and a temperature for the density ratio, and
        with known false negatives left out of the sum.

    Example:
        >>> import tensorflow as tf
        >>> a = tf.constant([[1.0, 0.0], [0.0, 1.0]])
        >>> mask = tf.constant([True, True])
        >>> round(float(info_nce_loss(a, a, mask=mask, temperature=1.0)), 4)  # log(1 + exp(-1))
        0.3133
        >>> float(info_nce_loss(a, a, mask=mask, ids=tf.constant([5, 5]), temperature=1.0))
        0.0
    """
    views = unit_views(view_a, view_b, mask=mask, ids=ids, weights=weights)
    temperature = positive_scalar("temperature", temperature, views.a.dtype)
    scaled_a = views.a / temperature
    pairs = candidate_pairs(views)
    limit = similarity_limit(max_similarity, scaled_a.dtype, temperature)
    shares = masked_shares(views.valid, views.weights, scaled_a.dtype)
    loss = mean_log_odds(scaled_a, views.b, views.b, shares, pairs, limit=limit)
    if symmetric:
        # Both conditions are symmetric: they hold for the swapped views too.
        swapped = mean_log_odds(views.b, scaled_a, scaled_a, shares, pairs, limit=limit)
        loss = (loss + swapped) / 2
    return loss
