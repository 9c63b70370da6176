"""The weight of the side loss as a schedule over the steps."""

import json

import numpy as np
import pytest
import tensorflow as tf

from seqdenoise import SequenceDenoiser
from seqdenoise.recording import recording

SCHEDULES = tf.keras.optimizers.schedules


@tf.keras.utils.register_keras_serializable(package="test_side_weight")
class Alternating(SCHEDULES.LearningRateSchedule):
    """A schedule of a user's own."""

    def __init__(self, high):
        self.high = high

    def __call__(self, step):
        return self.high * tf.cast(step % 2, tf.float32)

    def get_config(self):
        return {"high": self.high}


# What each schedule is at the first steps.
CASES = {
    "rising": (lambda: SCHEDULES.PolynomialDecay(0.0, 4, 0.2), [0, 0.05, 0.1, 0.15, 0.2, 0.2]),
    "switched off": (
        lambda: SCHEDULES.PiecewiseConstantDecay([1, 3], [0.3, 0.1, 0.0]),
        [0.3, 0.3, 0.1, 0.1, 0, 0],
    ),
    "a user's own": (lambda: Alternating(0.4), [0, 0.4, 0, 0.4, 0, 0.4]),
}


def sequences():
    rng = np.random.default_rng(0)
    return {"click": tf.constant(rng.normal(size=(6, 3, 4)).astype(np.float32))}


def weights_of(denoiser, steps):
    """What each step's loss was multiplied by."""
    given, found = sequences(), []
    for _ in range(steps):
        with recording() as calls:
            denoiser(given, training=True)
        np.testing.assert_array_equal(denoiser.losses[-1], calls[0].added)
        found.append(float(calls[0].added / calls[0].side_loss))
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_weight_follows_the_schedule(case):
    make, expected = CASES[case]
    denoiser = SequenceDenoiser(weight=make())
    np.testing.assert_allclose(weights_of(denoiser, 6), expected, rtol=1e-5, atol=1e-8)
    assert int(denoiser.step) == 6
    # The warm-up comes on top.
    warm = SequenceDenoiser(weight=make(), warmup_steps=2)
    halved = [expected[0] / 2, *expected[1:]]
    np.testing.assert_allclose(weights_of(warm, 6), halved, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_is_saved_with_the_layer(case, tmp_path):
    denoiser = SequenceDenoiser(weight=CASES[case][0](), name="d")
    json.dumps(denoiser.get_config())
    again = SequenceDenoiser.from_config(denoiser.get_config())
    assert again.get_config() == denoiser.get_config()
    click = tf.keras.Input((3, 4))
    model = tf.keras.Model(click, denoiser({"click": click})["click"])
    weights_of(denoiser, 3)
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras").get_layer("d")
    assert weights_of(loaded, 2) == weights_of(denoiser, 2)  # the step was saved too


def test_a_schedule_in_a_graph_under_xla():
    given = sequences()
    schedule = SCHEDULES.CosineDecay(0.0, 10, warmup_target=0.2, warmup_steps=2)
    denoiser = SequenceDenoiser(weight=schedule)
    denoiser(given)

    @tf.function(jit_compile=True)
    def step():
        with recording() as calls:
            denoiser(given, training=True)
        return calls[0].added / calls[0].side_loss

    np.testing.assert_allclose([step() for _ in range(3)], [0, 0.1, 0.2], rtol=1e-5)


def test_what_is_no_weight_is_named():
    for weight, message in [
        (-0.1, "`weight` must be at least 0. Received: -0.1"),
        ("much", "`weight` must be a number, or a schedule of .* Received: 'much'"),
        (lambda step: 0.1, "`weight` must be a number, or a schedule of .* Received: <function"),
    ]:
        with pytest.raises(ValueError, match=message):
            SequenceDenoiser(weight=weight)
