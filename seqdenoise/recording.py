"""What the plug-in saw in a call, for those who look on: the self-check, warm starts, monitors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from seqdenoise.numerics import Tensor


@dataclass
class Seen:
    """One call of a `SequenceDenoiser`.

    Attributes:
        layer: The layer.
        sequences: As it was called with.
        masks: By denoised or trusted sequence, which events counted as real, bool `[B, L]`.
        candidate: As it was called with.
        adds_loss: Whether the call added the side loss.
        rows: Those of `sample_ids`, `sample_weight` and `labels` that were given, `[B]` each.
        views: By denoised sequence what `Masking.views` made of it, before any encoder.
        shares: By denoised sequence its term of the side loss, a scalar.
        side_loss: The side loss before `weight`, a scalar.
        added: The loss that was added, a scalar.
    """

    layer: Any
    sequences: Mapping[str, Any]
    masks: Mapping[str, Tensor]
    candidate: Any
    adds_loss: bool
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    views: dict[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    shares: dict[str, Tensor] = field(default_factory=dict)
    side_loss: Tensor = None
    added: Tensor = None


# A context variable, not an attribute of the layer: replicas of a strategy run in threads of their
# own, and a graph that is traced elsewhere meanwhile is not to be recorded.
_calls: ContextVar[list[Seen] | None] = ContextVar("seqdenoise_calls", default=None)


@contextmanager
def recording() -> Iterator[list[Seen]]:
    """Records every call of a `SequenceDenoiser` within it, in order.

    In a graph the tensors are those of the graph, so they are to be used where it is made.

    Yields:
        The calls so far.

    Example:
        >>> import tensorflow as tf
        >>> from seqdenoise import SequenceDenoiser
        >>> with recording() as calls:
        ...     _ = SequenceDenoiser()({"click": tf.ones([2, 3, 4])}, training=True)
        >>> [(sorted(call.shares), call.adds_loss) for call in calls]
        [(['click'], True)]
    """
    calls: list[Seen] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def is_recording() -> bool:
    """Whether anybody looks on."""
    return _calls.get() is not None


def record(call: Seen) -> None:
    """Begins the record of a call."""
    calls = _calls.get()
    if calls is not None:
        calls.append(call)


def current() -> Seen | None:
    """The call that is being made, None if nobody looks on."""
    calls = _calls.get()
    return calls[-1] if calls else None
