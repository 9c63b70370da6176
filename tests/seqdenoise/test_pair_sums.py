import math

import numpy as np
import pytest
import tensorflow as tf
from loss_cases import CASES, batch, evaluate

from seqdenoise.losses import pair_sums
from seqdenoise.losses.pair_sums import Limit, Pairs, log_pair_sums


def counting(n, m, valid, columns, differ, agree, near, largest):
    """Which columns count for which anchors, pair by pair."""
    counts = np.zeros((n, m), bool)
    for i in range(n):
        for j in range(m):
            counts[i, j] = (
                valid[i]
                and columns[j]
                and differ[0][i] != differ[1][j]
                and agree[0][i] == agree[1][j]
                and not near[i, j] > largest
            )
    return counts


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    n, m, d = 7, 5, 3
    return {
        "anchors": rng.normal(size=(n, d)),
        "columns": rng.normal(size=(m, d)),
        "valid": np.array([1, 1, 0, 1, 1, 1, 1], bool),
        "of_columns": np.array([1, 1, 1, 0, 1], bool),
        "differ": (np.array([0, 1, 2, 3, 4, 0, 1]), np.array([0, 0, 4, 1, 1])),
        "agree": (np.array([1, 1, 1, 1, 1, 2, 1]), np.array([1, 1, 1, 1, 1])),
    }


def pairs_of(problem):
    keys = [tuple(tf.constant(x) for x in problem[name]) for name in ("differ", "agree")]
    valid, columns = tf.constant(problem["valid"]), tf.constant(problem["of_columns"])
    return Pairs(valid, columns, differ=(keys[0],), agree=(keys[1],))


