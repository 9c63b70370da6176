"""InfoNCE with several positives an anchor: more views of it, or rows of the same label."""

import tensorflow as tf

from seqdenoise.losses.log_sums import log_odds_loss, log_sum_exp
from seqdenoise.losses.pair_sums import log_pair_sums, pair_sums
from seqdenoise.losses.pairs import (
    candidate_pairs,
    more_positive_logits,
    other_positive_pairs,
    positive_scalar,
    similarity_limit,
    unit_views,
)
from seqdenoise.numerics import Tensor, masked_mean

_AVERAGES = ("inside", "outside")


def multi_positive_loss(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None = None,
    weights: Tensor | None = None,
    labels: Tensor | None = None,
    more_positives: Tensor | None = None,
    temperature: float | Tensor = 0.1,
    max_similarity: float | None = None,
    average: str = "inside",
) -> Tensor:
    r"""Small when an anchor is closer to its positives than to its negatives.

    $$ L_i^{inside} = -\log \frac{\sum_{p \in P_i} e^{s(a_i, p) / t}}{Z_i}, \quad
       L_i^{outside} = \frac{1}{|P_i|} \sum_{p \in P_i} -\log \frac{e^{s(a_i, p) / t}}{Z_i}, \quad
       Z_i = \sum_{p \in P_i} e^{s(a_i, p) / t} + \sum_{j \in N_i} e^{s(a_i, b_j) / t} $$

    with `s` the cosine similarity and `t` the temperature. The positives `P_i` are `b_i`, the `b_j`
    of the rows that share row `i`'s label, and `more_positives[i]`; the negatives `N_i` are the
    rows of `negative_pairs` that are not positives. `"inside"` asks for one near positive, however
    far the others are; `"outside"` pulls all of them, and with more than one its smallest value is
    not 0 but the logarithm of their number. The result is the mean over anchors.

    An anchor is a row that is valid, has a direction in both views and a positive weight. Rows that
    are not valid are neither anchors nor positives nor negatives and may hold anything. With no
    anchor the loss is exactly 0 and so is its gradient.

    Args:
        view_a: float `[B, d]`. Half precision is computed in float32.
        view_b: float `[B, d]`.
        mask: bool `[B]`, True for a valid row.
        ids: Optional int or string `[B]`; rows with equal ids are not each other's negatives.
        weights: Optional non-negative float `[B]`, one per anchor. A row of weight 0 is no anchor
            but stays a positive or negative of others.
        labels: Optional int `[B]`; rows with equal labels are each other's positives. A negative
            label is none: the row's own other view is its only positive.
        more_positives: Optional float `[B, P, d]`, further positives of each row. One without a
            direction does not count.
        temperature: Above 0, typically 0.05 to 0.5; a number, or a scalar tensor to be learned.
        max_similarity: Optional cosine between -1 and 1. Rows more similar to the anchor than that
            are not its negatives.
        average: `"inside"` or `"outside"` of the logarithm.

    Returns:
        A scalar, float32, or float64 for float64 views.

    Raises:
        ValueError: A shape does not fit, or an option is out of its range.

    References:
        `"inside"`: Kim, Tack, Hwang (2020), "Adversarial Self-Supervised Contrastive Learning",
        section 3; with labels also Khosla et al. (2020), "Supervised Contrastive Learning",
        equation 3, without its factor `1 / |P_i|` in the logarithm. `"outside"`: Khosla et al.,
        equation 2. There anchors and candidates are all vectors of both views; here anchors are of
        view A and candidates of view B. Known false negatives are left out of the sum.

    Example:
        >>> a = tf.constant([[1.0, 0.0], [0.0, 1.0]])
        >>> mask = tf.constant([True, True])
        >>> round(float(multi_positive_loss(a, a, mask=mask, temperature=1.0)), 4)
        0.3133
        >>> labels = tf.constant([3, 3])
        >>> float(multi_positive_loss(a, a, mask=mask, labels=labels, temperature=1.0))
        0.0
    """
    if average not in _AVERAGES:
        raise ValueError(f"`average` must be one of {_AVERAGES}. Received: {average!r}")
    views = unit_views(view_a, view_b, mask=mask, ids=ids, weights=weights)
    temperature = positive_scalar("temperature", temperature, views.a.dtype)
    scaled_a = views.a / temperature
    candidates = candidate_pairs(views)
    positive_logits = tf.reduce_sum(scaled_a * views.b, axis=1, keepdims=True)
    positives = tf.ones_like(positive_logits, tf.bool)
    if more_positives is not None:
        more_logits, present = more_positive_logits(views, scaled_a, more_positives)
        positive_logits = tf.concat([positive_logits, more_logits], axis=1)
        positives = tf.concat([positives, present], axis=1)
    log_positive = log_sum_exp(positive_logits, positives)
    same = None
    if labels is not None:
        same = other_positive_pairs(views.valid, labels)
        (log_others,), others = log_pair_sums(scaled_a, views.b, same)
        log_positive = log_sum_exp(
            tf.stack([log_positive, log_others], axis=1),
            tf.stack([tf.ones_like(others, tf.bool), others > 0], axis=1),
        )
        candidates = candidates._replace(differ=(*candidates.differ, *same.agree))
    limit = similarity_limit(max_similarity, log_positive.dtype, temperature)
    (log_negative,), _ = log_pair_sums(scaled_a, views.b, candidates, limit=limit)
    losses = log_odds_loss(log_positive, log_negative)
    if average == "outside":
        # What the mean over `p` of `-log(e_p / Z)` has beyond `-log(sum_p e_p / Z)`.
        count = tf.reduce_sum(tf.cast(positives, losses.dtype), axis=1)
        total = tf.reduce_sum(
            tf.where(positives, positive_logits, tf.zeros_like(positive_logits)), axis=1
        )
        if same is not None:
            others, number = pair_sums(views.b, same)
            count += number
            total += tf.reduce_sum(scaled_a * others, axis=1)
        excess = log_positive - total / count
        # Of a single positive it is 0, whose gradients, 1 and -1, would round off the small one
        # that they join.
        losses += tf.where(count > 1, excess, tf.zeros_like(excess))
    return masked_mean(losses, views.valid, views.weights)
