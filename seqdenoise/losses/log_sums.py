"""Sums of exponentials in the log domain, where they neither overflow nor vanish."""

import tensorflow as tf

from seqdenoise.numerics import Tensor


def log_sum_exp(logits: Tensor, mask: Tensor) -> Tensor:
    """Logarithm of the sum of the exponentials whose mask is True, along the last axis.

    Args:
        logits: float `[B, n]`.
        mask: bool `[B, n]`. What `logits` holds where it is False reaches neither the value nor the
            gradient.

    Returns:
        `[B]`; minus infinity, with gradient 0, for a row with none.
    """
    minus_infinity = tf.constant(float("-inf"), logits.dtype)
    logits = tf.where(mask, logits, minus_infinity)
    highest = tf.stop_gradient(tf.reduce_max(logits, axis=1))
    # A row with none has the maximum -inf, whose difference with itself would be NaN.
    highest = tf.where(tf.reduce_any(mask, axis=1), highest, tf.zeros_like(highest))
    # exp(-inf) is 0 with gradient 0, so what is masked counts for exactly nothing. The infinite
    # gradient of log(0) ends at the first `where`, which masks all of such a row.
    return highest + tf.math.log(tf.reduce_sum(tf.exp(logits - highest[:, tf.newaxis]), axis=1))


def log_odds_loss(log_positive: Tensor, log_negative: Tensor) -> Tensor:
    """`-log(p / (p + n))` from the logarithms of `p` and `n`, exact also where it is small.

    The positive stays out of the sum: `log(1 + n / p)` keeps the small losses of well separated
    rows, and their gradients, which the difference of two logarithms would round away.
    """
    return tf.math.softplus(log_negative - log_positive)
