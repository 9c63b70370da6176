"""NT-Xent: InfoNCE over both views at once, the loss of SimCLR."""

import tensorflow as tf

from seqdenoise.losses.mean_log_odds import mean_log_odds
from seqdenoise.losses.pair_sums import Pairs
from seqdenoise.losses.pairs import (
    candidate_pairs,
    positive_scalar,
    similarity_limit,
    unit_views,
)
from seqdenoise.numerics import Tensor, masked_shares


def nt_xent_loss(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None = None,
    weights: Tensor | None = None,
    temperature: float | Tensor = 0.1,
    max_similarity: float | None = None,
) -> Tensor:
    r"""NT-Xent: small when the views of a row are closer to each other than to views of others.

    Of the `2B` vectors `z` of both views each is an anchor once, its row's other view the positive:

    $$ l_{a_i} = \log\Big(1 + \sum_{j \in N_i} \sum_{z \in \{a_j, b_j\}}
       e^{(s(a_i, z) - s(a_i, b_i)) / t}\Big), \quad
       L = \frac{1}{2B} \sum_i (l_{a_i} + l_{b_i}) $$

    with `s` the cosine similarity, `t` the temperature, `N_i` the negatives of row `i` (see
    `negative_pairs`) and `l_{b_i}` as `l_{a_i}` with the views swapped.

    An anchor's row is valid, has a direction in both views and a positive weight. Rows that are not
    valid are neither anchors nor negatives and may hold anything. With no anchor the loss is
    exactly 0 and so is its gradient.

    Args:
        view_a: float `[B, d]`. Half precision is computed in float32.
        view_b: float `[B, d]`.
        mask: bool `[B]`, True for a valid row.
        ids: Optional int or string `[B]`; neither view of a row with the anchor's id is a negative.
        weights: Optional non-negative float `[B]`, each for both anchors of a row. A row of weight
            0 is no anchor but stays a negative.
        temperature: Above 0, typically 0.05 to 0.5; a number, or a scalar tensor to be learned.
        max_similarity: Optional cosine between -1 and 1. Vectors more similar to the anchor than
            that are not its negatives.

    Returns:
        A scalar, float32, or float64 for float64 views.

    Raises:
        ValueError: A shape does not fit, or an option is out of its range.

    References:
        Chen, Kornblith, Norouzi, Hinton (2020), "A Simple Framework for Contrastive Learning of
        Visual Representations", equation 1 and algorithm 1, with known false negatives left out of
        the sum.

    Example:
        >>> a = tf.constant([[1.0, 0.0], [0.0, 1.0]])
        >>> mask = tf.constant([True, True])
        >>> round(float(nt_xent_loss(a, a, mask=mask, temperature=1.0)), 4)  # log(1 + 2 exp(-1))
        0.5514
    """
    views = unit_views(view_a, view_b, mask=mask, ids=ids, weights=weights)
    temperature = positive_scalar("temperature", temperature, views.a.dtype)
    vectors = tf.concat([views.a, views.b], axis=0)
    # A row is not among its own negatives, which keeps an anchor apart from itself as well.
    ((keys, _),) = candidate_pairs(views).differ
    keys, valid = tf.tile(keys, [2]), tf.tile(views.valid, [2])
    pairs = Pairs(valid, valid, differ=((keys, keys),))
    limit = similarity_limit(max_similarity, vectors.dtype, temperature)
    shares = masked_shares(views.valid, views.weights, vectors.dtype)
    return mean_log_odds(
        vectors / temperature,
        tf.concat([views.b, views.a], axis=0),
        vectors,
        tf.tile(shares / 2, [2]),
        pairs,
        limit=limit,
    )
