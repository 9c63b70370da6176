import math

import numpy as np
import pytest
import tensorflow as tf

from seqdenoise.losses import pair_sums
from seqdenoise.losses.mean_log_odds import mean_log_odds
from seqdenoise.losses.pair_sums import Limit, Pairs

ROWS, COLUMNS, LARGEST = 7, 5, 0.8
VALID = np.array([1, 1, 0, 1, 1, 1, 1], bool)
KEYS = np.array([0, 1, 2, 0, 3, 4, 5])
OF_COLUMNS = np.array([1, 1, 0, 1, 1], bool)
KEYS_OF_COLUMNS = np.array([1, 0, 0, 4, 5])
PAIRS = Pairs(
    tf.constant(VALID),
    tf.constant(OF_COLUMNS),
    ((tf.constant(KEYS), tf.constant(KEYS_OF_COLUMNS)),),
)


def counts(a, b):
    found = np.zeros((ROWS, COLUMNS), bool)
    for i in range(ROWS):
        for j in range(COLUMNS):
            near = float(np.dot(a[i], b[j])) > LARGEST
            differ = KEYS[i] != KEYS_OF_COLUMNS[j]
            found[i, j] = VALID[i] and OF_COLUMNS[j] and differ and not near
    return found


each_mode = pytest.mark.parametrize(
    "options", [None, {}, {"jit_compile": True}], ids=["eager", "graph", "xla"]
)


@pytest.fixture
def inputs():
    rng = np.random.default_rng(3)
    a, p = rng.normal(size=(2, ROWS, 3))
    b = rng.normal(size=(COLUMNS, 3))
    # One anchor that nothing counts for: all columns are nearer than the limit.
    b[:, 0] = (5.0 - b[:, 1:] @ a[5, 1:]) / a[5, 0]
    assert not counts(a, b)[5].any()
    assert counts(a, b).any()
    return a, p, b, rng.uniform(size=ROWS) * VALID


def by_loop(a, p, b, w):
    loss, of_a, of_p, of_b, of_w = 0.0, *(np.zeros_like(x) for x in (a, p, b, w))
    which = counts(a, b)
    for i in range(ROWS):
        ratios = {j: math.exp(a[i] @ b[j] - a[i] @ p[i]) for j in range(COLUMNS) if which[i, j]}
        odds = sum(ratios.values())
        of_w[i] = math.log1p(odds)
        loss += w[i] * of_w[i]
        for j, ratio in ratios.items():
            slope = w[i] * ratio / (1 + odds)
            of_a[i] += slope * (b[j] - p[i])
            of_b[j] += slope * a[i]
            of_p[i] -= slope * a[i]
    return loss, of_a, of_p, of_b, of_w


def dense(a, p, b, w):
    ratios = tf.matmul(a, b, transpose_b=True) - tf.reduce_sum(a * p, axis=1)[:, tf.newaxis]
    odds = tf.reduce_sum(tf.where(counts(a.numpy(), b.numpy()), tf.exp(ratios), 0.0), axis=1)
    return tf.reduce_sum(w * tf.math.log1p(odds))


def ours(a, p, b, w):
    limit = Limit(tf.constant(LARGEST, tf.float64))
    return mean_log_odds(a, p, b, w, PAIRS, limit=limit)


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
    monkeypatch.setattr(pair_sums, "_PAIRS", COLUMNS * request.param)


@pytest.mark.parametrize(
    "options", [None, {}, {"jit_compile": True}], ids=["eager", "graph", "xla"]
)
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
    a, p, b, w = inputs
    a[3, 0] = np.nan
    value, of_a, of_p, of_b, _ = with_gradients(ours, a, p, b, w)
    assert np.isnan(value)
    assert np.isnan(of_a[3]).all()
    assert np.isnan(of_p[3]).all()
    assert np.isnan(of_b).any()


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
@each_mode
def test_on_the_diagonal_only_rows_of_a_block_meet(inputs, rows, options):
    a, p, _, w = inputs
    b = np.random.default_rng(9).normal(size=(ROWS, 3))
    keys = tf.constant(KEYS)
    pairs = Pairs(tf.constant(VALID), tf.constant(VALID), ((keys, keys),))
    expected = [0.0, *(np.zeros_like(x) for x in (a, p, b, w))]
    for first in range(0, ROWS, rows):
        block = slice(first, first + rows)
        own = tf.constant(KEYS[block])
        of_block = Pairs(*[tf.constant(VALID[block])] * 2, ((own, own),))
        parts = with_gradients(
            lambda *x, of_block=of_block: mean_log_odds(*x, of_block),
            *(x[block] for x in (a, p, b, w)),
        )
        expected[0] += parts[0]
        for whole, part in zip(expected[1:], parts[1:], strict=True):
            whole[block] = part

    def both(*inputs):
        return with_gradients(lambda *x: mean_log_odds(*x, pairs, diagonal_rows=rows), *inputs)

    if options is not None:
        both = tf.function(both, **options)
    for got, one in zip(both(*map(tf.constant, (a, p, b, w))), expected, strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-12, atol=1e-14)


def test_the_gradient_on_the_diagonal_has_a_gradient(inputs):
    a, p, _, w = inputs
    b = np.random.default_rng(9).normal(size=(ROWS, 3))
    valid = tf.constant(VALID)
    blocks = tf.range(ROWS) // 3

    def slope(*x, **options):
        same = (blocks, blocks)
        pairs = Pairs(valid, valid, agree=() if options else (same,))
        _, *gradients = with_gradients(lambda *x: mean_log_odds(*x, pairs, **options) ** 2, *x)
        return tf.add_n([tf.reduce_sum(x**2) for x in gradients])

    found = with_gradients(lambda *x: slope(*x, diagonal_rows=3), a, p, b, w)
    for got, expected in zip(found, with_gradients(slope, a, p, b, w), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
