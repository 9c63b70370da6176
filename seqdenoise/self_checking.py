"""`self_check`: whether the plug-in works in a model, before any training."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from seqdenoise.checks import alone, finite, gradients, identity, padding, rows, views
from seqdenoise.checks.finding import Finding
from seqdenoise.checks.look import ModelLook, look_at
from seqdenoise.host_pass import check_one_device, to_tensors


@dataclass(frozen=True)
class SelfCheck:
    """What `self_check` found; as a string, a table.

    Attributes:
        findings: One for each check and what it was asked of: `check`, `subject`, `outcome`
            (`"passed"`, `"failed"`, `"skipped"`), and `message`, which says what to do.
    """

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings of failed checks."""
        return tuple(one for one in self.findings if one.outcome == "failed")

    def raise_if_failed(self) -> None:
        """Does nothing if all is well.

        Raises:
            ValueError: A check failed; the message names every one and says what to do.
        """
        if not self.passed:
            lines = [f"{one.check}: {one.subject}: {one.message}" for one in self.failures]
            raise ValueError("The self-check failed. Received: " + "; ".join(lines))

    def __str__(self) -> str:
        cells = [(one.outcome, one.check, one.subject, one.message) for one in self.findings]
        widths = [max(len(row[column]) for row in cells) for column in range(3)]
        return "\n".join(
            "  ".join([*(x.ljust(width) for x, width in zip(row, widths, strict=False)), row[3]])
            for row in cells
        )


def self_check(model: Any, batch: Any) -> SelfCheck:
    """Runs a model once in training, and looks whether its `SequenceDenoiser` layers work.

    Asked are: is the plug-in called in training, and its loss collected; are weights, sequences,
    outputs and losses finite; are there rows to contrast; does the gradient of the side loss reach
    every weight of the encoders and, through every denoised sequence, a trainable weight of the
    model; are the two views disjoint and complete; do sequences come out as they went in, excluded
    ones without a gradient; are searches left alone; does padding change nothing, and does anything
    that looks like padding count as real; do weights and ids make sense.

    The model is as before afterwards: weights, the plug-in's step and queue, moving averages,
    metrics, optimizer, and the random state of its layers, of TensorFlow, NumPy and Python. What
    is not put back is what a model does outside of TensorFlow when it is called, and, if it is
    compiled with `run_eagerly=True`, TensorFlow's own random state.

    Args:
        model: A Keras model with one `SequenceDenoiser` or more: functional, subclassed, TFRS, or
            made by `denoise`. It need not be compiled; the loss is looked at if it is.
        batch: One batch as `fit` takes it: `x`, `(x, y)` or `(x, y, sample_weight)`, arrays or
            tensors. Some dozens of rows of real data with padding say most.

    Returns:
        The findings. `print` them, or `raise_if_failed()`.

    Raises:
        ValueError: The model has no `SequenceDenoiser`, or is spread over replicas: check it
            outside of the strategy's scope.

    Example:
        >>> import tensorflow as tf
        >>> from seqdenoise import SequenceDenoiser
        >>> ids = tf.keras.Input((4,), dtype="int32")
        >>> clicks = tf.keras.layers.Embedding(9, 4, mask_zero=True)(ids)
        >>> clicks = SequenceDenoiser(name="denoiser")({"click": clicks})["click"]
        >>> score = tf.keras.layers.Dense(1)(tf.keras.layers.GlobalAveragePooling1D()(clicks))
        >>> batch = tf.constant([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 1], [2, 0, 0, 0]])
        >>> self_check(tf.keras.Model(ids, score), batch).passed
        True
    """
    check_one_device(model, "`self_check`")
    look = look_at(model, to_tensors(batch))
    return SelfCheck(tuple(_findings(look)))


def _findings(look: ModelLook) -> Iterator[Finding]:
    calls = [call for call in look.calls if call.gradients is not None]
    yield from identity.called(look)
    yield from finite.finite_model(look)
    for call in calls:
        yield from finite.finite_sequences(call)
        yield from rows.enough_rows(call)
    yield from gradients.encoder_gradients(look)
    for call in calls:
        by_itself = alone.run_alone(call)
        yield from gradients.host_gradients(call)
        yield from gradients.excluded_gradients(call, by_itself)
        yield from views.views_share_nothing(call)
        yield from identity.returned_unchanged(call, by_itself)
        yield from identity.no_intent_denoised(call)
        yield from padding.padding_is_ignored(call, by_itself)
        yield from padding.padding_is_masked(call)
        yield from rows.sensible_weights(call)
        yield from rows.telling_ids(call)
