"""What is particular to the debiased losses: the floor, and what a prior does."""

import numpy as np
import oracles
import pytest
import tensorflow as tf
from loss_cases import TEMPERATURES, batch, case_named

from seqdenoise import clamped_rate, debiased_loss, hard_negative_loss

MORE = case_named("hard_negative_more")


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("tau_plus", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("max_similarity", [None, 0.3])
def test_clamped_rate_equals_the_loops(temperature, tau_plus, beta, max_similarity):
    inputs = batch(MORE, used=("ids",))
    options = {"temperature": temperature, "tau_plus": tau_plus, "beta": beta}
    options["max_similarity"] = max_similarity
    a, b = inputs.pop("view_a"), inputs.pop("view_b")
    expected = oracles.clamped_rate(a, b, **inputs, **options)
    np.testing.assert_allclose(clamped_rate(a, b, **inputs, **options), expected, rtol=1e-12)
    if tau_plus == 0:
        assert expected == 0


def test_the_clamped_rates_of_the_test_above_are_not_all_alike():
    inputs = batch(MORE, used=("ids",))
    rates = {
        float(clamped_rate(**inputs, temperature=t, tau_plus=tau))
        for t in TEMPERATURES
        for tau in (0.02, 0.3)
    }
    assert len(rates) >= 3
    assert any(0 < rate < 1 for rate in rates)


def test_clamped_rate_without_anchors_is_zero():
    a = np.ones([3, 2], np.float32)
    rate = clamped_rate(a, a, mask=np.zeros(3, bool), temperature=0.1, tau_plus=0.1)
    assert rate == 0.0


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [debiased_loss, hard_negative_loss])
@pytest.mark.parametrize("tau_plus", [0.05, 0.5])
def test_at_the_floor_only_the_positive_pulls(temperature, dtype, loss, tau_plus):
    # Coinciding views and opposite negatives: the estimate is negative or, at a temperature of 1
    # and with the lower prior, positive and still below what it may be.
    a = np.array([[1.0, 0.1], [-1.0, 0.1]], dtype)
    inputs = {"view_a": a, "view_b": a, "mask": np.array([True, True])}
    options = {"temperature": temperature, "tau_plus": tau_plus}
    assert clamped_rate(**inputs, **options) == 1.0
    vectors = tf.constant(a), tf.constant(a)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        value = loss(*vectors, mask=inputs["mask"], weights=[1.0, 0.0], **options)
    # One negative, the positive at cosine 1: log(1 + e^{-1/t} / e^{1/t}).
    expected = np.log1p(np.exp(-2 / temperature))
    smallest = np.finfo(dtype).tiny
    np.testing.assert_allclose(value, expected, rtol=1e-6 / temperature, atol=smallest)
    of_a, of_b = (gradient.numpy() for gradient in tape.gradient(value, vectors))
    assert np.isfinite(of_a).all()
    np.testing.assert_array_equal(of_b[1], 0)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("tau_plus", [1e-6, 0.1, 0.999])
def test_every_pattern_of_views_is_finite(temperature, tau_plus):
    # Same, opposite and orthogonal vectors, where the two sides of the difference cancel exactly.
    axes = np.float32([[1, 0], [1, 0], [-1, 0], [0, 1], [0, 0], [-1, 0]])
    for shift in range(6):
        a, b = tf.constant(axes), tf.constant(np.roll(axes, shift, axis=0))
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            loss = debiased_loss(a, b, mask=[True] * 6, temperature=temperature, tau_plus=tau_plus)
        assert np.isfinite(loss)
        for gradient in tape.gradient(loss, [a, b]):
            assert np.isfinite(gradient).all()


@pytest.mark.parametrize("temperature", [0.07, 0.5, 1.0])
def test_a_tensor_is_a_prior_whose_gradient_flows(temperature):
    inputs = batch(MORE)
    prior = tf.Variable(0.02, dtype=tf.float64)
    with tf.GradientTape() as tape:
        loss = hard_negative_loss(**inputs, temperature=temperature, tau_plus=prior)
    value = hard_negative_loss(**inputs, temperature=temperature, tau_plus=0.02)
    np.testing.assert_array_equal(loss, value)
    a, b = inputs.pop("view_a"), inputs.pop("view_b")
    above, below = (
        oracles.hard_negative(a, b, temperature=temperature, tau_plus=0.02 + step, **inputs)
        for step in (1e-7, -1e-7)
    )
    expected = (above - below) / 2e-7
    assert abs(expected) > 0.01
    np.testing.assert_allclose(tape.gradient(loss, prior), expected, rtol=1e-5)


def test_more_positives_enter_the_estimate_alone():
    # Far positives say that false negatives add little, so less is taken off.
    a = np.float64([[1.0, 0.0], [0.0, 1.0]])
    options = {"mask": np.array([True, True]), "temperature": 1.0, "tau_plus": 0.2}
    far = -a[:, np.newaxis]
    own = debiased_loss(a, a, **options)
    both = debiased_loss(a, a, more_positives=far, **options)
    e = np.e
    # Negatives at cosine 0, the positives at 1 and -1.
    np.testing.assert_allclose(own, np.log1p(max((1 - 0.2 * e) / 0.8, 1 / e) / e))
    np.testing.assert_allclose(both, np.log1p((1 - 0.2 * (e + 1 / e) / 2) / 0.8 / e))
