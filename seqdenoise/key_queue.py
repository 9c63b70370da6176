"""The queue of past keys that serve as negatives (MoCo)."""

from typing import Any

import tensorflow as tf

from seqdenoise.numerics import Tensor


def enqueue(slots: Tensor, inserted: Tensor, rows: Tensor, *, mask: Tensor) -> Tensor:
    """Writes the valid rows into a ring, each over the oldest entry.

    Rows that are not valid take no slot. The batch may have any size, none and more rows than
    slots included; the last `K` valid rows remain then.

    Args:
        slots: The ring, `[K, ...]`.
        inserted: int64 scalar, the number of rows ever written; the next goes to slot
            `inserted % K`.
        rows: `[B, ...]` of the dtype of `slots`.
        mask: bool `[B]`, True for a valid row.

    Returns:
        The new ring `[K, ...]`.

    Example:
        >>> ring, mask = tf.zeros([3], tf.int64), tf.constant([True, False, True])
        >>> enqueue(ring, tf.constant(2, tf.int64), tf.constant([7, 8, 9], tf.int64), mask=mask)
        <tf.Tensor: shape=(3,), dtype=int64, numpy=array([9, 0, 7])>
    """
    size = tf.cast(tf.shape(slots)[0], tf.int64)
    count = tf.reduce_sum(tf.cast(mask, tf.int64))
    # One more row, which is not valid: a replica may have none, and a gather needs one.
    mask = tf.pad(mask, [[0, 1]])
    rows = tf.convert_to_tensor(rows)
    rows = tf.pad(rows, [[0, 1], *[[0, 0]] * (rows.shape.rank - 1)])
    # A gather by slot, not a scatter by row: nothing is written twice, and XLA takes it.
    valid_first = tf.argsort(tf.cast(mask, tf.int32), direction="DESCENDING", stable=True)
    first = tf.math.floormod(tf.range(size) - inserted, size)  # the first row for each slot ...
    last = first + size * tf.math.floordiv(count - 1 - first, size)  # ... and the last
    written = first < count
    row = tf.gather(valid_first, tf.where(written, last, tf.zeros_like(last)))
    shape = [-1] + [1] * (slots.shape.rank - 1)
    return tf.where(tf.reshape(written, shape), tf.gather(rows, row), slots)


@tf.keras.utils.register_keras_serializable(package="seqdenoise")
class KeyQueue(tf.keras.layers.Layer):
    """First-in-first-out store of key vectors and their ids, saved with the model.

    Args:
        size: Number of slots `K`.
        units: Length `d` of the vectors.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    References:
        He et al. (2020), "Momentum Contrast for Unsupervised Visual Representation Learning",
        section 3.2.
    """

    def __init__(self, size: int, units: int, **kwargs: Any) -> None:
        kwargs.setdefault("dtype", "float32")
        super().__init__(trainable=False, **kwargs)
        self.size = size
        self.units = units

        def state(name: str, shape: tuple[int, ...], dtype: str) -> Any:
            with tf.name_scope(self.name):
                return self.add_weight(
                    name=name, shape=shape, dtype=dtype, initializer="zeros", trainable=False
                )

        self.vectors = state("vectors", (size, units), "float32")
        self.ids = state("ids", (size,), "int64")
        self.inserted = state("inserted", (), "int64")
        self.built = True

    @property
    def filled(self) -> Tensor:
        """Bool `[K]`, True for a slot that holds a key."""
        return tf.range(self.size, dtype=tf.int64) < tf.convert_to_tensor(self.inserted)

    def push(self, vectors: Tensor, *, mask: Tensor, ids: Tensor | None = None) -> None:
        """Stores the valid rows.

        Args:
            vectors: Unit vectors `[B, units]`.
            mask: bool `[B]`, True for a valid row.
            ids: Optional int64 `[B]`; 0 is stored without them.
        """
        inserted = tf.convert_to_tensor(self.inserted)
        vectors = tf.cast(tf.stop_gradient(vectors), tf.float32)
        self.vectors.assign(
            enqueue(tf.convert_to_tensor(self.vectors), inserted, vectors, mask=mask)
        )
        ids = tf.zeros_like(mask, tf.int64) if ids is None else ids
        self.ids.assign(enqueue(tf.convert_to_tensor(self.ids), inserted, ids, mask=mask))
        self.inserted.assign_add(tf.reduce_sum(tf.cast(mask, tf.int64)))

    def get_config(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        config = super().get_config()
        config.pop("trainable", None)
        return {**config, "size": self.size, "units": self.units}
