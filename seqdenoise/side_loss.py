"""`SideLoss`: what `denoise` puts into a functional model, off the path of the sequences."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from seqdenoise.layer import SequenceDenoiser
from seqdenoise.numerics import Tensor


@tf.keras.utils.register_keras_serializable(package="seqdenoise")
class SideLoss(tf.keras.layers.Layer):
    """Returns one tensor as it is and, in training, adds the side loss of other tensors.

    A functional model runs only the layers that lie on a path to its outputs. This one lies on such
    a path by the tensor it passes on, and sees the sequences beside it, so that no layer of the
    model reads other sequences than before.

    Args:
        denoiser: The layer whose side loss it is; without `gate`.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Call arguments:
        inputs: Mapping with `passed`, any tensor; `sequences`, as a `SequenceDenoiser` takes them,
            or ragged; optionally `mask`, from a sequence's name to what `event_mask` takes (ragged
            ones know theirs); and optionally `sample_ids`, `sample_weight`, `labels`, `candidate`.
        training: Whether to add the side loss.

    Returns:
        `passed`.
    """

    def __init__(self, denoiser: SequenceDenoiser, **kwargs: Any) -> None:
        # No cast of what is passed on or denoised; the denoiser knows its own dtype.
        super().__init__(**{"autocast": False, **kwargs, "dtype": "float32"})
        self.supports_masking = True
        self.denoiser = denoiser

    def build(self, input_shape: Any) -> None:
        """Creates the encoders."""
        if not self.denoiser.built:  # it is, where Keras 3 makes it from a file
            self.denoiser.build(input_shape["sequences"])
        super().build(input_shape)

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Tensor:
        """Returns `inputs["passed"]`; see the class."""
        sequences, masks = {}, {}
        for name, sequence in inputs["sequences"].items():
            first = _first(sequence)
            given = inputs.get("mask", {}).get(name)
            if isinstance(first, tf.RaggedTensor):
                masks[name] = tf.sequence_mask(first.row_lengths())
            elif given is not None:
                masks[name] = event_mask(name, given, first)
            sequences[name] = tf.nest.map_structure(_dense, sequence)
        rows = ("sample_ids", "sample_weight", "labels", "candidate")
        self.denoiser(
            sequences,
            **({"mask": masks} if masks else {}),
            **{name: inputs[name] for name in rows if name in inputs},
            training=training,
        )
        return inputs["passed"]

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The Keras mask of what is passed on."""
        return mask["passed"] if isinstance(mask, Mapping) else None

    def compute_output_spec(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        """What is passed on, as Keras 3 describes it before there is a tensor."""
        passed = inputs["passed"]
        kind = {k: True for k in ("sparse", "ragged") if getattr(passed, k, False)}
        return tf.keras.KerasTensor(passed.shape, dtype=passed.dtype, **kind)

    def get_config(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        denoiser = tf.keras.layers.serialize(self.denoiser)
        return {**super().get_config(), "denoiser": denoiser}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SideLoss":
        """The layer of a configuration."""
        denoiser = tf.keras.layers.deserialize(config["denoiser"])
        return cls(**{**config, "denoiser": denoiser})


def event_mask(name: str, given: Tensor, events: Tensor) -> Tensor:
    """Which events are real, from what a model may have as an input.

    Args:
        name: The sequence's name, for the error.
        given: bool `[B, L]` (`[B]` for a pooled sequence), True for a real event; or int `[B]` or
            `[B, 1]`, the number of real events, which come first; or int `[B, L]`, 0 for padding,
            as ids or as zeros and ones.
        events: float `[B, L, D]`, or pooled `[B, D]`.

    Returns:
        bool `[B, L]` or `[B]`.

    Raises:
        ValueError: `given` is none of these.
    """
    if given.dtype == tf.bool:
        return given
    rank, pooled = given.shape.rank, events.shape.rank == 2
    if not given.dtype.is_integer or rank not in (1, 2):
        raise ValueError(
            f"The mask of `{name}` must be bool [B, L], or int: numbers of real events, [B] or "
            f"[B, 1], or [B, L] with 0 for padding. Received: {given.dtype.name} of shape "
            f"{given.shape}"
        )
    if rank == 2 and given.shape[1] != 1:
        return tf.not_equal(given, 0)
    lengths = given[:, 0] if rank == 2 else given
    return lengths > 0 if pooled else tf.sequence_mask(lengths, tf.shape(events)[1])


def _first(sequence: Any) -> Any:
    return next(iter(sequence.values())) if isinstance(sequence, Mapping) else sequence


def _dense(x: Any) -> Tensor:
    return x.to_tensor() if isinstance(x, tf.RaggedTensor) else x
