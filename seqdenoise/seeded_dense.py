"""A dense layer that is built at once, from a seed of its own."""

import zlib
from typing import Any

import tensorflow as tf


def seeded_dense(
    name: str,
    inputs: int,
    units: int,
    activation: str | None,
    *,
    seed: int,
    scope: str,
    dtype: Any = None,
) -> Any:
    """A built `tf.keras.layers.Dense` whose initial weights come from `seed` and `name` alone.

    So it neither draws from the random state of the model that hosts it, nor shifts the numbers
    that Keras gives to names.

    Args:
        name: Of the layer.
        inputs: Length of what it takes.
        units: Length of what it makes.
        activation: As Keras names it, or None.
        seed: Of the kernel, with the name; the bias begins at 0.
        scope: Name of the layer that owns it.
        dtype: Its dtype or policy; by default Keras' own.

    Returns:
        The layer.

    Example:
        >>> layer = seeded_dense("hidden", 4, 3, "relu", seed=0, scope="encoder")
        >>> again = seeded_dense("hidden", 4, 3, "relu", seed=0, scope="encoder")
        >>> bool(tf.reduce_all(layer.kernel == again.kernel))
        True
    """
    layer = tf.keras.layers.Dense(
        units,
        activation=activation,
        kernel_initializer=tf.keras.initializers.GlorotUniform(
            seed=zlib.crc32(f"{seed}/{name}".encode()) & 0x7FFFFFFF
        ),
        name=name,
        dtype=dtype,
    )
    # Legacy Keras names weights by the name scope alone, and some of its file formats need distinct
    # names.
    with tf.name_scope(scope), tf.name_scope(name):
        layer.build((None, inputs))
    return layer
