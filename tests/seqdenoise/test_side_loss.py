import numpy as np
import pytest
import tensorflow as tf

from seqdenoise import SequenceDenoiser
from seqdenoise.side_loss import SideLoss, event_mask

EVENTS = tf.zeros([3, 4, 2])
REAL = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)


@pytest.mark.parametrize(
    "given",
    [
        REAL,
        np.array([2, 1, 0]),
        np.array([[2], [1], [0]], np.int64),
        np.array([[7, 3, 0, 0], [5, 0, 0, 0], [0, 0, 0, 0]], np.int32),
        REAL.astype(np.uint8),
    ],
    ids=["bool", "lengths", "column", "ids", "zeros_and_ones"],
)
def test_which_events_are_real(given):
    got = event_mask("click", tf.constant(given), EVENTS)
    assert got.dtype == tf.bool
    np.testing.assert_array_equal(got, REAL)


def test_which_pooled_rows_are_real():
    for given in (np.array([2, 1, 0]), np.array([[2], [1], [0]]), np.array([True, True, False])):
        got = event_mask("click", tf.constant(given), EVENTS[:, 0])
        np.testing.assert_array_equal(got, [True, True, False])


@pytest.mark.parametrize("given", [tf.ones([3, 4]), tf.ones([3, 4, 1], tf.int32)])
def test_other_masks_are_refused(given):
    with pytest.raises(ValueError, match=r"mask of `click` must be bool \[B, L\], or int.*Rec"):
        event_mask("click", given, EVENTS)


def test_passes_its_tensor_and_the_mask_of_that_alone():
    layer = SideLoss(SequenceDenoiser(name="d"), name="side")
    passed = tf.constant(["any", "thing", ""])
    click = tf.random.stateless_normal([3, 4, 2], [0, 1])
    for training in (False, True):
        out = layer({"passed": passed, "sequences": {"click": click}}, training=training)
        np.testing.assert_array_equal(out, passed)
        assert len(layer.losses) == training
    masks = {"passed": passed != "", "sequences": {"click": tf.constant(REAL)}}
    got = layer.compute_mask({"passed": passed, "sequences": {"click": click}}, masks)
    assert got is masks["passed"]
    assert layer.compute_mask({}, None) is None


def test_config_round_trip():
    layer = SideLoss(SequenceDenoiser(weight=0.3, seed=5, types={"a": "b"}, name="d"), name="side")
    again = SideLoss.from_config(layer.get_config())
    assert again.name == "side"
    assert again.denoiser.get_config() == layer.denoiser.get_config()
