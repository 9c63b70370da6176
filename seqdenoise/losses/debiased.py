"""Losses that correct for unknown false negatives, and for how hard the negatives are."""

from typing import Any, NamedTuple

import tensorflow as tf

from seqdenoise.losses.log_sums import log_odds_loss, log_sum_exp
from seqdenoise.losses.pair_sums import log_pair_sums
from seqdenoise.losses.pairs import (
    UnitViews,
    candidate_pairs,
    more_positive_logits,
    positive_scalar,
    similarity_limit,
    unit_views,
)
from seqdenoise.numerics import Tensor, masked_mean


def debiased_loss(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None = None,
    weights: Tensor | None = None,
    more_positives: Tensor | None = None,
    temperature: float | Tensor = 0.5,
    max_similarity: float | None = None,
    tau_plus: float | Tensor = 0.1,
) -> Tensor:
    r"""Debiased contrastive loss: small when a row's views are closer than true negatives are.

    A share `tau_plus` of the other rows is expected to be false negatives. What they add to the sum
    over the negatives is estimated from the positives and taken off:

    $$ g_i = \max\Big(\frac{1}{1 - \tau^+} \Big(\frac{1}{|N_i|} \sum_{j \in N_i} e^{s(a_i, b_j) / t}
       - \frac{\tau^+}{|P_i|} \sum_{v \in P_i} e^{s(a_i, v) / t}\Big), e^{-1/t}\Big), \quad
       L_i = \log\Big(1 + |N_i| g_i e^{-s(a_i, b_i) / t}\Big) $$

    with `s` the cosine similarity, `t` the temperature, `N_i` the negatives of row `i` (see
    `negative_pairs`) and `P_i` its positives `b_i` and `more_positives[i]`. The floor `e^{-1/t}` is
    the least that an expectation of `e^{s/t}` can be. All of it is computed in the log domain. With
    `tau_plus=0` it is exactly `info_nce_loss`. A row without negatives has loss 0. The result is
    the mean over anchors.

    An anchor is a row that is valid, has a direction in both views and a positive weight. Rows that
    are not valid are neither anchors nor negatives and may hold anything. With no anchor the loss
    is exactly 0 and so is its gradient.

    An anchor at the floor has no gradient from its negatives. At small temperatures and with close
    views that is easily every anchor: watch `clamped_rate`.

    Args:
        view_a: float `[B, d]`. Half precision is computed in float32.
        view_b: float `[B, d]`.
        mask: bool `[B]`, True for a valid row.
        ids: Optional int or string `[B]`; rows with equal ids are not each other's negatives.
        weights: Optional non-negative float `[B]`, one per anchor. A row of weight 0 is no anchor
            but stays a negative.
        more_positives: Optional float `[B, P, d]`, further positives of each row, for the estimate
            alone. One without a direction does not count.
        temperature: Above 0, typically 0.05 to 0.5; a number, or a scalar tensor to be learned.
        max_similarity: Optional cosine between -1 and 1. Rows more similar to the anchor than that
            are not its negatives.
        tau_plus: Share of false negatives among the negatives, in [0, 1); a number or a scalar
            tensor.

    Returns:
        A scalar, float32, or float64 for float64 views.

    Raises:
        ValueError: A shape does not fit, or an option is out of its range.

    References:
        Chuang, Robinson, Lin, Torralba, Jegelka (2020), "Debiased Contrastive Learning", equations
        7 and 8, with known false negatives left out of the sum.

    Example:
        >>> a = tf.constant([[1.0, 0.0], [0.0, 1.0]])
        >>> mask = tf.constant([True, True])
        >>> round(float(debiased_loss(a, a, mask=mask, temperature=1.0, tau_plus=0.0)), 4)
        0.3133
        >>> loss = debiased_loss(a, a, mask=mask, temperature=1.0, tau_plus=0.1)
        >>> round(float(loss), 4)  # log(1 + (1 - 0.1 e) / 0.9 / e)
        0.2606
    """
    views = unit_views(view_a, view_b, mask=mask, ids=ids, weights=weights)
    estimate = _estimate(
        views,
        more_positives=more_positives,
        temperature=temperature,
        max_similarity=max_similarity,
        tau_plus=tau_plus,
        beta=0.0,
    )
    losses = log_odds_loss(estimate.positive, estimate.log_negatives)
    return masked_mean(losses, views.valid, views.weights)