@pytest.mark.parametrize("block", [1, 2, 3, 7, 100])
def test_sums_and_gradients_are_those_of_a_loop(problem, block, monkeypatch):
    monkeypatch.setattr(pair_sums, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(pair_sums, "_PAIRS", 5 * block)
    a, b = problem["anchors"], problem["columns"]
    products = a @ b.T
    counts = counting(
        7, 5, problem["valid"], problem["of_columns"], problem["differ"], problem["agree"],
        products, 0.9,
    )  # fmt: skip
    assert not counts[5].any()  # an anchor for which nothing counts, beside the invalid one
    upstream = np.random.default_rng(1).normal(size=(2, 7))
    anchors, columns = tf.constant(a), tf.constant(b)
    with tf.GradientTape() as tape:
        tape.watch([anchors, columns])
        (first, second), number = log_pair_sums(
            anchors, columns, pairs_of(problem),
            limit=Limit(tf.constant(0.9, tf.float64)), powers=(1.0, 1.5),
        )  # fmt: skip
        finite = tf.reduce_any(tf.constant(counts), axis=1)
        weighted = (
            tf.where(finite, first, 0.0) * upstream[0]
            + tf.where(finite, second, 0.0) * (upstream[1])
        )
        total = tf.reduce_sum(weighted)
    of_anchors, of_columns = tape.gradient(total, [anchors, columns])
    np.testing.assert_array_equal(number, counts.sum(axis=1))
    expected_a, expected_b = np.zeros_like(a), np.zeros_like(b)
    for k, (power, got) in enumerate(((1.0, first), (1.5, second))):
        for i in range(7):
            among = [j for j in range(5) if counts[i, j]]
            if not among:
                assert got[i] == -math.inf
                continue
            terms = {j: math.exp(power * products[i, j]) for j in among}
            everything = sum(terms.values())
            np.testing.assert_allclose(got[i], math.log(everything), rtol=1e-13)
            for j, term in terms.items():
                slope = upstream[k, i] * power * term / everything
                expected_a[i] += slope * b[j]
                expected_b[j] += slope * a[i]
    np.testing.assert_allclose(of_anchors, expected_a, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(of_columns, expected_b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("block", [1, 3, 100])
def test_plain_sums_are_those_of_a_loop(problem, block, monkeypatch):
    monkeypatch.setattr(pair_sums, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(pair_sums, "_PAIRS", 5 * block)
    a, b = problem["anchors"], problem["columns"]
    counts = counting(
        7, 5, problem["valid"], problem["of_columns"], problem["differ"], problem["agree"],
        a @ b.T, 0.9,
    )  # fmt: skip
    limit = Limit(tf.constant(0.9, tf.float64), tf.constant(a), tf.constant(b))
    columns, upstream = tf.constant(b), np.random.default_rng(1).normal(size=(7, 3))
    with tf.GradientTape() as tape:
        tape.watch(columns)
        total, number = pair_sums.pair_sums(columns, pairs_of(problem), limit=limit)
        weighted = tf.reduce_sum(total * upstream)
    np.testing.assert_array_equal(number, counts.sum(axis=1))
    for i in range(7):
        expected = sum((b[j] for j in range(5) if counts[i, j]), np.zeros(3))
        np.testing.assert_allclose(total[i], expected, rtol=1e-13)
    gradient = tape.gradient(weighted, columns)
    for j in range(5):
        expected = sum((upstream[i] for i in range(7) if counts[i, j]), np.zeros(3))
        np.testing.assert_allclose(gradient[j], expected, rtol=1e-13)


@pytest.mark.parametrize("in_a_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_blocks_change_no_loss(case, in_a_graph, monkeypatch):
    inputs = batch(case, np.float64)
    expected, expected_gradients = evaluate(case, inputs)
    monkeypatch.setattr(pair_sums, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(pair_sums, "_PAIRS", 20)  # 1 to 3 rows
    got, gradients = evaluate(case, inputs, in_a_graph=in_a_graph)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_many_blocks_of_a_batch_of_unknown_size(problem, jit_compile, monkeypatch):
    """As in `fit`, where the last batch of an epoch has fewer rows."""
    a, b, pairs = (
        tf.constant(problem["anchors"]),
        tf.constant(problem["columns"]),
        pairs_of(problem),
    )

    def both(a, b, pairs):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            (sums,), number = log_pair_sums(a, b, pairs)
            total = tf.reduce_sum(tf.where(number > 0, sums, tf.zeros_like(sums)) ** 2)
        return sums, *tape.gradient(total, [a, b])

    expected = both(a, b, pairs)  # one block
    monkeypatch.setattr(pair_sums, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(pair_sums, "_PAIRS", 10)  # 2 rows, and a last block of 1

    def unknown(x):
        return tf.TensorSpec([None, *x.shape[1:]], x.dtype)

    signature = tf.nest.map_structure(unknown, (a, b, pairs))
    got = tf.function(both, jit_compile=jit_compile, input_signature=signature)(a, b, pairs)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_rows_of_a_block():
    assert pair_sums._rows_and_blocks(1000, 1000) == (1000, 1)
    assert pair_sums._rows_and_blocks(4096, 4096) == (1024, 4)
    assert pair_sums._rows_and_blocks(10**6, 10**6) == (16, 62_500)
    assert pair_sums._rows_and_blocks(0, 0) == (1, 1)
    for number, columns in ((1000, 1000), (4096, 4096), (4097, 4096), (5, 10**6), (0, 0)):
        got = pair_sums._rows_and_blocks(tf.constant(number), tf.constant(columns))
        assert tuple(map(int, got)) == pair_sums._rows_and_blocks(number, columns)


@pytest.mark.parametrize("pairs_of_a_block", [100, 10], ids=["one block", "blocks"])
def test_the_gradient_has_a_gradient(problem, pairs_of_a_block, monkeypatch):
    """As an adversary that is trained through needs."""
    monkeypatch.setattr(pair_sums, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(pair_sums, "_PAIRS", pairs_of_a_block)
    a, b = tf.constant(problem["anchors"]), tf.constant(problem["columns"])
    pairs = pairs_of(problem)

    def loss(x, sums):
        return tf.reduce_sum(tf.where(tf.math.is_finite(sums(x)), sums(x), 0.0) ** 2)

    def dense(x):
        counts = tf.constant(
            counting(7, 5, problem["valid"], problem["of_columns"], problem["differ"],
                     problem["agree"], np.zeros((7, 5)), 1.0)
        )  # fmt: skip
        terms = tf.where(counts, tf.exp(tf.matmul(x, b, transpose_b=True)), 0.0)
        total = tf.reduce_sum(terms, axis=1)
        return tf.where(total > 0, tf.math.log(tf.where(total > 0, total, 1.0)), -np.inf)

    found = []
    for sums in (lambda x: log_pair_sums(x, b, pairs)[0][0], dense):
        with tf.GradientTape() as outer:
            outer.watch(a)
            with tf.GradientTape() as inner:
                inner.watch(a)
                value = loss(a, sums)
            first = tf.reduce_sum(inner.gradient(value, a) ** 2)
        found.append(outer.gradient(first, a))
    np.testing.assert_allclose(*found, rtol=1e-10, atol=1e-12)
