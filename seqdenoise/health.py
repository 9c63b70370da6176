"""What the plug-in reports of one sequence's representation, as Keras metrics."""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from seqdenoise import metrics
from seqdenoise.losses import negative_pairs
from seqdenoise.losses.pairs import drop_similar
from seqdenoise.numerics import Tensor

# Uniformity and the share of false negatives are means over pairs and are monitored on the first
# rows of a batch only: all pairs of a large batch would cost as much as the loss itself.
MONITORED_ROWS = 256


def health_metrics(prefix: str, units: int, further: Iterable[str] = ()) -> dict[str, Any]:
    """Creates the metrics of one sequence.

    Args:
        prefix: First part of their names in the logs.
        units: Length of the vectors.
        further: Names of means beyond those of every sequence.

    Returns:
        Mapping from the last part of the name to the metric.
    """
    means = ("loss", "alignment", "uniformity", "valid_rate", "false_negative_rate", *further)
    return {
        **{key: metrics.MeasuredMean(name=f"{prefix}/{key}") for key in means},
        "effective_rank": metrics.EffectiveRank(units, name=f"{prefix}/effective_rank"),
    }


def update_health(
    health: Mapping[str, Any],
    view_a: Tensor,
    view_b: Tensor,
    *,
    mask: Tensor,
    ids: Tensor | None,
    max_similarity: float | None,
    **means: Tensor,
) -> None:
    """Adds one batch.

    Args:
        health: From `health_metrics`.
        view_a: Unit vectors `[B, d]`.
        view_b: Unit vectors `[B, d]`.
        mask: bool `[B]`, True for a valid row.
        ids: Optional int or string `[B]`.
        max_similarity: Optional cosine above which a row counts as a false negative.
        **means: Values of the batch that were computed anyway, `loss` among them.
    """
    view_a, view_b = tf.stop_gradient(view_a), tf.stop_gradient(view_b)
    for key, value in means.items():
        health[key].update_state(value)
    health["alignment"].update_state(metrics.alignment(view_a, view_b, mask=mask))
    health["valid_rate"].update_state(tf.cast(mask, tf.float32))
    health["effective_rank"].update_state(view_a, mask)
    few, few_mask = view_a[:MONITORED_ROWS], mask[:MONITORED_ROWS]
    health["uniformity"].update_state(metrics.uniformity(few, mask=few_mask))
    pairs = negative_pairs(few_mask)
    kept = negative_pairs(few_mask, None if ids is None else ids[:MONITORED_ROWS])
    if max_similarity is not None:
        similarity = tf.matmul(few, view_b[:MONITORED_ROWS], transpose_b=True)
        kept = drop_similar(kept, similarity, max_similarity)
    dropped = 1 - tf.math.divide_no_nan(
        tf.reduce_sum(tf.cast(kept, tf.float32)), tf.reduce_sum(tf.cast(pairs, tf.float32))
    )
    any_pair = tf.cast(tf.reduce_any(pairs), tf.float32)
    health["false_negative_rate"].update_state(dropped * any_pair)
