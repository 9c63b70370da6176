"""The sum behind InfoNCE and its kin, with its gradient made in the same pass over the pairs."""

from typing import Any

import tensorflow as tf

from seqdenoise.losses.log_sums import log_odds_loss
from seqdenoise.losses.pair_sums import Blocks, Limit, Pairs, log_pair_sums
from seqdenoise.numerics import Tensor


def mean_log_odds(
    anchors: Tensor,
    positives: Tensor,
    columns: Tensor,
    shares: Tensor,
    pairs: Pairs,
    *,
    limit: Limit | None = None,
    diagonal_rows: Tensor | int | None = None,
) -> Tensor:
    r"""Weighted sum over the anchors of the log odds of the columns against their own positive.

    $$ \sum_i w_i \log\Big(1 + \sum_{j \in P_i} e^{\langle a_i, b_j \rangle - \langle a_i, p_i
    \rangle}\Big) $$

    What the gradient needs of a block of anchors is at hand when its sums are made, and up to a
    factor it does not depend on what the loss is used for. Made then, it saves the products and
    exponentials that `log_pair_sums` makes again. Without a gradient that is wasted.

    Args:
        anchors: float32 or float64 `[N, d]`, finite where not valid.
        positives: `[N, d]`, likewise and of the same dtype.
        columns: `[M, d]`, likewise.
        shares: `[N]`, the `w`.
        pairs: Which columns count for which anchors.
        limit: Optional further condition, a constant in the gradient.
        diagonal_rows: Where columns are as many as anchors, how many rows following one another
            meet, and no others; None for all.

    Returns:
        A scalar.
    """

    def by_sums(a: Tensor, p: Tensor, b: Tensor, w: Tensor) -> Tensor:
        meeting = pairs
        if diagonal_rows is not None:
            block = tf.range(tf.shape(a)[0]) // diagonal_rows
            meeting = pairs._replace(agree=(*pairs.agree, (block, block)))
        (negatives,), _ = log_pair_sums(a, b, meeting, limit=limit)
        return tf.reduce_sum(w * log_odds_loss(tf.reduce_sum(a * p, axis=1), negatives))

    @tf.custom_gradient
    def in_one_pass(a: Tensor, p: Tensor, b: Tensor, w: Tensor) -> Any:
        losses, *made = _losses_and_gradients(a, p, b, w, Blocks(a, b, pairs, limit, diagonal_rows))

        def gradient(upstream: Tensor) -> Any:
            # To TensorFlow what was made in advance is a constant; a derivative of it has to come
            # from the sums.
            @tf.custom_gradient
            def first(upstream: Tensor, *inputs: Tensor) -> Any:
                def second(*slopes: Tensor) -> Any:
                    with tf.GradientTape() as outer:
                        outer.watch((upstream, *inputs))
                        with tf.GradientTape() as inner:
                            inner.watch(inputs)
                            loss = upstream * by_sums(*inputs)
                        found = inner.gradient(loss, inputs)
                        total = tf.add_n(
                            [tf.reduce_sum(x * y) for x, y in zip(found, slopes, strict=True)]
                        )
                    return outer.gradient(total, (upstream, *inputs))

                return tuple(upstream * x for x in (*made, losses)), second

            return first(upstream, a, p, b, w)

        return tf.reduce_sum(w * losses), gradient

    return in_one_pass(anchors, positives, columns, shares)


def _losses_and_gradients(
    a: Tensor, p: Tensor, b: Tensor, w: Tensor, blocks: Blocks
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The log odds `[N]`; and the gradients of their sum by anchors, positives and columns."""
    minus_infinity = tf.constant(float("-inf"), a.dtype)

    def of_block(block: Any, own: Tensor, share: Tensor) -> list[Tensor]:
        logits = tf.where(block.counts, block.products, minus_infinity)
        highest = tf.reduce_max(logits, axis=1)
        # Of none the maximum is -inf, whose difference with itself would be NaN.
        highest = tf.where(tf.equal(highest, minus_infinity), tf.zeros_like(highest), highest)
        terms = tf.exp(logits - highest[:, tf.newaxis])
        total = tf.reduce_sum(terms, axis=1)
        negatives = highest + tf.math.log(total)
        slope = share * tf.sigmoid(negatives - own)
        # Not by `divide_no_nan`: a NaN has to surface.
        each = tf.where(tf.equal(total, 0), tf.zeros_like(slope), slope / total)[:, tf.newaxis]
        return [
            log_odds_loss(own, negatives),
            slope,
            each * tf.matmul(terms, block.columns),
            tf.matmul(terms, each * block.anchors, transpose_a=True),
        ]

    own, d = tf.reduce_sum(a * p, axis=1), a.shape[1]
    if blocks.is_diagonal:
        # Each block has all there is of its columns' gradient.
        (losses, slopes, of_anchors, of_columns), _ = blocks.collect(
            of_block, [[], [], [d], [d]], [own, w]
        )
    else:
        (losses, slopes, of_anchors), of_columns = blocks.collect(
            of_block, [[], [], [d]], [own, w], total_like=b
        )
    slopes = slopes[:, tf.newaxis]
    return losses, of_anchors - slopes * p, -slopes * a, of_columns
