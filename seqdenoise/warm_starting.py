"""`warm_start`: the side loss alone, before a model learns to rank."""

import logging
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from seqdenoise.denoisers import denoisers_in
from seqdenoise.host_pass import (
    build_on,
    check_one_device,
    host_pass,
    in_graph,
    kept_legacy_seeds,
    kept_state,
    to_tensors,
    without_labels,
)
from seqdenoise.numerics import Tensor
from seqdenoise.side_weight import is_on

logger = logging.getLogger(__name__)


def warm_start(
    model: Any, dataset: Iterable[Any], epochs: int = 1, optimizer: Any = None
) -> list[dict[str, float]]:
    r"""Trains what the side loss reaches, the encoders and usually the embeddings, by it alone.

    The loss is the sum over the model's plug-ins of

    $$ \frac{1}{|S|} \sum_{s \in S} \frac{L_s}{\log candidates_s} $$

    without `weight`, its schedule and its warm-up: those say how it stands beside the ranking loss,
    which is not there. Every other weight of the model, its moving averages and seeds, its
    optimizer and metrics stay what they were. So does the plug-in's step: its warm-up and schedule
    begin with the ranking. A queue of keys is kept.

    Args:
        model: A Keras model with a `SequenceDenoiser`. It need not be compiled.
        dataset: Batches as `fit` takes them, gone through once an epoch: a `tf.data.Dataset` or a
            list. Labels are not looked at and may be left out, unless the model itself takes whole
            batches, labels among them, as TFRS models do. Weights count.
        epochs: Number of passes.
        optimizer: Optional optimizer of its own; None is Adam with its usual rate, 0.001.

    Returns:
        For each epoch the mean `side_loss`, and the plug-ins' metrics by their names.

    Raises:
        ValueError: The model has no plug-in that is on or is spread over replicas, the dataset has
            no batch, or the optimizer is the model's own.

    Example:
        >>> from seqdenoise import SequenceDenoiser
        >>> ids = tf.keras.Input((4,), dtype="int32")
        >>> clicks = tf.keras.layers.Embedding(50, 8)(ids)
        >>> out = SequenceDenoiser(name="denoiser")({"click": clicks})["click"]
        >>> model = tf.keras.Model(ids, tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(out)))
        >>> batch = tf.random.stateless_uniform([64, 4], [0, 1], 0, 50, tf.int32)
        >>> first, last = warm_start(model, [batch] * 20, epochs=2)
        >>> last["side_loss"] < first["side_loss"]
        True
    """
    check_one_device(model, "`warm_start`")
    if epochs < 1:
        raise ValueError(f"`epochs` must be at least 1. Received: {epochs}")
    if optimizer is None:
        optimizer = tf.keras.optimizers.Adam()
    elif optimizer is getattr(model, "optimizer", None):
        raise ValueError(
            "`optimizer` must not be the model's own, which is to stay as it is. "
            f"Received: {optimizer!r}"
        )
    first = next(iter(dataset), None)
    if first is None:
        raise ValueError("`dataset` must have a batch. Received: none")
    with kept_legacy_seeds(model):
        build_on(model, without_labels(model, to_tensors(first)))
    layers = [layer for layer in denoisers_in(model) if is_on(layer.weight)]
    if not layers:
        raise ValueError(
            "`model` must hold a SequenceDenoiser with a weight above 0. "
            f"Received: {type(model).__name__} {model.name!r} without one"
        )
    with kept_state(model):
        history = _train(model, dataset, epochs, optimizer, layers)
        learnt = [
            (v, tf.identity(v))
            for layer in layers
            for v in layer.non_trainable_variables
            if v is not layer.step
        ]
    for variable, value in learnt:
        variable.assign(value)
    return history


def _train(
    model: Any, dataset: Iterable[Any], epochs: int, optimizer: Any, layers: list[Any]
) -> list[dict[str, float]]:
    def step(batch: Any) -> Tensor:
        with tf.GradientTape() as tape:
            calls = host_pass(model, batch).calls
            loss = tf.add_n([call.side_loss for call in calls if call.adds_loss])
        variables = model.trainable_variables
        pairs = zip(tape.gradient(loss, variables), variables, strict=True)
        # Without the rest of the model, for which Keras would warn.
        optimizer.apply_gradients([(gradient, v) for gradient, v in pairs if gradient is not None])
        return loss

    train = in_graph(model, step)
    metrics = {metric.name: metric for layer in layers for metric in layer.metrics}
    mean = tf.keras.metrics.Mean()
    history = []
    for epoch in range(epochs):
        for metric in (mean, *metrics.values()):
            metric.reset_state()
        for batch in dataset:
            mean.update_state(train(without_labels(model, to_tensors(batch))))
        if not float(mean.count):
            raise ValueError(
                f"`dataset` must have batches in every epoch. Received: none in epoch {epoch + 1}"
            )
        values = {name: float(metric.result()) for name, metric in metrics.items()}
        history.append({"side_loss": float(mean.result()), **values})
        logger.info("warm start: epoch %d, side loss %.4f", epoch + 1, history[-1]["side_loss"])
    return history
