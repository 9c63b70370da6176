"""What the plug-in is called with, brought into one form."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from seqdenoise.numerics import Tensor


def num_dimensions(name: str, shape: Any) -> int:
    """The number of dimensions of a sequence, summed over its fields where it has some.

    Args:
        name: The sequence's name, for the error.
        shape: `[B, L, D]` or `[B, D]`, or a mapping from field to such.

    Returns:
        `D`.

    Raises:
        ValueError: The rank is another, or `D` is not known.
    """
    if isinstance(shape, Mapping):
        return sum(num_dimensions(f"{name}.{field}", shape[field]) for field in sorted(shape))
    shape = tuple(shape)
    if len(shape) not in (2, 3) or shape[-1] is None:
        raise ValueError(
            f"Sequence `{name}` must have shape [B, L, D] or, if pooled, [B, D], with D known. "
            f"Received: shape {shape}"
        )
    return int(shape[-1])


def events_and_mask(name: str, sequence: Any, mask: Any) -> tuple[Any, Tensor]:
    """The events of a sequence and which of them are real.

    Args:
        name: The sequence's name, for the error.
        sequence: float `[B, L, D]` or pooled `[B, D]`, or a mapping from field to such.
        mask: bool `[B, L]` (pooled: `[B]`), a mapping from field to such, or None: then the Keras
            mask of the tensors counts, and without one all events are real.

    Returns:
        The events `[B, L, D]` (`L = 1` for a pooled sequence), by field where given so; and bool
        `[B, L]`.

    Raises:
        ValueError: The mask is not bool or does not fit the events.
    """
    fields = dict(sequence) if isinstance(sequence, Mapping) else {"": sequence}
    if isinstance(mask, Mapping):
        # Keras fills in the masks itself, one a field; all fields of an event share theirs.
        mask = next((one for one in mask.values() if one is not None), None)
    first = next(iter(fields.values()))
    if mask is None:
        mask = getattr(first, "_keras_mask", None)
    if mask is None:
        mask = tf.ones(tf.shape(first)[:-1], tf.bool)
    for x in fields.values():
        if mask.dtype != tf.bool or not mask.shape.is_compatible_with(x.shape[:-1]):
            raise ValueError(
                f"The mask of `{name}` must be bool of shape {x.shape[:-1]}, True for a real "
                f"event. Received: {mask.dtype.name} of shape {mask.shape}"
            )
    if first.shape.rank == 2:
        fields = {field: x[:, tf.newaxis] for field, x in fields.items()}
        mask = mask[:, tf.newaxis]
    return fields if isinstance(sequence, Mapping) else fields[""], mask


def whole(events: Any) -> Tensor:
    """Events `[B, L, D]`, their fields side by side in the order of their names."""
    if not isinstance(events, Mapping):
        return events
    return tf.concat([events[field] for field in sorted(events)], axis=-1)


def row_vector(name: str, x: Any) -> Tensor:
    """A tensor `[B]` from one of shape `[B]` or `[B, 1]`.

    Raises:
        ValueError: The shape is another.
    """
    x = tf.convert_to_tensor(x)
    if x.shape.rank == 2 and x.shape[1] == 1:
        x = x[:, 0]
    if x.shape.rank != 1:
        raise ValueError(f"`{name}` must have shape [B] or [B, 1]. Received: shape {x.shape}")
    return x


def whole_number_ids(ids: Tensor) -> Tensor:
    """Ids as int64 `[B]`, strings by a hash."""
    if ids.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(ids, 2**63 - 1)
    return tf.cast(ids, tf.int64)
