"""The coefficient of the side loss: a number, or a schedule over the steps."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from seqdenoise.numerics import Tensor

# Keras' own, so that there is nothing new to learn and its serialisation works: a schedule of the
# learning rate is a function of the step and nothing else.
_Schedule = tf.keras.optimizers.schedules.LearningRateSchedule


def to_weight(weight: Any) -> Any:
    """Brings a weight into one form.

    Args:
        weight: A number of at least 0, a schedule, or the configuration of one.

    Returns:
        A float or a schedule.

    Raises:
        ValueError: It is none of these.

    Example:
        >>> rising = tf.keras.optimizers.schedules.PolynomialDecay(0.0, 100, 0.2)
        >>> to_weight(to_config(rising)).get_config() == rising.get_config()
        True
    """
    if isinstance(weight, Mapping):
        weight = tf.keras.optimizers.schedules.deserialize(dict(weight))
    if isinstance(weight, _Schedule):
        return weight
    try:
        number = float(weight)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`weight` must be a number, or a schedule of `tf.keras.optimizers.schedules`. "
            f"Received: {weight!r}"
        ) from error
    if not number >= 0:
        raise ValueError(f"`weight` must be at least 0. Received: {number}")
    return number


def to_config(weight: Any) -> Any:
    """What `to_weight` takes back, of plain types alone."""
    if isinstance(weight, _Schedule):
        return tf.keras.optimizers.schedules.serialize(weight)
    return weight


def is_on(weight: Any) -> bool:
    """Whether the side loss is computed at all; with a schedule always."""
    return isinstance(weight, _Schedule) or weight > 0


def weight_at(weight: Any, step: Tensor) -> Any:
    """The weight at a step, int64 scalar: a float, or of a schedule a float32 scalar."""
    return tf.cast(weight(step), tf.float32) if isinstance(weight, _Schedule) else weight
