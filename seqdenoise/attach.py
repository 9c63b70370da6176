"""`denoise`: a side loss for a functional model that is already there."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from seqdenoise.denoisers import denoisers_in
from seqdenoise.functional_graph import Call, FunctionalGraph, called_again, substituted
from seqdenoise.layer import SequenceDenoiser
from seqdenoise.numerics import Tensor
from seqdenoise.plugged_model import PluggedModel
from seqdenoise.side_loss import SideLoss
from seqdenoise.taps import Taps


def denoise(
    model: Any,
    sequences: Mapping[str, Any],
    *,
    mask: Mapping[str, Any] | None = None,
    sample_ids: Any = None,
    sample_weight: Any = None,
    labels: Any = None,
    candidate: Any = None,
    **options: Any,
) -> Any:
    """Plugs a `SequenceDenoiser` into a functional Keras model.

    The result has the inputs, the outputs, the layers and the weights of `model`, these very ones,
    and scores alike to the last bit; in training it adds the side loss of the named sequences, and
    the encoders' weights. Nothing of `model` is changed, made anew or moved: no layer of it reads
    another tensor than before but the last one before an output, whose input is passed through
    the layer that adds the loss. `strip_for_serving` takes all of it off again.

    The result is not compiled: compile it as you compiled `model`. In `fit`, `sample_weight` and
    `class_weight` weight the rows of the side loss too (see `row_weights`), unless `model` is of a
    class of its own, which is kept: its `train_step` is then up to you.

    A *tap* names a tensor of the model: by a layer (`"click_embedding"`, its output), by a layer
    that is called several times and the Input that its call depends on (`"item_embedding/click"`),
    by the name of a symbolic tensor, or by that tensor itself.

    Args:
        model: A functional Keras model or a Sequential one that begins with an `Input`, built, and
            compiled or not.
        sequences: Mapping from a sequence's name to a tap of its embedded events, float `[B, L, D]`
            or ragged, or pooled `[B, D]`; or to a mapping from field to tap. Types in `exclude`
            (`"search"`) are left alone, named here or not.
        mask: Optional mapping from a sequence's name to a tap: bool `[B, L]`, True for a real
            event; or int, an Input for instance, of the number of real events, `[B]` or `[B, 1]`
            (the real ones first); or int `[B, L]`, ids perhaps, with 0 for padding. A sequence that
            is left out has the Keras mask of its tensor (`Embedding(mask_zero=True)`, `Masking`) or
            the lengths of its ragged rows, and without these all its events count as real.
        sample_ids: Optional tap of an int or string Input `[B]` or `[B, 1]`: rows with equal ids,
            usually of one user, are not each other's negatives.
        sample_weight: Optional tap of weights `[B]` or `[B, 1]`, in place of those of `fit`.
        labels: Optional tap of an int Input `[B]` or `[B, 1]`, for losses that take labels.
        candidate: Optional tap, or mapping from field to tap, of the ranked item's vector
            `[B, D]`, with `trusted="candidate"`.
        **options: Arguments of `SequenceDenoiser`, but for `gate`, `gradient_budget` and
            `project_conflicts`, which need a model that reads what the plug-in returns.

    Returns:
        A functional model; its layer `{name}_side_loss` holds the `SequenceDenoiser` called
        `name`, by default `"denoiser"`.

    Raises:
        ValueError: The model is not functional, a tap names no tensor, several, or one that does
            not fit, or an option does not.

    Example:
        >>> ids = tf.keras.Input((5,), dtype="int32", name="click")
        >>> events = tf.keras.layers.Embedding(10, 4, mask_zero=True, name="items")(ids)
        >>> pooled = tf.keras.layers.GlobalAveragePooling1D(name="mean")(events)
        >>> model = tf.keras.Model(ids, tf.keras.layers.Dense(1, name="score")(pooled))
        >>> plugged = denoise(model, {"click": "items"}, weight=0.1)
        >>> batch = tf.constant([[1, 2, 0, 0, 0], [3, 1, 4, 0, 0]])
        >>> bool(tf.reduce_all(plugged(batch) == model(batch)))
        True
    """
    for name in ("gate", "gradient_budget", "project_conflicts"):
        if options.get(name):
            raise ValueError(
                f"`{name}` needs a model that reads what the plug-in returns: call a "
                f"`SequenceDenoiser({name}=...)` on the sequences where the model is made. "
                f"Received: {name}={options[name]}"
            )
    if not isinstance(sequences, Mapping) or not sequences:
        raise ValueError(
            "`sequences` must map at least one sequence's name to a tensor of the model. "
            f"Received: {sequences!r}"
        )
    unknown = set(mask or {}) - set(sequences)
    if unknown:
        raise ValueError(
            f"`mask` has keys that `sequences` has not. Received: {sorted(unknown)}, with "
            f"sequences {sorted(sequences)}"
        )
    graph = FunctionalGraph(model)
    taps = Taps(graph)
    inputs: dict[str, Any] = {
        "sequences": {name: taps.sequence(name, tap) for name, tap in sequences.items()}
    }
    if mask:
        inputs["mask"] = {name: taps.mask(name, tap) for name, tap in mask.items()}
    rows = {"sample_ids": sample_ids, "sample_weight": sample_weight, "labels": labels}
    inputs |= {key: taps.rows(key, tap) for key, tap in rows.items() if tap is not None}
    if candidate is not None:
        inputs["candidate"] = taps.sequence("candidate", candidate)
    options.setdefault("name", _new_name(graph, model))
    denoiser = SequenceDenoiser(**options)
    layer = SideLoss(denoiser, name=f"{denoiser.name}_side_loss")
    carrier = _carrier(graph, tf.nest.flatten(inputs))
    passed = _passed(carrier)
    through = {id(passed): layer({"passed": passed, **inputs})}
    again = dict(zip(map(id, carrier.outputs), called_again(carrier, through), strict=True))
    plugged = _made_as(model, graph.inputs, substituted(graph.outputs, again))
    lost = {layer.name for layer in model.layers} - {layer.name for layer in plugged.layers}
    if lost:
        raise ValueError(
            "All layers of the model must lead to its outputs, or they would be lost, as is "
            "`model.add_loss` of a symbolic tensor: put such a loss into a layer. "
            f"Received: {sorted(lost)}, which do not"
        )
    return plugged


def _carrier(graph: FunctionalGraph, taps: list[Tensor]) -> Call:
    """The call before an output that the side loss is put in front of."""
    last = [call for call in (graph.maker(x) for x in graph.flat_outputs) if graph.is_last(call)]
    if not last:
        raise ValueError(
            "The model must have an output that a layer makes. Received: "
            f"{[call.operation.name for call in map(graph.maker, graph.flat_outputs)]}, Inputs"
        )
    # One that is no sequence itself, if there is one: that would be computed twice.
    tapped = {id(x) for x in taps}
    return min(last, key=lambda call: any(id(x) in tapped for x in call.outputs))


def _passed(carrier: Call) -> Tensor:
    """The tensor among a call's inputs that is passed through; a dense one if there is one."""
    return min(
        carrier.inputs,
        key=lambda x: bool(getattr(x, "sparse", False) or getattr(x, "ragged", False)),
    )


def _new_name(graph: FunctionalGraph, model: Any) -> str:
    taken = {call.operation.name for call in graph.calls}
    taken |= {denoiser.name for denoiser in denoisers_in(model)}
    name, number = "denoiser", 0
    while name in taken or f"{name}_side_loss" in taken:
        number += 1
        name = f"denoiser_{number}"
    return name


def _made_as(model: Any, inputs: Any, outputs: Any) -> Any:
    """A functional model of the class of `model`, or `PluggedModel` for one of Keras' own."""
    kind = type(model)
    if kind.__module__.split(".")[0] in ("keras", "tf_keras"):
        kind = PluggedModel
    try:
        return kind(inputs=inputs, outputs=outputs, name=model.name)
    except TypeError as error:
        raise ValueError(
            f"A model of a class of its own must be made by `{kind.__name__}(inputs=, outputs=, "
            f"name=)`; with another constructor, call a `SequenceDenoiser` where the model is "
            f"made. Received: {error}"
        ) from error
