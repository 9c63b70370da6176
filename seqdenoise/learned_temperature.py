"""A temperature that is trained, and cannot run away."""

import math

import tensorflow as tf

from seqdenoise.numerics import Tensor

# 1 / t of at most 100, as in CLIP, where an unbounded one made training diverge; and no more than
# the plain cosine, where a flat softmax says nothing any more.
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 1.0
_LOG_RANGE = math.log(MAX_TEMPERATURE / MIN_TEMPERATURE)


def to_parameter(temperature: float) -> float:
    """The free parameter that `to_temperature` maps to a temperature.

    Args:
        temperature: Strictly between `MIN_TEMPERATURE` and `MAX_TEMPERATURE`.

    Returns:
        A real number.

    Raises:
        ValueError: The temperature is not between the bounds.

    Example:
        >>> abs(to_parameter(0.1)) < 1e-12
        True
    """
    if not MIN_TEMPERATURE < temperature < MAX_TEMPERATURE:
        raise ValueError(
            f"A learned temperature must start between {MIN_TEMPERATURE} and {MAX_TEMPERATURE}. "
            f"Received: {temperature}"
        )
    share = math.log(temperature / MIN_TEMPERATURE) / _LOG_RANGE
    return math.log(share / (1 - share))


def to_temperature(parameter: Tensor) -> Tensor:
    """The temperature of a free parameter: log-uniform between the bounds, by a sigmoid.

    A clipped parameter would lose its gradient at the bound and stay there.

    Args:
        parameter: float scalar.

    Returns:
        float scalar between `MIN_TEMPERATURE` and `MAX_TEMPERATURE`.

    Example:
        >>> round(float(to_temperature(tf.constant(0.0))), 4)
        0.1
    """
    return MIN_TEMPERATURE * tf.exp(_LOG_RANGE * tf.sigmoid(parameter))
