import math

import numpy as np
import pytest
import tensorflow as tf

from seqdenoise.losses import pair_sums
from seqdenoise.losses.mean_log_odds import mean_log_odds
from seqdenoise.losses.pair_sums import Limit, Pairs

ROWS, LARGEST = 7, 0.8
VALID = np.array([1, 1, 0, 1, 1, 1, 1], bool)
KEYS = np.array([0, 1, 2, 0, 3, 4, 5])
PAIRS = Pairs(tf.constant(VALID), tf.constant(VALID), ((tf.constant(KEYS), tf.constant(KEYS)),))


def counts(a, b):
    found = np.zeros((ROWS, ROWS), bool)
    for i in range(ROWS):
        for j in range(ROWS):
            near = float(np.dot(a[i], b[j])) > LARGEST
            found[i, j] = VALID[i] and VALID[j] and KEYS[i] != KEYS[j] and not near
    return found


@pytest.fixture
def inputs():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, ROWS, 3))
    # One anchor that nothing counts for: all targets are nearer than the limit.
    a[5] = np.linalg.lstsq(b, np.full(ROWS, 50.0), rcond=None)[0]
    b[:, 0] = (5.0 - b[:, 1:] @ a[5, 1:]) / a[5, 0]
    assert not counts(a, b)[5].any() and counts(a, b).any()
    return a, b, rng.uniform(size=ROWS) * VALID


def by_loop(a, b, w):
    loss, of_a, of_b, of_w = 0.0, np.zeros_like(a), np.zeros_like(b), np.zeros_like(w)
    which = counts(a, b)
    for i in range(ROWS):
        ratios = {j: math.exp(a[i] @ b[j] - a[i] @ b[i]) for j in range(ROWS) if which[i, j]}
        odds = sum(ratios.values())
        of_w[i] = math.log1p(odds)
        loss += w[i] * of_w[i]
        for j, ratio in ratios.items():
            slope = w[i] * ratio / (1 + odds)
            of_a[i] += slope * (b[j] - b[i])
            of_b[j] += slope * a[i]
            of_b[i] -= slope * a[i]
    return loss, of_a, of_b, of_w


def dense(a, b, w):
    ratios = tf.matmul(a, b, transpose_b=True) - tf.reduce_sum(a * b, axis=1)[:, tf.newaxis]
    odds = tf.reduce_sum(tf.where(counts(a.numpy(), b.numpy()), tf.exp(ratios), 0.0), axis=1)
    return tf.reduce_sum(w * tf.math.log1p(odds))


def ours(a, b, w):
    return mean_log_odds(a, b, w, PAIRS, limit=Limit(tf.constant(LARGEST, tf.float64)))


def with_gradients(fn, *inputs):
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = fn(*inputs)
        scaled = 3.0 * value
    return value, *tape.gradient(scaled, inputs)


@pytest.fixture(params=[1, 2, 3, 7], ids="rows of a block: {}".format)
def blocks(request, monkeypatch):
    monkeypatch.setattr(pair_sums, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(pair_sums, "_PAIRS", ROWS * request.param)


@pytest.mark.parametrize("options", [None, {}, {"jit_compile": True}], ids=["eager", "graph", "xla"])
@pytest.mark.usefixtures("blocks")
def test_value_and_gradients_are_those_of_a_loop(inputs, options):
    def both(*inputs):
        return with_gradients(ours, *inputs)

    if options is not None:
        unknown = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in inputs]
        both = tf.function(both, input_signature=unknown, **options)
    value, *gradients = both(*map(tf.constant, inputs))
    loss, *expected = by_loop(*inputs)
    np.testing.assert_allclose(value, loss, rtol=1e-13)
    for got, one in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(got, 3 * one, rtol=1e-11, atol=1e-14)


@pytest.mark.usefixtures("blocks")
def test_the_gradient_has_a_gradient(inputs):
    """As an adversary that is trained through needs."""

    def slope(fn):
        def total(*inputs):
            _, *gradients = with_gradients(lambda *x: fn(*x) ** 2, *inputs)
            return tf.add_n([tf.reduce_sum(x**2) for x in gradients])

        return total

    for got, expected in zip(
        with_gradients(slope(ours), *inputs), with_gradients(slope(dense), *inputs), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_a_nan_surfaces(inputs):
    a, b, w = inputs
    a[3, 0] = np.nan
    value, of_a, of_b, _ = with_gradients(ours, a, b, w)
    assert np.isnan(value)
    assert np.isnan(of_a[3]).all()
    assert np.isnan(of_b).any()
