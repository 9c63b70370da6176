import numpy as np
import pytest
import tensorflow as tf

from seqdenoise.learned_temperature import to_parameter, to_temperature


@pytest.mark.parametrize("temperature", [0.011, 0.05, 0.1, 0.5, 0.99])
def test_starts_where_it_is_told_to(temperature):
    got = to_temperature(tf.constant(to_parameter(temperature), tf.float32))
    np.testing.assert_allclose(got, temperature, rtol=1e-5)


@pytest.mark.parametrize("parameter", [-1e30, -100.0, -5.0, 0.0, 5.0, 100.0, 1e30])
def test_never_leaves_its_bounds(parameter):
    got = float(to_temperature(tf.constant(parameter)))
    assert 0.01 - 1e-8 <= got <= 1 + 1e-6


def test_its_logarithm_moves_evenly_and_always_has_a_gradient():
    parameter = tf.Variable([-5.0, 0.0, 5.0])
    with tf.GradientTape() as tape:
        log = tf.math.log(to_temperature(parameter))
    share = 1 / (1 + np.exp([5.0, 0.0, -5.0]))
    np.testing.assert_allclose(
        tape.gradient(log, parameter), np.log(100) * share * (1 - share), rtol=1e-5
    )


@pytest.mark.parametrize("temperature", [0.01, 0.001, 1.0, 2.0])
def test_a_start_outside_the_bounds_is_named(temperature):
    with pytest.raises(ValueError, match=f"between 0.01 and 1.0. Received: {temperature}"):
        to_parameter(temperature)
