"""Running a model of any kind in training on one batch, and putting it back as it was."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from seqdenoise.denoisers import denoisers_in
from seqdenoise.numerics import Tensor
from seqdenoise.recording import Seen, recording
from seqdenoise.row_weighting import row_weights


@dataclass(frozen=True)
class HostPass:
    """One pass of a model.

    Attributes:
        outputs: What the model returned; None of a model that is run by its `compute_loss` alone.
        main_loss: The loss that is not the side loss, a scalar; None where the batch has no labels
            or the model was not compiled.
        calls: The calls of its `SequenceDenoiser` layers.
    """

    outputs: Any
    main_loss: Tensor | None
    calls: list[Seen]


def check_one_device(model: Any, what: str) -> None:
    """Checks that a model is not spread over several replicas.

    Args:
        model: A Keras model.
        what: What needs that, for the error.

    Raises:
        ValueError: It is.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"{what} needs a model on one device. "
            f"Received: a model of {strategy.num_replicas_in_sync} replicas"
        )


def to_tensors(batch: Any) -> Any:
    """A batch with tensors in place of arrays; ragged and sparse ones stay what they are."""
    kept = (tf.RaggedTensor, tf.SparseTensor, type(None))
    return tf.nest.map_structure(
        lambda x: x if isinstance(x, kept) else tf.convert_to_tensor(x), batch
    )


def without_labels(model: Any, batch: Any) -> Any:
    """A batch without its labels, unless the model takes it whole."""
    if _takes_whole_batches(model):
        return batch
    x, _, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
    return x, None, sample_weight


def in_graph(model: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` as a graph, as the model trains; as it is for a model that runs eagerly.

    A pass in a graph also leaves TensorFlow's own random state alone, from which the host's
    initialisers and shuffling draw.
    """
    if getattr(model, "run_eagerly", False):
        return fn
    return tf.function(fn, autograph=False)


def build_on(model: Any, batch: Any) -> None:
    """Creates the variables of a model that was never run; in a graph it is not run for that.

    Args:
        model: A Keras model.
        batch: Tensors; as of `host_pass`.
    """
    if model.built and all(layer.built for layer in denoisers_in(model)):
        return
    fn = in_graph(model, lambda x: _forward(model, x))
    getattr(fn, "get_concrete_function", fn)(batch)


def host_pass(model: Any, batch: Any) -> HostPass:
    """Runs a model in training on one batch, without an optimizer.

    Args:
        model: A Keras model. One whose `compute_loss` takes the whole batch, as TFRS models do, is
            run by that; every other one by `model(x, training=True)`.
        batch: What its `fit` takes as one batch: `x`, `(x, y)` or `(x, y, sample_weight)`; of a
            model of the first kind, all of it.

    Returns:
        What came out. In a graph, tensors of that graph.
    """
    with recording() as calls:
        result = _forward(model, batch)
    side = side_loss_of(calls)
    if _takes_whole_batches(model):
        total = tf.add_n([result, *(tf.reduce_sum(loss) for loss in model.losses)])
        return HostPass(None, total - side, calls)
    x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
    if y is None or not _is_compiled(model):
        return HostPass(result, None, calls)
    total = model.compute_loss(x=x, y=y, y_pred=result, sample_weight=sample_weight)
    return HostPass(result, total - side, calls)


def side_loss_of(calls: list[Seen]) -> Tensor:
    """What was added to a model's loss, a float32 scalar."""
    return tf.add_n([tf.constant(0.0), *(call.added for call in calls if call.adds_loss)])


def host_weights(model: Any) -> list[Any]:
    """The trainable variables of a model that no `SequenceDenoiser` owns."""
    own = {id(v) for layer in denoisers_in(model) for v in layer.trainable_variables}
    return [v for v in model.trainable_variables if id(v) not in own]


@contextmanager
def kept_state(*models: Any) -> Iterator[None]:
    """Puts back what training passes move besides trainable weights.

    That is all other variables (the plug-in's step and queue, moving averages, seeds) and metrics.

    Args:
        *models: Keras models or layers, built.
    """
    layers = [layer for model in models for layer in model._flatten_layers()]
    metrics = [metric for layer in (*models, *layers) for metric in layer.metrics]
    generators = [getattr(seed, "_generator", None) for seed in _legacy_seeds(*models)]
    trainable = {id(v) for model in models for v in model.trainable_variables}
    variables = {
        id(v): v
        for v in (
            *(v for model in models for v in model.variables if id(v) not in trainable),
            *(v for metric in metrics for v in metric.variables),
            *(generator.state for generator in generators if generator is not None),
        )
    }
    values = [(v, tf.identity(v)) for v in variables.values()]
    try:
        with kept_legacy_seeds(*models):
            yield
    finally:
        for variable, value in values:
            variable.assign(value)


@contextmanager
def kept_legacy_seeds(*models: Any) -> Iterator[None]:
    """Puts back the dropout seeds that legacy Keras counts up whenever it traces a graph.

    Args:
        *models: Keras models or layers.
    """
    values = [(seed, seed._seed) for seed in _legacy_seeds(*models)]
    try:
        yield
    finally:
        for seed, value in values:
            seed._seed = value


def _legacy_seeds(*models: Any) -> list[Any]:
    layers = [layer for model in models for layer in model._flatten_layers()]
    found = [getattr(layer, "_random_generator", None) for layer in layers]
    return [seed for seed in found if hasattr(seed, "_seed")]


def _forward(model: Any, batch: Any) -> Any:
    """The outputs, or what a `compute_loss` that takes whole batches returns."""
    if _takes_whole_batches(model):
        return model.compute_loss(batch, training=True)
    x, _, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
    with row_weights(sample_weight):
        return model(x, training=True)


def _takes_whole_batches(model: Any) -> bool:
    return "y_pred" not in inspect.signature(model.compute_loss).parameters


def _is_compiled(model: Any) -> bool:
    return bool(getattr(model, "compiled", getattr(model, "_is_compiled", False)))
