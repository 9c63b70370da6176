"""MoCo: negatives from a queue of past keys instead of from the batch."""

import tensorflow as tf

from seqdenoise.losses.mean_log_odds import mean_log_odds
from seqdenoise.losses.pair_sums import Pairs
from seqdenoise.losses.pairs import (
    check_bool,
    check_shape,
    positive_scalar,
    similarity_limit,
    unit_rows,
    unit_views,
    whole_numbers,
)
from seqdenoise.numerics import Tensor, masked_shares


def moco_loss(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    queue: Tensor,
    queue_mask: Tensor,
    ids: Tensor | None = None,
    queue_ids: Tensor | None = None,
    weights: Tensor | None = None,
    temperature: float | Tensor = 0.07,
    max_similarity: float | None = None,
) -> Tensor:
    r"""MoCo: small when a query is closer to its own key than to the keys in the queue.

    $$ L_i = \log\Big(1 + \sum_{k \in N_i} e^{(s(a_i, q_k) - s(a_i, b_i)) / t}\Big) $$

    with `s` the cosine similarity, `t` the temperature and `N_i` the filled slots `q_k` of the
    queue that do not carry row `i`'s id. Other rows of the batch are no negatives. The result is
    the mean over anchors.

    An anchor is a row that is valid, has a direction in both views and a positive weight. Rows that
    are not valid, and slots that are not filled, may hold anything. With no anchor the loss is
    exactly 0 and so is its gradient; with an empty queue likewise.

    Args:
        view_a: Queries, float `[B, d]`. Half precision is computed in float32.
        view_b: Keys, float `[B, d]`. The gradient with respect to them is defined; what makes them
            (a momentum encoder) decides whether to pass it on.
        mask: bool `[B]`, True for a valid row.
        queue: float `[K, d]`, past keys; constant in the gradient.
        queue_mask: bool `[K]`, True for a filled slot.
        ids: Optional int or string `[B]`.
        queue_ids: Optional `[K]` of the dtype of `ids`, which it needs; a slot with the anchor's id
            is not its negative.
        weights: Optional non-negative float `[B]`, one per anchor.
        temperature: Above 0, typically 0.05 to 0.5; a number, or a scalar tensor to be learned.
        max_similarity: Optional cosine between -1 and 1. Slots more similar to the anchor than that
            are not its negatives.

    Returns:
        A scalar, float32, or float64 for float64 views.

    Raises:
        ValueError: A shape does not fit, an option is out of its range, or `queue_ids` comes
            without `ids`.

    References:
        He, Fan, Wu, Xie, Girshick (2020), "Momentum Contrast for Unsupervised Visual Representation
        Learning", equation 1 and algorithm 1, with known false negatives left out of the sum.

    Example:
        >>> a = tf.constant([[1.0, 0.0]])
        >>> queue = tf.constant([[0.0, 1.0], [0.0, 0.0]])
        >>> loss = moco_loss(
        ...     a, a, mask=[True], queue=queue, queue_mask=[True, False], temperature=1.0
        ... )
        >>> round(float(loss), 4)  # log(1 + exp(-1))
        0.3133
    """
    views = unit_views(view_a, view_b, mask=mask, ids=ids, weights=weights)
    temperature = positive_scalar("temperature", temperature, views.a.dtype)
    queue, queue_mask = tf.convert_to_tensor(queue), tf.convert_to_tensor(queue_mask)
    d = views.a.shape[1]
    check_shape("queue", queue, [None, d], f"[K, {d}]")
    slots = queue.shape[0]
    check_shape("queue_mask", queue_mask, [slots], f"[{slots}]")
    check_bool("queue_mask", queue_mask, "True for a filled slot")
    keys, has_direction = unit_rows(tf.stop_gradient(queue), queue_mask)
    keys = tf.cast(keys, views.a.dtype)
    pairs = Pairs(views.valid, queue_mask & has_direction)
    if queue_ids is not None:
        if views.ids is None:
            raise ValueError("`queue_ids` needs the `ids` of the rows. Received: ids=None")
        queue_ids = tf.convert_to_tensor(queue_ids)
        check_shape("queue_ids", queue_ids, [slots], f"[{slots}]")
        pairs = pairs._replace(differ=(tuple(whole_numbers(views.ids, queue_ids)),))

    scaled_a = views.a / temperature
    limit = similarity_limit(max_similarity, scaled_a.dtype, temperature)
    shares = masked_shares(views.valid, views.weights, scaled_a.dtype)
    return mean_log_odds(scaled_a, views.b, keys, shares, pairs, limit=limit)
