"""Tensors of a functional model, by name."""

from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any

import tensorflow as tf

from seqdenoise.functional_graph import Call, FunctionalGraph, is_symbolic
from seqdenoise.numerics import Tensor

_LISTED = 20


class Taps:
    """Finds tensors inside a functional model.

    A tap is a symbolic tensor of the model, or a string:

    - `"layer"`, the output of the layer (or Input) of this name, if it is called once;
    - `"layer/input"`, of a layer that is called several times, as a shared embedding is: its call
      on what comes from the Input named `input`;
    - the name of a symbolic tensor.

    Args:
        graph: The model's graph.
    """

    def __init__(self, graph: FunctionalGraph) -> None:
        self.graph = graph

    def sequence(self, name: str, tap: Any) -> Any:
        """The embedded events, or the pooled vector, of a sequence.

        Args:
            name: The sequence's name, for errors.
            tap: A tap, or a mapping from field to tap.

        Returns:
            A symbolic tensor, float `[B, L, D]` or `[B, D]`, or a mapping from field to such.

        Raises:
            ValueError: There is no such tensor, or more than one, or it is not float of rank 2 or
                3 with the last dimension known.
        """
        if isinstance(tap, Mapping):
            return {field: self.sequence(f"{name}.{field}", one) for field, one in tap.items()}
        return self._find(
            f"Sequence `{name}`",
            tap,
            _is_sequence,
            "float of shape [B, L, D] or, if pooled, [B, D], with D known",
        )

    def mask(self, name: str, tap: Any) -> Tensor:
        """What says which events of a sequence are real; see `side_loss.event_mask`.

        Args:
            name: The sequence's name, for errors.
            tap: A tap.

        Returns:
            A symbolic tensor, bool or int, `[B, L]`, `[B, 1]` or `[B]`.

        Raises:
            ValueError: There is no such tensor, or more than one, or it is not bool or int of rank
                1 or 2.
        """
        return self._find(
            f"The mask of `{name}`",
            tap,
            _is_mask,
            "bool [B, L], or int: the number of real events, [B] or [B, 1], or [B, L] with 0 for "
            "padding",
        )

    def rows(self, argument: str, tap: Any) -> Tensor:
        """One value a row.

        Args:
            argument: What it is for, for errors.
            tap: A tap.

        Returns:
            A symbolic tensor of any dtype, `[B]` or `[B, 1]`.

        Raises:
            ValueError: There is no such tensor, or more than one, or its shape is not `[B]` or
                `[B, 1]`.
        """
        return self._find(f"`{argument}`", tap, _is_rows, "of shape [B] or [B, 1]")

    def _find(self, what: str, tap: Any, fits: Callable[[Tensor], bool], expected: str) -> Tensor:
        if is_symbolic(tap):
            found = [tap] if tap in self.graph else []
        elif isinstance(tap, str):
            found = _distinct(self._named(tap))
        else:
            raise ValueError(
                f"{what} must be a symbolic tensor of the model, or the name of a layer or tensor. "
                f"Received: {type(tap).__name__}"
            )
        said = repr(tap) if isinstance(tap, str) else f"the tensor {tap.name!r}"
        if not found:
            inner = self._inside(tap) if isinstance(tap, str) else None
            inside = f", inside `{inner}`, of which only the output can be used" if inner else ""
            raise ValueError(
                f"{what} must be a tensor of the model, {expected}; {self._known(said, fits)}. "
                f"Received: {said}{inside}"
            )
        if len(found) > 1:
            known = self._candidates(lambda x: True)
            several = sorted(name for name, x in known.items() if any(x is one for one in found))
            raise ValueError(
                f"{what} must be one tensor, named like {several}, or the tensor itself. "
                f"Received: {said}, which are {len(found)}"
            )
        if not fits(found[0]):
            raise ValueError(
                f"{what} must be {expected}; {self._known(said, fits)}. Received: {said}, "
                f"{_dtype(found[0])} of shape {tuple(found[0].shape)}"
            )
        return found[0]

    def _known(self, said: str, fits: Callable[[Tensor], bool]) -> str:
        """What could have been meant, the likest names first."""
        known = self._candidates(fits)
        closest = sorted(known, key=lambda name: -SequenceMatcher(None, said, name).ratio())
        more = f" and {len(closest) - _LISTED} more" if len(closest) > _LISTED else ""
        return f"there are {closest[:_LISTED]}{more}"

    def _named(self, name: str) -> list[Tensor]:
        """All tensors that a string may mean, by the first of the readings that knows any."""
        found = [x for call in self._calls_of(name) for x in call.outputs]
        for cut in (i for i, letter in enumerate(name) if letter == "/"):
            found = found or self._of_input(name[:cut], name[cut + 1 :])
        return found or [x for call in self.graph.calls for x in call.outputs if x.name == name]

    def _of_input(self, layer: str, source: str) -> list[Tensor]:
        calls = [call for call in self._calls_of(layer) if source in self.graph.inputs_behind(call)]
        # The call on this Input alone before one that also sees others.
        alone = [call for call in calls if self.graph.inputs_behind(call) == {source}]
        return [x for call in (alone or calls) for x in call.outputs]

    def _calls_of(self, layer: str) -> list[Call]:
        return [call for call in self.graph.calls if call.operation.name == layer]

    def _candidates(self, fits: Callable[[Tensor], bool]) -> dict[str, Tensor]:
        """All tensors that fit, by what one would write for them."""
        known: dict[str, Tensor] = {}
        for call in self.graph.calls:
            layer = call.operation.name
            several = len(self._calls_of(layer)) > 1
            for x in call.outputs:
                name = layer if len(call.outputs) == 1 else x.name
                if several:
                    behind = sorted(self.graph.inputs_behind(call))
                    written = [
                        f"{layer}/{one}"
                        for one in behind
                        if [id(y) for y in self._of_input(layer, one)] == [id(x)]
                    ]
                    name = written[0] if written else x.name
                if fits(x):
                    known[name] = x
        return known

    def _inside(self, name: str) -> str | None:
        """The nested model that has a layer of this name."""
        for call in self.graph.calls:
            layers: Iterable[Any] = getattr(call.operation, "layers", ())
            if any(layer.name == name for layer in layers):
                return str(call.operation.name)
        return None


def _distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(x): x for x in tensors}.values())


def _dtype(x: Tensor) -> str:
    return str(getattr(x.dtype, "name", x.dtype))


def _is_sequence(x: Tensor) -> bool:
    return (
        tf.as_dtype(x.dtype).is_floating
        and len(tuple(x.shape)) in (2, 3)
        and tuple(x.shape)[-1] is not None
    )


def _is_mask(x: Tensor) -> bool:
    dtype = tf.as_dtype(x.dtype)
    return (dtype == tf.bool or dtype.is_integer) and len(tuple(x.shape)) in (1, 2)


def _is_rows(x: Tensor) -> bool:
    shape = tuple(x.shape)
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)
