"""Keep scores that also hear what a row's other events say."""

from collections.abc import Mapping

import tensorflow as tf

from seqdenoise.numerics import Tensor, at_least_float32, l2_normalize
from seqdenoise.transport.iterations import KERNEL_RANGE
from seqdenoise.transport.sinkhorn import Mode, sinkhorn

_LARGEST_COSINE_COST = 2.0
# How many epsilons dearer than any other an event is to itself: e^-10 of the mass at most.
_SELF = 10.0


def second_look_scores(
    events: Mapping[str, Tensor],
    trusted: Tensor,
    *,
    masks: Mapping[str, Tensor],
    trusted_mask: Tensor,
    first_scores: Mapping[str, Tensor],
    epsilon: float = 0.1,
    relaxation: float = 0.3,
    num_iterations: int = 50,
    tolerance: float | None = None,
) -> dict[str, Tensor]:
    r"""How well each event is matched by trusted events, or by events that those match.

    Trusted events are few, and much of what a user likes resembles none of them. Here the events of
    each noisy sequence are transported once more, onto the row's trusted events (mass 1 each) and
    the events of all its noisy sequences (mass: their score of the first look), together scaled to
    mass 1. No event is matched by itself. As in `keep_scores`, an event's score is the mass that
    the relaxed plan takes from it, relative to its own, and at most 1.

    Args:
        events: By noisy sequence float `[B, L, D]`; `L` may differ, `D` not.
        trusted: float `[B, M, D]`.
        masks: By noisy sequence bool `[B, L]`, True for a real event.
        trusted_mask: bool `[B, M]`, True for a real event.
        first_scores: By noisy sequence float `[B, L]` in [0, 1], from `keep_scores`.
        epsilon: See `sinkhorn`.
        relaxation: See `sinkhorn`.
        num_iterations: See `sinkhorn`.
        tolerance: See `sinkhorn`.

    Returns:
        By noisy sequence float32 or float64 `[B, L]` in [0, 1], without a gradient; 0 for padding,
        1 for the real events of a row without trusted events.

    References:
        The spreading of trust from few labelled points over their neighbours is that of Zhou et al.
        (2004), "Learning with local and global consistency", cut off after one step: at further
        ones noise that resembles other noise gains (measured on the simulated log).
    """
    names = list(events)
    columns = at_least_float32(tf.concat([trusted, *(events[name] for name in names)], axis=1))
    real = tf.concat([trusted_mask, *(masks[name] for name in names)], axis=1)
    columns, _ = l2_normalize(tf.where(real[..., tf.newaxis], columns, tf.zeros_like(columns)))
    dtype = columns.dtype
    given = [tf.cast(trusted_mask, dtype), *(tf.cast(first_scores[name], dtype) for name in names)]
    mass = tf.where(real, tf.concat(given, axis=1), tf.zeros_like(real, dtype))
    mass = tf.math.divide_no_nan(mass, tf.reduce_sum(mass, axis=1, keepdims=True))
    dearest = _LARGEST_COSINE_COST + _SELF * epsilon
    mode: Mode = "kernel" if dearest <= KERNEL_RANGE[dtype] * epsilon else "stabilised"
    judged = tf.reduce_any(trusted_mask, axis=1, keepdims=True)
    first = tf.shape(trusted_mask)[1]
    scores = {}
    for name in names:
        mask = masks[name]
        length = tf.shape(mask)[1]
        cost = 1 - tf.matmul(columns[:, first : first + length], columns, transpose_b=True)
        itself = tf.equal(
            tf.range(length)[:, tf.newaxis] + first, tf.range(tf.shape(real)[1])[tf.newaxis, :]
        )
        cost = tf.where(itself, tf.constant(dearest, dtype), cost)
        share = tf.cast(mask, dtype)
        share = tf.math.divide_no_nan(share, tf.reduce_sum(share, axis=1, keepdims=True))
        transport = sinkhorn(
            tf.stop_gradient(cost),
            share,
            mass,
            epsilon=epsilon,
            relaxation=relaxation,
            num_iterations=num_iterations,
            tolerance=tolerance,
            mode=mode,
        )
        sent = tf.math.divide_no_nan(transport.row_marginal, share)
        score = tf.where(judged, tf.minimum(sent, 1), tf.ones_like(sent))
        scores[name] = tf.where(mask, score, tf.zeros_like(score))
        first += length
    return scores
