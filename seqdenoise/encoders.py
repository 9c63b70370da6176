"""Encoders of a view: a two-layer MLP to a unit vector."""

import zlib
from typing import Any

import tensorflow as tf

from seqdenoise.numerics import Tensor, l2_normalize


@tf.keras.utils.register_keras_serializable(package="seqdenoise")
class ViewEncoder(tf.keras.layers.Layer):
    """Two-layer MLP (ReLU between) followed by L2 normalisation.

    The initial weights come from `seed` alone, so building this layer never moves the random state
    of the model that hosts it.

    Args:
        units: Length `d` of the vectors.
        hidden_units: Width of the hidden layer.
        seed: Seed of the initial weights.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Call arguments:
        view: float `[B, D]`.

    Returns:
        Unit vectors `[B, units]`, float32 (float64 under a float64 policy) whatever the compute
        dtype; a zero vector where the MLP's output has no direction.

    Example:
        >>> ViewEncoder(units=4, hidden_units=8, seed=1)(tf.ones([2, 6])).shape
        TensorShape([2, 4])
    """

    def __init__(
        self, units: int = 32, hidden_units: int = 64, seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if units < 1 or hidden_units < 1:
            raise ValueError(
                "`units` and `hidden_units` must be at least 1. "
                f"Received: units={units}, hidden_units={hidden_units}"
            )
        self.units = units
        self.hidden_units = hidden_units
        self.seed = seed

    def build(self, input_shape: Any) -> None:
        """Creates the two dense layers."""

        def dense(name: str, units: int, activation: str | None) -> Any:
            # Explicit names and seeds: automatic ones would shift the host model's own.
            return tf.keras.layers.Dense(
                units,
                activation=activation,
                kernel_initializer=tf.keras.initializers.GlorotUniform(
                    seed=zlib.crc32(f"{self.seed}/{name}".encode()) & 0x7FFFFFFF
                ),
                name=name,
                dtype=self.dtype_policy,
            )

        self.hidden = dense("hidden", self.hidden_units, "relu")
        self.projection = dense("projection", self.units, None)
        # Legacy Keras names weights by the name scope alone, and some of its file formats need
        # distinct names.
        with tf.name_scope(self.name), tf.name_scope("hidden"):
            self.hidden.build(input_shape)
        with tf.name_scope(self.name), tf.name_scope("projection"):
            self.projection.build((*tuple(input_shape)[:-1], self.hidden_units))
        super().build(input_shape)

    def call(self, view: Tensor) -> Tensor:
        """Encodes a view; see the class."""
        unit, _ = l2_normalize(self.projection(self.hidden(view)))
        return unit

    def get_config(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        return {
            **super().get_config(),
            "units": self.units,
            "hidden_units": self.hidden_units,
            "seed": self.seed,
        }
