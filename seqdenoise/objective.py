"""The contrastive loss of the plug-in by name, and what it takes."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from seqdenoise import losses
from seqdenoise.numerics import Tensor

LOSSES: dict[str, Callable[..., Tensor]] = {
    "info_nce": losses.info_nce_loss,
    "nt_xent": losses.nt_xent_loss,
    "n_pair": losses.n_pair_loss,
    "triplet": losses.triplet_loss,
    "simple": losses.simple_contrastive_loss,
    "debiased": losses.debiased_loss,
    "hard_negative": losses.hard_negative_loss,
    "multi_positive": losses.multi_positive_loss,
    "moco": losses.moco_loss,
    "rocl": losses.rocl_loss,
}

# Losses that are no logarithm of a softmax: they do not grow with the number of candidates.
_BOUNDED = (losses.triplet_loss, losses.simple_contrastive_loss)
# What the plug-in itself hands over, so that it may not be an option too.
_HANDED_OVER = {
    "mask", "ids", "weights", "labels", "more_positives", "adversarial", "temperature",
    "queue", "queue_mask", "queue_ids",
}  # fmt: skip


@dataclass(frozen=True)
class Objective:
    """A loss and its options.

    Attributes:
        loss: Its name, or a callable.
        options: Further keyword arguments; a mapping from type to value gives each type its own.
    """

    loss: str | Callable[..., Tensor]
    options: Mapping[str, Any]
    fn: Callable[..., Tensor] = field(init=False)

    def __post_init__(self) -> None:
        """Finds the function and checks the options.

        Raises:
            ValueError: The name is unknown, or the loss does not take an option.
        """
        if callable(self.loss):
            fn: Any = self.loss
        else:
            fn = LOSSES.get(self.loss) or tf.keras.utils.get_registered_object(self.loss)
        if fn is None:
            raise ValueError(
                f"`loss` must be one of {sorted(LOSSES)}, or a callable (registered for Keras "
                f"serialisation if the layer is to be saved). Received: {self.loss!r}"
            )
        object.__setattr__(self, "fn", fn)
        known = [name for name in self._parameters if name not in _HANDED_OVER]
        for name in self.options:
            if name in _HANDED_OVER or not self.takes(name):
                raise ValueError(
                    f"`loss_options` of loss {self.name!r} may hold {known[2:]}. Received: {name!r}"
                )

    @property
    def name(self) -> str:
        """The loss's name, the registered one of a callable."""
        if isinstance(self.loss, str):
            return self.loss
        return str(tf.keras.utils.get_registered_name(self.loss))

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.fn).parameters

    def declares(self, name: str) -> bool:
        """Whether the loss has a parameter of this name."""
        return name in self._parameters

    def takes(self, name: str) -> bool:
        """Whether the loss has a parameter of this name, or takes any."""
        kinds = (parameter.kind for parameter in self._parameters.values())
        return self.declares(name) or inspect.Parameter.VAR_KEYWORD in kinds

    @property
    def default_temperature(self) -> float:
        """The loss's own default, 0.1 where it has none."""
        return float(self.defaults.get("temperature", 0.1))

    @property
    def defaults(self) -> dict[str, Any]:
        """The loss's own values of what it can be called without."""
        return {
            name: parameter.default
            for name, parameter in self._parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }

    def options_of(self, kind: str) -> dict[str, Any]:
        """The options for sequences of one type.

        Raises:
            ValueError: An option that differs by type lacks this one.
        """
        for name, value in self.options.items():
            if isinstance(value, Mapping) and kind not in value:
                raise ValueError(
                    f"`loss_options[{name!r}]` must have type `{kind}`. Received: {sorted(value)}"
                )
        return {
            name: value[kind] if isinstance(value, Mapping) else value
            for name, value in self.options.items()
        }

    def chance_level(
        self, valid_rows: Tensor, queued: Tensor | None = None, *, num_blocks: Tensor | int = 1
    ) -> Tensor:
        """About what the loss is for vectors that say nothing, at least `log 2`.

        The logarithm of the number of candidates of an anchor; 1 for a loss that is no logarithm.

        Args:
            valid_rows: float scalar, the number of valid rows.
            queued: float scalar, the number of queued keys, where the loss takes a queue.
            num_blocks: In how many parts, that do not meet, the loss cuts the rows.

        Returns:
            float scalar.
        """
        if self.fn in _BOUNDED:
            return tf.ones_like(valid_rows)
        candidates = valid_rows / tf.cast(num_blocks, valid_rows.dtype)
        if queued is not None:
            candidates = 1 + queued
        elif self.fn is losses.nt_xent_loss:
            candidates = 2 * valid_rows - 1
        return tf.math.log(tf.maximum(candidates, 2.0))
