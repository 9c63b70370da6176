"""What is transported onto what: view onto view, or a row's events onto its trusted ones."""

from typing import Any

import tensorflow as tf

from seqdenoise.numerics import Tensor, at_least_float32
from seqdenoise.transport.cosine import cosine_transport
from seqdenoise.transport.sinkhorn import Transport


def view_transport(
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    weights: Tensor | None = None,
    **options: Any,
) -> Transport:
    """Transport of all rows' views A onto all rows' views B, at cost `1 - cosine`.

    Its cost is 0 when each view A can be given a view B of its own that equals it, not necessarily
    that of its row: it aligns the two sets of vectors, where a contrastive loss aligns pairs.

    Args:
        view_a: float `[B, d]`.
        view_b: float `[B, d]`.
        mask: bool `[B]`, True for a valid row; the others carry no mass.
        weights: Optional non-negative float `[B]`; the mass of a row is its share of their sum.
            Without them, all valid rows have the same.
        **options: `epsilon`, `relaxation`, `num_iterations`, `tolerance` and `mode` of `sinkhorn`.

    Returns:
        One solved problem; cost 0 without valid rows.

    Raises:
        ValueError: A shape or an option does not fit.

    Example:
        >>> a, b = tf.constant([[1.0, 0.0], [0.0, 1.0]]), tf.constant([[0.0, 1.0], [1.0, 0.0]])
        >>> round(float(view_transport(a, b, mask=tf.constant([True, True])).cost), 3)
        0.0
    """
    mass = tf.cast(mask, at_least_float32(view_a).dtype)
    if weights is not None:
        mass = tf.where(mask, tf.cast(weights, mass.dtype), tf.zeros_like(mass))
    mass = tf.math.divide_no_nan(mass, tf.reduce_sum(mass))
    return cosine_transport(view_a, view_b, mass, mass, **options)


def event_transport(
    events: Tensor,
    trusted: Tensor,
    *,
    mask: Tensor,
    trusted_mask: Tensor,
    **options: Any,
) -> Transport:
    """Transport of each row's events onto the same row's trusted events, at cost `1 - cosine`.

    All real events of a row have the same mass, and all of them together 1; so have the trusted.

    Args:
        events: float `[B, L, D]`.
        trusted: float `[B, M, D]`.
        mask: bool `[B, L]`, True for a real event.
        trusted_mask: bool `[B, M]`, True for a real event.
        **options: `epsilon`, `relaxation`, `num_iterations`, `tolerance` and `mode` of `sinkhorn`.

    Returns:
        One solved problem a row; cost 0 for a row without real events on either side.

    Raises:
        ValueError: A shape or an option does not fit.
    """
    return cosine_transport(
        events, trusted, _shares(mask, events), _shares(trusted_mask, events), **options
    )


def keep_scores(
    events: Tensor,
    trusted: Tensor,
    *,
    mask: Tensor,
    trusted_mask: Tensor,
    **options: Any,
) -> Tensor:
    r"""How well each event is matched by the same row's trusted events: 1 keep, 0 noise.

    The mass that the unbalanced plan of `event_transport` takes from an event, relative to the mass
    that the event has, and at most 1:

    $$ keep_i = \min(1, \textstyle\sum_j P_{ij} / a_i) $$

    Args:
        events: float `[B, L, D]`.
        trusted: float `[B, M, D]`.
        mask: bool `[B, L]`, True for a real event.
        trusted_mask: bool `[B, M]`, True for a real event.
        **options: `epsilon`, `relaxation`, `num_iterations`, `tolerance` and `mode` of `sinkhorn`.
            With hard marginals (`relaxation=None`) every score would be 1.

    Returns:
        float32 or float64 `[B, L]` in [0, 1], without a gradient; 0 for padding, 1 for the real
        events of a row without trusted events, where there is nothing to judge by.

    Raises:
        ValueError: A shape or an option does not fit.

    Example:
        >>> events = tf.constant([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
        >>> trusted = tf.constant([[[2.0, 0.0]]])
        >>> scores = keep_scores(
        ...     events,
        ...     trusted,
        ...     mask=tf.constant([[True, True, False]]),
        ...     trusted_mask=tf.constant([[True]]),
        ...     relaxation=0.3,
        ... )
        >>> scores.numpy().round(2).tolist()
        [[1.0, 0.10999999940395355, 0.0]]
    """
    transport = event_transport(events, trusted, mask=mask, trusted_mask=trusted_mask, **options)
    return scores_of(transport, mask=mask, trusted_mask=trusted_mask)


def scores_of(transport: Transport, *, mask: Tensor, trusted_mask: Tensor) -> Tensor:
    """The keep scores of an `event_transport` of these masks; see `keep_scores`."""
    sent = tf.math.divide_no_nan(transport.row_marginal, _shares(mask, transport.row_marginal))
    judged = tf.reduce_any(trusted_mask, axis=-1, keepdims=True)
    scores = tf.where(judged, tf.minimum(sent, 1), tf.ones_like(sent))
    return tf.where(mask, scores, tf.zeros_like(scores))


def _shares(mask: Tensor, like: Tensor) -> Tensor:
    mass = tf.cast(mask, at_least_float32(like).dtype)
    return tf.math.divide_no_nan(mass, tf.reduce_sum(mass, axis=-1, keepdims=True))
