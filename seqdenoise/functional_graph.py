"""The graph of calls behind a functional Keras model, in both generations of Keras."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from seqdenoise.numerics import Tensor


@dataclass(frozen=True)
class Call:
    """One call of a layer, or of an operation that is none, on symbolic tensors.

    Attributes:
        operation: What was called.
        args: Its positional arguments, symbolic tensors among them at any depth.
        kwargs: Its keyword arguments.
        inputs: The symbolic tensors among the arguments.
        outputs: What it returned, flat.
        is_input: Whether it is no call but an `Input`.
    """

    operation: Any
    args: Any
    kwargs: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    is_input: bool

    @property
    def first_argument(self) -> Any:
        """What the operation was called on, given by position or by name."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()))


class FunctionalGraph:
    """The calls that make a functional model's outputs from its inputs.

    Args:
        model: A functional Keras model, or a built Sequential one.

    Attributes:
        calls: All calls, each after those whose outputs it takes.
        inputs: The model's inputs, in the structure it takes them.
        outputs: The model's outputs, in the structure it returns them.

    Raises:
        ValueError: The model has no graph of calls.
    """

    def __init__(self, model: Any) -> None:
        graph = getattr(model, "_functional", None) or model  # Keras 3 hides it in a Sequential
        nodes_by_depth = getattr(graph, "_nodes_by_depth", None)
        if nodes_by_depth is None:
            raise ValueError(
                "The model must be functional: made from `inputs` and `outputs`, or a Sequential "
                "one that begins with an `Input`. In any other, call a `SequenceDenoiser` on the "
                f"sequences inside its `call`. Received: {type(model).__name__} {model.name!r}"
            )
        self.calls = tuple(
            _call(node) for depth in sorted(nodes_by_depth, reverse=True)
            for node in nodes_by_depth[depth]
        )  # fmt: skip
        self.inputs = graph.input
        self.outputs = graph.output
        self._maker = {id(x): call for call in self.calls for x in call.outputs}
        self._behind: dict[int, frozenset[str]] = {}
        for call in self.calls:
            names = {call.operation.name} if call.is_input else set()
            for x in call.inputs:
                names |= self._behind[id(self._maker[id(x)])]
            self._behind[id(call)] = frozenset(names)

    @property
    def flat_outputs(self) -> list[Tensor]:
        """The model's outputs."""
        return list(tf.nest.flatten(self.outputs))

    def __contains__(self, x: Tensor) -> bool:
        """Whether a symbolic tensor is one of the graph's."""
        return id(x) in self._maker

    def maker(self, x: Tensor) -> Call:
        """The call that returned `x`."""
        return self._maker[id(x)]

    def inputs_behind(self, call: Call) -> frozenset[str]:
        """The names of the Inputs that a call depends on, directly or not."""
        return self._behind[id(call)]

    def is_last(self, call: Call) -> bool:
        """Whether a call makes an output of the model, and nothing that another call takes."""
        made = {id(x) for x in call.outputs}
        taken = {id(x) for other in self.calls for x in other.inputs}
        returned = {id(x) for x in self.flat_outputs}
        return not call.is_input and bool(made & returned) and not made & taken


def called_again(call: Call, replaced: Mapping[int, Tensor]) -> list[Tensor]:
    """Calls an operation once more, on other tensors.

    Args:
        call: The call to repeat.
        replaced: Mapping from the `id` of a symbolic tensor to what takes its place.

    Returns:
        The outputs, flat, in the order of `call.outputs`.
    """
    args, kwargs = substituted((call.args, dict(call.kwargs)), replaced)
    call.operation(*args, **kwargs)
    return _outputs(call.operation._inbound_nodes[-1])


def substituted(structure: Any, replaced: Mapping[int, Tensor]) -> Any:
    """A structure with some of its symbolic tensors replaced.

    Args:
        structure: Any structure of tensors and other things.
        replaced: Mapping from the `id` of a symbolic tensor to what takes its place.

    Returns:
        The same structure.
    """
    return tf.nest.map_structure(lambda x: replaced.get(id(x), x), structure)


def flat(structure: Any) -> list[Any]:
    """The leaves of a structure, in the order in which this generation of Keras numbers them."""
    keras_tree = getattr(tf.keras, "tree", tf.nest)
    return list(keras_tree.flatten(structure))


def is_symbolic(x: Any) -> bool:
    """Whether `x` is a tensor of a functional model."""
    return hasattr(x, "_keras_history")


def _call(node: Any) -> Call:
    # Keras 3 says `operation` and `arguments`, legacy Keras `layer`, `call_args`, `call_kwargs`.
    if hasattr(node, "arguments"):
        operation, args, kwargs = node.operation, node.arguments.args, node.arguments.kwargs
    else:
        operation, args, kwargs = node.layer, node.call_args, node.call_kwargs
    inputs = tuple(x for x in tf.nest.flatten((args, dict(kwargs))) if is_symbolic(x))
    return Call(operation, args, kwargs, inputs, tuple(_outputs(node)), bool(node.is_input))


def _outputs(node: Any) -> list[Tensor]:
    return list(tf.nest.flatten(node.outputs))