def hard_negative_loss(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None = None,
    weights: Tensor | None = None,
    more_positives: Tensor | None = None,
    temperature: float | Tensor = 0.5,
    max_similarity: float | None = None,
    tau_plus: float | Tensor = 0.1,
    beta: float = 1.0,
) -> Tensor:
    r"""Debiased loss with hard negatives: small when a row's views beat the nearest other rows.

    As `debiased_loss`, with every mean of `e^{s/t}` taken under weights that grow with similarity:

    $$ g_i = \max\Big(\frac{h(N_i) - \tau^+ h(P_i)}{1 - \tau^+}, e^{-1/t}\Big), \quad
       h(S) = \frac{\sum_{v \in S} e^{(1 + \beta) s(a_i, v) / t}}
                   {\sum_{v \in S} e^{\beta s(a_i, v) / t}}, \quad
       L_i = \log\Big(1 + |N_i| g_i e^{-s(a_i, b_i) / t}\Big) $$

    with `s` the cosine similarity, `t` the temperature, `N_i` the negatives of row `i` (see
    `negative_pairs`) and `P_i` its positives `b_i` and `more_positives[i]`. The gradient flows
    through the weights. With `beta=0` it is exactly `debiased_loss`. A row without negatives has
    loss 0. The result is the mean over anchors.

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
        more_positives: Optional float `[B, P, d]`, further positives of each row, for the estimate
            alone. One without a direction does not count.
        temperature: Above 0, typically 0.05 to 0.5; a number, or a scalar tensor to be learned.
        max_similarity: Optional cosine between -1 and 1. Rows more similar to the anchor than that
            are not its negatives.
        tau_plus: Share of false negatives among the negatives, in [0, 1); a number or a scalar
            tensor.
        beta: Concentration on the hard negatives, at least 0.

    Returns:
        A scalar, float32, or float64 for float64 views.

    Raises:
        ValueError: A shape does not fit, or an option is out of its range.

    References:
        Robinson, Chuang, Sra, Jegelka (2021), "Contrastive Learning with Hard Negative Samples",
        equation 4 with its importance weights, `beta` times the logit over the temperature in the
        exponent, and with known false negatives left out of the sum.

    Example:
        >>> a = tf.constant([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> mask = tf.constant([True, True, True])
        >>> float(hard_negative_loss(a, a, mask=mask)) > float(debiased_loss(a, a, mask=mask))
        True
    """
    views = unit_views(view_a, view_b, mask=mask, ids=ids, weights=weights)
    estimate = _estimate(
        views,
        more_positives=more_positives,
        temperature=temperature,
        max_similarity=max_similarity,
        tau_plus=tau_plus,
        beta=beta,
    )
    losses = log_odds_loss(estimate.positive, estimate.log_negatives)
    return masked_mean(losses, views.valid, views.weights)


def clamped_rate(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None = None,
    more_positives: Tensor | None = None,
    temperature: float | Tensor,
    tau_plus: float | Tensor,
    beta: float = 0.0,
    max_similarity: float | None = None,
) -> Tensor:
    """Share of anchors at the floor of `debiased_loss` or `hard_negative_loss`.

    They learn nothing from their negatives: a high share says that `tau_plus` or one over the
    temperature is too large for views as close as these.

    Args:
        view_a: float `[B, d]`.
        view_b: float `[B, d]`.
        mask: bool `[B]`, True for a valid row.
        ids: Optional, as in the loss.
        more_positives: Optional, as in the loss.
        temperature: As in the loss.
        tau_plus: As in the loss.
        beta: As in `hard_negative_loss`; 0 for `debiased_loss`.
        max_similarity: Optional, as in the loss.

    Returns:
        A scalar in [0, 1], float32, or float64 for float64 views; 0 without anchors.

    Example:
        >>> a = tf.constant([[1.0, 0.0], [0.0, 1.0]])
        >>> mask = tf.constant([True, True])
        >>> float(clamped_rate(a, a, mask=mask, temperature=0.1, tau_plus=0.1))
        1.0
    """
    views = unit_views(view_a, view_b, mask=mask, ids=ids, weights=None)
    estimate = _estimate(
        views,
        more_positives=more_positives,
        temperature=temperature,
        max_similarity=max_similarity,
        tau_plus=tau_plus,
        beta=beta,
    )
    return masked_mean(tf.cast(estimate.at_floor, views.a.dtype), views.valid)


