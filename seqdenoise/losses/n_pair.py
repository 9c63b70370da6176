"""N-pair loss: InfoNCE without a temperature."""

from seqdenoise.losses.mean_log_odds import mean_log_odds
from seqdenoise.losses.pairs import candidate_pairs, similarity_limit, unit_views, where_rows
from seqdenoise.numerics import Tensor, at_least_float32, masked_shares


def n_pair_loss(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None = None,
    weights: Tensor | None = None,
    max_similarity: float | None = None,
    normalize: bool = True,
) -> Tensor:
    r"""N-pair: small when a row's views have a larger product than the row has with others.

    $$ L_i = \log\Big(1 + \sum_{j \in N_i} e^{s(a_i, b_j) - s(a_i, b_i)}\Big) $$

    with `s` the cosine similarity or, with `normalize=False`, the inner product, and `N_i` the
    negatives of row `i` (see `negative_pairs`). The result is the mean over anchors.

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
            are not its negatives; the cosine counts also where the loss takes inner products.
        normalize: Whether to scale the vectors to unit length. Without it their products must fit
            the dtype, and large vectors alone can make the loss small.

    Returns:
        A scalar, float32, or float64 for float64 views.

    Raises:
        ValueError: A shape does not fit, or an option is out of its range.

    References:
        Sohn (2016), "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", section
        3.2, the N-pair-mc loss, without its penalty on the length of the vectors, and with known
        false negatives left out of the sum.

    Example:
        >>> import tensorflow as tf
        >>> a = tf.constant([[2.0, 0.0], [0.0, 2.0]])
        >>> mask = tf.constant([True, True])
        >>> round(float(n_pair_loss(a, a, mask=mask)), 4)  # log(1 + exp(-1))
        0.3133
        >>> round(float(n_pair_loss(a, a, mask=mask, normalize=False)), 4)  # log(1 + exp(-4))
        0.0181
    """
    views = unit_views(view_a, view_b, mask=mask, ids=ids, weights=weights)
    a, b = views.a, views.b
    if not normalize:
        a = where_rows(views.valid, at_least_float32(view_a))
        b = where_rows(views.valid, at_least_float32(view_b))
    vectors = None if normalize else (views.a, views.b)
    limit = similarity_limit(max_similarity, a.dtype, vectors=vectors)
    shares = masked_shares(views.valid, views.weights, a.dtype)
    return mean_log_odds(a, b, b, shares, candidate_pairs(views), limit=limit)
