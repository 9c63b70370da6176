"""`DenoiserMonitor`: a callback that watches the plug-in while the model trains."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from seqdenoise.alarms import (
    Alarm,
    check_limits,
    no_decrease_alarms,
    not_measured_alarms,
    passed_limits,
)
from seqdenoise.denoisers import denoisers_in
from seqdenoise.host_pass import (
    build_on,
    check_one_device,
    host_pass,
    host_weights,
    in_graph,
    kept_legacy_seeds,
    kept_state,
    side_loss_of,
    to_tensors,
)
from seqdenoise.metrics import gradient_balance
from seqdenoise.numerics import Tensor

logger = logging.getLogger(__name__)


class DenoiserMonitor(tf.keras.callbacks.Callback):
    """Looks at the health of every `SequenceDenoiser` of a model, and says when something is wrong.

    It looks every `every` steps and at the end of each epoch. An alarm is raised once for each
    kind and sequence, and logged as a warning with what to do. The metrics of the plug-in are in
    the logs anyway; to those of an epoch this adds `side_gradient_ratio`, `side_gradient_cosine`
    and `side_loss_share`, if there is a `probe`, and `denoiser_alarms`, the number of alarms so
    far. Callbacks that write logs (`CSVLogger`, `TensorBoard`) go after this one in the list.

    Training is what it is without the monitor, to the last bit.

    Args:
        probe: Optional batch as `fit` takes it, `(x, y)` or `(x, y, sample_weight)`: some hundreds
            of rows on which to measure how strongly the side loss pulls at the weights that it
            shares with the model's own loss (`gradient_balance`), and its share of the loss, both
            with `weight` as it is at that step. One device only.
        every: Number of steps between two looks.
        on_alarm: `"log"`, or `"stop"` to end training too.
        limits: Optional limits other than the default ones, by what is measured, None for no limit:
            `effective_rank` (at least 2, or half of the vectors' length if that is less),
            `uniformity` (at most -0.1), `valid_rate` (at least 0.1), `false_negative_rate` (at most
            0.5), `side_gradient_ratio` (at most 1), `side_loss_share` (at most 0.5). Metrics are
            means since the epoch began.
        patience: Number of epochs after the first in which the loss of a sequence may fail to fall
            below the first one's.

    Attributes:
        alarms: The alarms of this training, in order.
        history: What was measured at each look: `step`, and values by their names in the logs.

    Raises:
        ValueError: An argument does not fit; at the start of training, that the model has no
            `SequenceDenoiser`, or the probe no labels.

    Example:
        >>> from seqdenoise import SequenceDenoiser
        >>> clicks = tf.keras.Input((4, 8))
        >>> out = SequenceDenoiser(name="denoiser")({"click": clicks})["click"]
        >>> model = tf.keras.Model(clicks, tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(out)))
        >>> model.compile("sgd", "mse")
        >>> monitor = DenoiserMonitor()
        >>> x = tf.random.stateless_normal([64, 4, 8], seed=[0, 1])
        >>> _ = model.fit(x, tf.zeros([64]), verbose=0, callbacks=[monitor])
        >>> monitor.history[0]["step"], monitor.alarms
        (2, [])
    """

    def __init__(
        self,
        probe: Any = None,
        *,
        every: int = 100,
        on_alarm: str = "log",
        limits: Mapping[str, float | None] | None = None,
        patience: int = 3,
    ) -> None:
        super().__init__()
        if on_alarm not in ("log", "stop"):
            raise ValueError(f"`on_alarm` must be 'log' or 'stop'. Received: {on_alarm!r}")
        if every < 1 or patience < 1:
            raise ValueError(
                "`every` and `patience` must be at least 1. "
                f"Received: every={every}, patience={patience}"
            )
        self.every = every
        self.on_alarm = on_alarm
        self.limits = check_limits(limits or {})
        self.patience = patience
        self.alarms: list[Alarm] = []
        self.history: list[dict[str, float]] = []
        self._probe = None if probe is None else to_tensors(probe)

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets an earlier training."""
        if not denoisers_in(self.model):
            raise ValueError(
                "The model must hold a SequenceDenoiser for a monitor to watch. "
                f"Received: {type(self.model).__name__} {self.model.name!r} without one"
            )
        self.alarms, self.history = [], []
        self._losses: dict[str, list[float]] = {}
        self._steps = self._looked_at = 0
        self._measure: Callable[[Any], dict[str, Tensor]] | None = None
        if self._probe is not None:
            self._measure = _balance_of(self.model, self._probe)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts batches from here."""
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Looks every `every` steps."""
        # With `steps_per_execution` Keras calls this once for several batches.
        self._steps += batch - self._batch
        self._batch = batch
        if self._steps - self._looked_at >= self.every:
            self._look()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks, and puts what it measured into the logs."""
        is_new = not self.history or self._looked_at < self._steps
        measured = self._look() if is_new else self.history[-1]
        for subject, health in self._health().items():
            losses = self._losses.setdefault(subject, [])
            if not losses and not self._are_queues_full():
                continue  # the loss of a queue rises while it fills
            losses.append(health["loss"])
            self._raise(no_decrease_alarms(subject, self._steps, losses, self.patience))
        if logs is not None:
            logs.update({name: x for name, x in measured.items() if name.startswith("side_")})
            logs["denoiser_alarms"] = len(self.alarms)

    def _look(self) -> dict[str, float]:
        measured: dict[str, float] = {"step": self._steps}
        for subject, health in self._health().items():
            self._raise(not_measured_alarms(subject, self._steps, health))
            limits = {**self.limits, "effective_rank": self._least_rank(subject)}
            self._raise(passed_limits(subject, self._steps, health, limits))
            measured.update({f"{subject}/{name}": x for name, x in health.items()})
        if self._measure is not None:
            with kept_state(self.model):
                balance = {name: float(x) for name, x in self._measure(self._probe).items()}
            self._raise(passed_limits("model", self._steps, balance, self.limits))
            measured.update(balance)
        self._looked_at = self._steps
        self.history.append(measured)
        return measured

    def _health(self) -> dict[str, dict[str, float]]:
        return {
            f"{layer.name}/{name}": {key: float(metric.result()) for key, metric in health.items()}
            for layer in denoisers_in(self.model)
            for name, health in layer._health.items()
        }

    def _least_rank(self, subject: str) -> float | None:
        limit = self.limits["effective_rank"]
        units = {
            f"{layer.name}/{name}": health["effective_rank"].units
            for layer in denoisers_in(self.model)
            for name, health in layer._health.items()
        }
        return None if limit is None else min(limit, units[subject] / 2)

    def _are_queues_full(self) -> bool:
        return all(
            int(tf.convert_to_tensor(queue.inserted)) >= queue.size
            for layer in denoisers_in(self.model)
            for queue in layer._queues.values()
        )

    def _raise(self, alarms: Iterable[Alarm]) -> None:
        for alarm in alarms:
            if any((alarm.kind, alarm.subject) == (x.kind, x.subject) for x in self.alarms):
                continue
            self.alarms.append(alarm)
            logger.warning("%s", alarm)
            if self.on_alarm == "stop":
                self.model.stop_training = True


def _balance_of(model: Any, probe: Any) -> Callable[[Any], dict[str, Tensor]]:
    """What a probe is measured with, of a model that has its variables."""
    check_one_device(model, "`probe`")

    def measure(batch: Any) -> dict[str, Tensor]:
        weights = host_weights(model)
        with tf.GradientTape(persistent=True) as tape:
            seen = host_pass(model, batch)
            side, main = side_loss_of(seen.calls), seen.main_loss
            if main is None:
                raise ValueError(
                    "`probe` must be (x, y) or (x, y, sample_weight), to tell the side loss from "
                    "the model's own. Received: a batch without labels, or a model without a loss"
                )
        pairs = [
            (one, other)
            for one, other in zip(
                tape.gradient(main, weights), tape.gradient(side, weights), strict=True
            )
            if one is not None and other is not None
        ]
        ratio = cosine = tf.constant(0.0)
        if pairs:
            ratio, cosine = gradient_balance(*zip(*pairs, strict=True))
        return {
            "side_gradient_ratio": ratio,
            "side_gradient_cosine": cosine,
            "side_loss_share": tf.math.divide_no_nan(side, side + main),
        }

    with kept_legacy_seeds(model):
        build_on(model, probe)
        fn = in_graph(model, measure)
        if fn is not measure:
            fn.get_concrete_function(probe)  # type: ignore[attr-defined]
    return fn
