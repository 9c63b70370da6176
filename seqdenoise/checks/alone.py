"""The plug-in run by itself once more, on what it saw in the model or on a variation of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from seqdenoise.checks.look import Look
from seqdenoise.host_pass import kept_state
from seqdenoise.numerics import Tensor
from seqdenoise.recording import recording


@dataclass(frozen=True)
class Alone:
    """What came out.

    Attributes:
        given: The sequences.
        returned: What the plug-in returned.
        side_loss: The side loss before `weight`, a scalar.
        gradients: By sequence those with respect to its tensors of floats, None where there is
            none.
    """

    given: Mapping[str, Any]
    returned: Mapping[str, Any]
    side_loss: Tensor
    gradients: Mapping[str, list[Tensor | None]]


def run_alone(look: Look, *, nan_in_padding_of: Sequence[str] = ()) -> Alone:
    """Runs the plug-in at the same step on the same events.

    Args:
        look: A call that added its loss.
        nan_in_padding_of: Sequences whose masked slots are filled with NaN.

    Returns:
        What came out; the plug-in is as before.
    """
    seen, layer = look.seen, look.seen.layer

    def given(name: str, x: Tensor) -> Tensor:
        if name not in nan_in_padding_of:
            # A tensor of its own: one that the model gives under two names gets a gradient each.
            return tf.identity(x)
        mask = seen.masks[name]
        mask = mask[:, 0] if x.shape.rank == 2 else mask  # a pooled sequence
        return tf.where(mask[..., tf.newaxis], x, tf.constant(float("nan"), x.dtype))

    sequences: dict[str, Any] = {
        name: tf.nest.map_structure(lambda x, name=name: given(name, x), sequence)
        for name, sequence in seen.sequences.items()
    }
    flat = {name: tf.nest.flatten(sequence) for name, sequence in sequences.items()}
    masks = {
        name: mask[:, 0] if flat[name][0].shape.rank == 2 else mask
        for name, mask in seen.masks.items()
    }
    floats = {name: [x for x in xs if x.dtype.is_floating] for name, xs in flat.items()}
    with kept_state(layer), recording() as calls, tf.GradientTape() as tape:
        tape.watch(floats)
        returned = layer(
            sequences, mask=masks, candidate=seen.candidate, training=True, **seen.rows
        )
        loss = calls[-1].side_loss
    return Alone(sequences, returned, loss, tape.gradient(loss, floats))
