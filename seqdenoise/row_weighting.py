"""Row weights that reach the side loss without passing through the model's layers."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from seqdenoise.numerics import Tensor

# A context variable, not a global: the replicas of `tf.distribute` trace in threads of their own.
_ROW_WEIGHTS: ContextVar[Tensor | None] = ContextVar("seqdenoise_row_weights", default=None)


@contextmanager
def row_weights(sample_weight: Any) -> Iterator[None]:
    """Hands `sample_weight` to every `SequenceDenoiser` that is called inside, in training.

    A layer cannot see the `sample_weight` of `fit`. A model made by `denoise` enters this context
    in its `train_step`; a model or a training loop of your own does it like this. A denoiser whose
    call is given `sample_weight` takes that instead.

    Args:
        sample_weight: Non-negative numbers `[B]` or `[B, 1]`, or a structure of such, one an
            output, some of them perhaps None: then a row counts as the mean over those that are
            given. Of weights `[B, T]`, one a time step, a row's mean counts. None for no weights.

    Yields:
        Nothing.

    Raises:
        ValueError: A weight is a scalar.

    Example:
        >>> from seqdenoise import SequenceDenoiser
        >>> denoiser = SequenceDenoiser(seed=1)
        >>> click = tf.random.stateless_normal([4, 5, 8], seed=[0, 1])
        >>> with row_weights([0.0, 0.0, 0.0, 0.0]):
        ...     _ = denoiser({"click": click}, training=True)
        >>> float(denoiser.losses[0])  # no row counts
        0.0
    """
    token = _ROW_WEIGHTS.set(_mean_over_outputs(sample_weight))
    try:
        yield
    finally:
        _ROW_WEIGHTS.reset(token)


def current_row_weights() -> Tensor | None:
    """The weights `[B]`, float32, of the innermost `row_weights`; None outside of one."""
    return _ROW_WEIGHTS.get()


def _mean_over_outputs(sample_weight: Any) -> Tensor | None:
    if _is_rows(sample_weight):
        return _rows(sample_weight)
    given = [_rows(x) for x in tf.nest.flatten(sample_weight) if x is not None]
    return tf.add_n(given) / len(given) if given else None


def _is_rows(sample_weight: Any) -> bool:
    """Whether this is one output's weights as a plain list of numbers."""
    return isinstance(sample_weight, list | tuple) and all(
        isinstance(x, int | float) for x in sample_weight
    )


def _rows(sample_weight: Any) -> Tensor:
    weights = tf.cast(tf.convert_to_tensor(sample_weight), tf.float32)
    if weights.shape.rank == 0:
        raise ValueError(
            f"`sample_weight` must have a weight a row, shape [B]. Received: shape {weights.shape}"
        )
    return tf.reduce_mean(weights, axis=tuple(range(1, weights.shape.rank)))
