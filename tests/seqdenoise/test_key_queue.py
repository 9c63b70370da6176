"""The key queue against a ring buffer written as a loop."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from seqdenoise.key_queue import KeyQueue, enqueue


class Ring:
    """What the paper's queue is: the oldest entry makes place."""

    def __init__(self, size, units):
        self.vectors = np.zeros([size, units], np.float32)
        self.ids = np.zeros(size, np.int64)
        self.next = self.count = 0

    def push(self, vectors, ids, mask):
        for vector, one, valid in zip(vectors, ids, mask, strict=True):
            if valid:
                self.vectors[self.next] = vector
                self.ids[self.next] = one
                self.next = (self.next + 1) % len(self.ids)
                self.count = min(self.count + 1, len(self.ids))


def batches(rows, units, steps, seed=0, valid=0.7):
    rng = np.random.default_rng(seed)
    for step in range(steps):
        yield (
            rng.normal(size=(rows, units)).astype(np.float32),
            np.arange(rows) + 100 * step,
            rng.random(rows) < valid,
        )


# B below, beside and above K, never dividing it, over more than three wraps.
@pytest.mark.parametrize(("size", "rows"), [(7, 3), (7, 6), (7, 10), (7, 23), (1, 2)])
@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_holds_what_a_ring_buffer_holds(size, rows, jit_compile):
    queue, ring = KeyQueue(size, 4), Ring(size, 4)

    def push(vectors, ids, mask):
        queue.push(vectors, mask=mask, ids=ids)

    if jit_compile is not None:
        push = tf.function(push, jit_compile=jit_compile)
    wrapped = 0
    for vectors, ids, mask in batches(rows, 4, steps=40):
        push(*map(tf.constant, (vectors, ids, mask)))
        ring.push(vectors, ids, mask)
        wrapped += mask.sum()
        np.testing.assert_array_equal(queue.vectors.numpy(), ring.vectors)
        np.testing.assert_array_equal(queue.ids.numpy(), ring.ids)
        np.testing.assert_array_equal(queue.filled.numpy(), np.arange(size) < ring.count)
    assert wrapped > 3 * size
    assert int(queue.inserted) == wrapped


@given(st.lists(st.booleans(), min_size=5, max_size=5), st.integers(0, 2**40))
def test_invalid_rows_take_no_slot_and_may_hold_anything(mask, inserted):
    mask, old = np.array(mask), np.arange(4, dtype=np.float32)
    rows = np.where(mask, 10 + np.arange(5), np.nan).astype(np.float32)
    got = enqueue(tf.constant(old), tf.constant(inserted, tf.int64), rows, mask=mask).numpy()
    expected = old.copy()
    for number, row in enumerate(rows[mask]):
        expected[(inserted + number) % 4] = row
    np.testing.assert_array_equal(got, expected)


def test_without_ids_their_place_is_zero():
    queue = KeyQueue(4, 2)
    queue.push(tf.ones([2, 2]), mask=tf.constant([True, True]))
    np.testing.assert_array_equal(queue.ids.numpy(), 0)
    np.testing.assert_array_equal(queue.filled.numpy(), [True, True, False, False])


def test_keys_get_no_gradient():
    queue = KeyQueue(4, 2)
    assert queue.trainable_variables == []
    assert len(queue.non_trainable_variables) == 3


def test_a_save_and_load_in_between_changes_nothing(tmp_path):
    inputs = tf.keras.Input((4,))

    @tf.keras.utils.register_keras_serializable(package="test")
    class Pushing(tf.keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.queue = KeyQueue(7, 4, name="queue")

        def call(self, x):
            self.queue.push(x, mask=tf.ones(tf.shape(x)[:1], tf.bool))
            return x

    model = tf.keras.Model(inputs, Pushing(name="pushing")(inputs))
    start = int(model.get_layer("pushing").queue.inserted)  # building may have called it
    ring = Ring(7, 4)
    for step, (vectors, _, _) in enumerate(batches(3, 4, steps=9)):
        if step == 4:
            model.save(tmp_path / "model.keras")
            model = tf.keras.models.load_model(tmp_path / "model.keras")
        model(tf.constant(vectors))
        ring.push(vectors, np.zeros(3), np.ones(3, bool))
    queue = model.get_layer("pushing").queue
    assert int(queue.inserted) == start + 27
    np.testing.assert_array_equal(np.roll(queue.vectors.numpy(), -start, 0), ring.vectors)
