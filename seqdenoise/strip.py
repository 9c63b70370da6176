"""`strip_for_serving`: a model without its side loss."""

from typing import Any

import tensorflow as tf

from seqdenoise.denoisers import denoisers_in
from seqdenoise.functional_graph import FunctionalGraph, called_again, flat, substituted
from seqdenoise.layer import SequenceDenoiser
from seqdenoise.numerics import Tensor
from seqdenoise.side_loss import SideLoss


def strip_for_serving(model: Any, bare: Any = None) -> Any:
    """The model without its denoisers: the bare model's signature, graph and scores.

    A functional model, plugged by `denoise` or with `SequenceDenoiser` layers written into it, is
    made once more without them, on the same layers: its weights are those of `model`, now and
    later. What it saves or exports has no encoder, no random op, and loads where seqdenoise is not
    installed. A subclassed model is code that calls its denoiser, and cannot be taken apart: build
    it without one and hand it over as `bare`, and it gets a copy of the host's weights.

    Args:
        model: A Keras model.
        bare: Optional Keras model, built, that is `model` without its denoisers: the same weights
            of the same shapes, made in the same order.

    Returns:
        A functional Keras model of Keras' own class, not compiled; or `bare`.

    Raises:
        ValueError: A denoiser has `gate`, which is part of the model's scores; one is inside a
            nested model; the model is not functional and there is no `bare`; or the weights of
            `bare` are not those of `model`.

    Example:
        >>> events = tf.keras.Input((5, 4), name="click")
        >>> click = SequenceDenoiser()({"click": events})["click"]
        >>> pooled = tf.keras.layers.GlobalAveragePooling1D(name="mean")(click)
        >>> plugged = tf.keras.Model(events, tf.keras.layers.Dense(1, name="score")(pooled))
        >>> [layer.name for layer in strip_for_serving(plugged).layers]
        ['click', 'mean', 'score']
    """
    denoisers = denoisers_in(model)
    gates = [denoiser.name for denoiser in denoisers if denoiser.gate]
    if gates:
        raise ValueError(
            "A denoiser with `gate` weights the events that the model scores, so the model cannot "
            f"be served without it: export it as it is. Received: {gates}"
        )
    if bare is not None:
        return _with_weights_of(model, bare, denoisers)
    try:
        graph = FunctionalGraph(model)
    except ValueError as error:
        raise ValueError(
            "`strip_for_serving` needs a functional model, or `bare`: the same model, built "
            f"without a denoiser, to copy the weights to. Received: {type(model).__name__} "
            f"{model.name!r}"
        ) from error
    replaced: dict[int, Tensor] = {}
    for call in graph.calls:
        if isinstance(call.operation, SideLoss | SequenceDenoiser):
            passed = call.first_argument
            if isinstance(call.operation, SideLoss):
                passed = passed["passed"]
            for output, x in zip(call.outputs, flat(passed), strict=True):
                replaced[id(output)] = replaced.get(id(x), x)
        elif any(id(x) in replaced for x in call.inputs):
            outputs = called_again(call, replaced)
            replaced.update(zip(map(id, call.outputs), outputs, strict=True))
    outputs = substituted(graph.outputs, replaced)
    stripped = tf.keras.Model(inputs=graph.inputs, outputs=outputs, name=model.name)
    left = [denoiser.name for denoiser in denoisers_in(stripped)]
    if left:
        raise ValueError(
            "A denoiser inside a nested model can be stripped only with that model: strip it "
            f"first, or hand over `bare`. Received: {left}"
        )
    return stripped


def _with_weights_of(model: Any, bare: Any, denoisers: list[SequenceDenoiser]) -> Any:
    if denoisers_in(bare):
        raise ValueError(
            "`bare` must have no denoiser. "
            f"Received: {[denoiser.name for denoiser in denoisers_in(bare)]}"
        )
    for name, one in (("model", model), ("bare", bare)):
        if not one.weights:
            raise ValueError(f"`{name}` must be built: call it on a batch. Received: no weights")
    own = {id(weight) for denoiser in denoisers for weight in denoiser.weights}
    weights = [weight for weight in model.weights if id(weight) not in own]
    given, wanted = ([_description(x) for x in some] for some in (weights, bare.weights))
    if given != wanted:
        pairs = list(zip(given, wanted, strict=False))
        first = next((i for i, (one, other) in enumerate(pairs) if one != other), len(pairs))
        raise ValueError(
            "`bare` must have the host's weights, of the same shapes and in the same order. "
            f"Received: {len(wanted)} weights beside {len(given)}; the first that differs is "
            f"number {first}, {wanted[first : first + 1]} beside {given[first : first + 1]}"
        )
    for weight, target in zip(weights, bare.weights, strict=True):
        target.assign(weight)
    return bare


def _description(weight: Any) -> tuple[str, tuple[int, ...]]:
    """The last part of a weight's name, and its shape."""
    name = getattr(weight, "path", weight.name).split("/")[-1].split(":")[0]
    return name, tuple(weight.shape)
