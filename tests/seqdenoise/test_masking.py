import numpy as np
import pytest
import tensorflow as tf

from seqdenoise.masking import Masking

SEED = tf.constant([3, 4])


@pytest.fixture
def fields():
    """Three events a row: all real, one, none; padded slots hold NaN."""
    rng = np.random.default_rng(0)
    mask = np.arange(3) < np.array([[3], [1], [0]])
    sizes = {"brand": 2, "item": 4}
    events = {
        field: np.where(mask[:, :, None], rng.normal(size=(3, 3, size)), np.nan)
        for field, size in sizes.items()
    }
    return {field: tf.constant(x) for field, x in events.items()}, tf.constant(mask)


@pytest.mark.parametrize("name", ["dimension", "dropout"])
def test_fields_are_seen_as_the_events_they_make_up(name, fields):
    events, mask = fields
    masking = Masking(name, 0.3, None)
    found = []
    for given in (events, tf.concat([events["brand"], events["item"]], axis=-1)):
        with tf.GradientTape() as tape:
            tape.watch(given)
            view_a, view_b, valid = masking.views("click", given, mask, SEED)
            total = tf.reduce_sum(view_a * tf.range(1.0, 7.0, dtype=tf.float64)) - tf.reduce_sum(
                view_b**2
            )
        gradient = tape.gradient(total, given)
        if isinstance(gradient, dict):
            gradient = tf.concat([gradient["brand"], gradient["item"]], axis=-1)
        found.append([view_a, view_b, valid, gradient])
    for by_field, whole in zip(*found, strict=True):
        np.testing.assert_array_equal(by_field, whole)
    view_a, view_b, valid, gradient = found[0]
    np.testing.assert_array_equal(valid, [True, True, False])
    np.testing.assert_array_equal(view_a[2], 0)
    np.testing.assert_array_equal(tf.boolean_mask(gradient, ~mask), 0)
    assert np.abs(view_a[:2]).max() > 0