class _Estimate(NamedTuple):
    """Per row: the positive's logit, `log(|N| g)`, and whether `g` is at its floor."""

    positive: Tensor
    log_negatives: Tensor
    at_floor: Tensor


def _estimate(
    views: UnitViews,
    *,
    more_positives: Tensor | None,
    temperature: float | Tensor,
    max_similarity: float | None,
    tau_plus: float | Tensor,
    beta: float,
) -> _Estimate:
    if not beta >= 0:
        raise ValueError(f"`beta` must be at least 0. Received: {beta}")
    dtype = views.a.dtype
    temperature = positive_scalar("temperature", temperature, dtype)
    tau_plus = _probability("tau_plus", tau_plus, dtype)
    scaled_a = views.a / temperature
    positive = tf.reduce_sum(scaled_a * views.b, axis=1)
    positive_logits = positive[:, tf.newaxis]
    positives = tf.ones_like(positive_logits, tf.bool)
    if more_positives is not None:
        more_logits, present = more_positive_logits(views, scaled_a, more_positives)
        positive_logits = tf.concat([positive_logits, more_logits], axis=1)
        positives = tf.concat([positives, present], axis=1)

    zeros, minus_infinity = tf.zeros_like(positive), tf.constant(float("-inf"), dtype)
    (weighted, weights), count = log_pair_sums(
        scaled_a,
        views.b,
        candidate_pairs(views),
        limit=similarity_limit(max_similarity, dtype, temperature),
        powers=(1 + beta, beta),
    )
    has_negatives = count > 0
    log_count = tf.math.log(tf.maximum(count, 1.0))
    # log(N h(N)), the sum of the negatives as observed, and log(N h(P)). The order of the terms
    # matters: with beta 0 the last two cancel exactly, which leaves InfoNCE's own sum.
    observed = weighted + (log_count - tf.where(has_negatives, weights, zeros))
    observed = tf.where(has_negatives, observed, zeros)
    same = log_count + (
        log_sum_exp((1 + beta) * positive_logits, positives)
        - log_sum_exp(beta * positive_logits, positives)
    )

    # observed + log((1 - share) / (1 - tau)), with `share` that of the false negatives in the sum.
    # Each `where` comes before the logarithm whose gradient would be infinite where it is not used.
    prior = tau_plus > 0
    log_tau = tf.where(prior, tf.math.log(tf.where(prior, tau_plus, 1.0)), minus_infinity)
    log_share = log_tau + same - observed
    exhausted = tf.exp(log_share) >= 1
    share = tf.exp(tf.where(exhausted, minus_infinity, log_share))
    corrected = observed + tf.math.log1p(-share) - tf.math.log1p(-tau_plus)
    floor = log_count - 1 / temperature
    at_floor = prior & has_negatives & (exhausted | (corrected < floor))
    log_negatives = tf.where(at_floor, floor, corrected)
    return _Estimate(positive, tf.where(has_negatives, log_negatives, minus_infinity), at_floor)


def _probability(name: str, value: float | Tensor, dtype: Any) -> Tensor:
    if isinstance(value, int | float):
        if not 0 <= value < 1:
            raise ValueError(f"`{name}` must be in [0, 1). Received: {value}")
        return tf.constant(value, dtype)
    return tf.cast(value, dtype)
