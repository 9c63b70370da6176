"""Encoders of a view: a two-layer MLP to a unit vector, its head and its slow twin."""

from functools import partial
from typing import Any

import tensorflow as tf

from seqdenoise.numerics import Tensor, l2_normalize
from seqdenoise.seeded_dense import seeded_dense


@tf.keras.utils.register_keras_serializable(package="seqdenoise")
class ViewEncoder(tf.keras.layers.Layer):
    """Two-layer MLP (ReLU between) followed by L2 normalisation, and optionally a projection head.

    The head, two more dense layers and a normalisation, is what is contrasted; the representation
    before it is what serves downstream, since the contrast may discard in the head what a later
    task needs.

    The initial weights come from `seed` alone, so building this layer never moves the random state
    of the model that hosts it.

    Args:
        units: Length `d` of the representation.
        hidden_units: Width of the hidden layer.
        head_units: Length of the head's vectors, or None for no head. Its hidden layer is as wide
            as the representation.
        seed: Seed of the initial weights.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Call arguments:
        view: float `[B, D]`.

    Returns:
        Unit vectors `[B, head_units or units]`, float32 (float64 under a float64 policy) whatever
        the compute dtype; a zero vector where the MLP's output has no direction.

    References:
        Chen et al. (2020), "A Simple Framework for Contrastive Learning of Visual Representations",
        section 2.1 (`f`, `h`, `g`), where `h` is not normalised.

    Example:
        >>> encoder = ViewEncoder(units=4, hidden_units=8, head_units=2, seed=1)
        >>> encoder(tf.ones([3, 6])).shape, encoder.represent(tf.ones([3, 6])).shape
        (TensorShape([3, 2]), TensorShape([3, 4]))
    """

    def __init__(
        self,
        units: int = 32,
        hidden_units: int = 64,
        head_units: int | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if units < 1 or hidden_units < 1 or (head_units is not None and head_units < 1):
            raise ValueError(
                "`units`, `hidden_units` and `head_units` must be at least 1. Received: "
                f"units={units}, hidden_units={hidden_units}, head_units={head_units}"
            )
        self.units = units
        self.hidden_units = hidden_units
        self.head_units = head_units
        self.seed = seed

    def build(self, input_shape: Any) -> None:
        """Creates the dense layers."""
        dense = partial(seeded_dense, seed=self.seed, scope=self.name, dtype=self.dtype_policy)
        self.hidden = dense("hidden", int(input_shape[-1]), self.hidden_units, "relu")
        self.projection = dense("projection", self.hidden_units, self.units, None)
        if self.head_units is not None:
            self.head_hidden = dense("head_hidden", self.units, self.units, "relu")
            self.head_projection = dense("head_projection", self.units, self.head_units, None)
        super().build(input_shape)

    def represent(self, view: Tensor) -> Tensor:
        """The representation before any head, unit vectors `[B, units]`."""
        unit, _ = l2_normalize(self.projection(self.hidden(view)))
        return unit

    def call(self, view: Tensor) -> Tensor:
        """Encodes a view; see the class."""
        unit = self.represent(view)
        if self.head_units is not None:
            unit, _ = l2_normalize(self.head_projection(self.head_hidden(unit)))
        return unit

    def get_config(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        return {
            **super().get_config(),
            "units": self.units,
            "hidden_units": self.hidden_units,
            "head_units": self.head_units,
            "seed": self.seed,
        }


@tf.keras.utils.register_keras_serializable(package="seqdenoise")
class FixedEncoder(ViewEncoder):
    """A `ViewEncoder` that is never trainable.

    `layer.trainable = True` goes down to all layers inside, and Keras says it of a model that it
    loads: a key encoder would then get a place in the optimizer, and a warning at each trace.
    """

    def build(self, input_shape: Any) -> None:
        """Creates the dense layers."""
        super().build(input_shape)
        # Not by assignment: TensorFlow skips one that seems to change nothing.
        ViewEncoder.trainable.fset(self, False)

    @property
    def trainable(self) -> bool:
        """False."""
        return False

    @trainable.setter
    def trainable(self, value: bool) -> None:
        del value
        ViewEncoder.trainable.fset(self, False)


def update_momentum_encoder(keys: ViewEncoder, queries: ViewEncoder, momentum: float) -> None:
    r"""Moves the key encoder a little towards the query encoder.

    $$ \theta_k \leftarrow m \, \theta_k + (1 - m) \, \theta_q $$

    Args:
        keys: The key encoder, built, of the same shape.
        queries: The query encoder, built.
        momentum: `m` in [0, 1].

    References:
        He et al. (2020), "Momentum Contrast for Unsupervised Visual Representation Learning",
        equation 2.
    """
    for key, query in zip(keys.weights, queries.weights, strict=True):
        # As a difference, so that equal weights stay equal to the last bit.
        key.assign_add((1 - momentum) * (tf.convert_to_tensor(query) - tf.convert_to_tensor(key)))
