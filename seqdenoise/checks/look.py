"""A training pass of a model, with all that the checks ask about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from seqdenoise.denoisers import denoisers_in
from seqdenoise.host_pass import (
    build_on,
    host_pass,
    host_weights,
    in_graph,
    kept_legacy_seeds,
    kept_state,
)
from seqdenoise.numerics import Tensor
from seqdenoise.recording import Seen


@dataclass(frozen=True)
class Gradients:
    """Largest absolute entries, NaN where one is not finite and None where there is no gradient.

    Attributes:
        encoders: By trainable weight of the plug-in, of the side loss.
        host: By denoised sequence and trainable weight of the host, of the sequence's share.
    """

    encoders: Mapping[str, float | None]
    host: Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class Look:
    """One call of a plug-in: what it saw, as values.

    Attributes:
        seen: The record of the call, its tensors eager ones.
        gradients: Of its side loss; None if it added none.
        is_tracked: Whether the plug-in is a layer of the model.
    """

    seen: Seen
    gradients: Gradients | None
    is_tracked: bool

    @property
    def name(self) -> str:
        """The plug-in's name."""
        return str(self.seen.layer.name)

    @property
    def denoised(self) -> list[str]:
        """Names of the denoised sequences."""
        return list(self.seen.layer._denoised)

    @property
    def is_finite(self) -> bool:
        """Whether the side loss is."""
        return bool(tf.math.is_finite(self.seen.side_loss))

    def distinct_rows(self, name: str) -> int:
        """How many rows of a sequence can be told apart: valid ones of different ids."""
        valid = self.seen.views[name][2].numpy()
        ids = self.seen.rows.get("sample_ids")
        return int(valid.sum()) if ids is None else len(set(ids.numpy()[valid].tolist()))

    @property
    def contrasted(self) -> list[str]:
        """Names of the sequences that this batch can train."""
        weights = self.seen.rows.get("sample_weight")
        return [
            name
            for name, (_, _, valid) in self.seen.views.items()
            if self.distinct_rows(name) >= 2
            and (weights is None or (weights.numpy()[valid.numpy()] != 0).any())
        ]


@dataclass(frozen=True)
class ModelLook:
    """A training pass of a model.

    Attributes:
        model: The model.
        batch: What it was run on, tensors.
        outputs: What it returned.
        main_loss: See `HostPass`.
        calls: The calls of its plug-ins.
        not_called: Plug-ins that are layers of the model and were not called.
    """

    model: Any
    batch: Any
    outputs: Any
    main_loss: Tensor | None
    calls: list[Look]
    not_called: list[Any]


def variable_name(variable: Any) -> str:
    """A variable's name with that of its layer, in both generations of Keras."""
    return str(getattr(variable, "path", variable.name)).removesuffix(":0")


def look_at(model: Any, batch: Any) -> ModelLook:
    """Runs the model once in training and puts its state back.

    Args:
        model: A Keras model.
        batch: Tensors; as of `host_pass`.

    Returns:
        What was seen.

    Raises:
        ValueError: No plug-in is part of the model, and none was called.
    """
    with kept_legacy_seeds(model):
        build_on(model, batch)
        return _look_at(model, batch)


def _look_at(model: Any, batch: Any) -> ModelLook:
    host = host_weights(model)
    traced: list[Seen] = []

    def run(batch: Any) -> dict[str, Any]:
        with tf.GradientTape(persistent=True) as tape:
            seen = host_pass(model, batch)
        traced[:] = seen.calls
        return {
            "outputs": seen.outputs,
            "main_loss": seen.main_loss,
            "calls": [_tensors(call, host, tape) for call in seen.calls],
        }

    fn = in_graph(model, run)
    if fn is not run:
        fn.get_concrete_function(batch)  # type: ignore[attr-defined]
    tracked = denoisers_in(model)
    # What the model calls without tracking it is known from the graph, if there is one.
    with kept_state(model, *(call.layer for call in traced)):
        values = fn(batch)
        if any(call.layer._queues for call in traced):
            values = fn(batch)  # at first there were no past keys to be told from
    if not tracked and not traced:
        raise ValueError(
            "`model` must hold a SequenceDenoiser, as an attribute or in its graph. "
            f"Received: {type(model).__name__} {model.name!r} without one"
        )
    calls = [
        _look(call.layer, call.adds_loss, host, tracked, one)
        for call, one in zip(traced, values["calls"], strict=True)
    ]
    not_called = [layer for layer in tracked if not any(layer is x.seen.layer for x in calls)]
    return ModelLook(model, batch, values["outputs"], values["main_loss"], calls, not_called)


def _tensors(call: Seen, host: list[Any], tape: Any) -> dict[str, Any]:
    """The tensors of a record, to be returned from the graph that they belong to."""
    seen = {
        "sequences": dict(call.sequences),
        "masks": dict(call.masks),
        "candidate": call.candidate,
        "rows": dict(call.rows),
        "views": dict(call.views),
        "side_loss": call.side_loss,
        "added": call.added,
    }
    if not call.adds_loss:
        return {"seen": seen}
    return {
        "seen": seen,
        "encoders": _largest(tape.gradient(call.side_loss, call.layer.trainable_variables)),
        "host": {name: _largest(tape.gradient(x, host)) for name, x in call.shares.items()},
    }


def _largest(gradients: list[Any]) -> list[Tensor | None]:
    def largest(gradient: Any) -> Tensor:
        values = tf.abs(tf.cast(getattr(gradient, "values", gradient), tf.float32))
        values = tf.concat([[0.0], tf.reshape(values, [-1])], axis=0)
        finite = tf.reduce_all(tf.math.is_finite(values))
        return tf.where(finite, tf.reduce_max(values), float("nan"))

    return [None if gradient is None else largest(gradient) for gradient in gradients]


def _look(
    layer: Any, adds_loss: bool, host: list[Any], tracked: list[Any], values: dict[str, Any]
) -> Look:
    seen = Seen(layer=layer, adds_loss=adds_loss, **values["seen"])
    is_tracked = any(layer is one for one in tracked)
    if not adds_loss:
        return Look(seen, None, is_tracked)

    def by_name(variables: list[Any], found: list[Any]) -> dict[str, float | None]:
        names = [variable_name(v) for v in variables]
        return dict(zip(names, [None if x is None else float(x) for x in found], strict=True))

    return Look(
        seen,
        Gradients(
            encoders=by_name(layer.trainable_variables, values["encoders"]),
            host={name: by_name(host, found) for name, found in values["host"].items()},
        ),
        is_tracked,
    )
