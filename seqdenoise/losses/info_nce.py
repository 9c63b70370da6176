"""InfoNCE: softmax cross-entropy of the positive among itself and the other rows."""

import tensorflow as tf

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
    max_negatives: int | None = None,
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
        max_negatives: Optional largest number of negatives of an anchor, at least 1. The batch is
            cut into blocks of rows that follow one another, of about equal size, and only rows of
            one block meet: work grows with `B`, not with its square, and the result depends on the
            order of the rows. With another number of negatives the loss is another.
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
    rows = _rows_that_meet(views.valid, max_negatives)

    def from_anchors(a: Tensor, b: Tensor) -> Tensor:
        return mean_log_odds(a, b, b, shares, pairs, limit=limit, diagonal_rows=rows)

    loss = from_anchors(scaled_a, views.b)
    if symmetric:
        # Both conditions are symmetric: they hold for the swapped views too.
        loss = (loss + from_anchors(views.b, scaled_a)) / 2
    return loss


def num_blocks(num_rows: Tensor | int, max_negatives: int) -> Tensor | int:
    """How many blocks `info_nce_loss` cuts a batch into.

    Args:
        num_rows: The batch's rows, a number or an int scalar tensor.
        max_negatives: As there.

    Returns:
        At least 1, likewise a number or a tensor.

    Raises:
        ValueError: `max_negatives` is below 1.
    """
    if max_negatives < 1:
        raise ValueError(f"`max_negatives` must be at least 1. Received: {max_negatives}")
    count = -(-num_rows // (max_negatives + 1))
    return max(1, count) if isinstance(count, int) else tf.maximum(1, count)


def _rows_that_meet(valid: Tensor, max_negatives: int | None) -> Tensor | int | None:
    if max_negatives is None:
        return None
    rows = tf.shape(valid)[0] if valid.shape[0] is None else valid.shape[0]
    count = num_blocks(rows, max_negatives)
    size = -(-rows // count)
    return max(1, size) if isinstance(size, int) else tf.maximum(1, size)
