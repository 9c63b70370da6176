from itertools import combinations

import numpy as np
import pytest
import tensorflow as tf
import view_oracles
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seqdenoise import complementary_mask, masks
from seqdenoise.masks import (
    correlated_halves,
    correlated_mask,
    half_of_events,
    kept_features,
    random_bits,
    sampled_halves,
)

SIZES = st.sampled_from([(1, 2), (5, 7), (16, 10), (33, 4)])
every_half = pytest.mark.parametrize("draw", [complementary_mask, sampled_halves])


def reference_bits(rows, size, seed):
    """The same stream through TensorFlow's public door, which cannot start in the middle."""
    return tf.random.stateless_uniform(
        [rows, size], seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    ).numpy()


@pytest.mark.parametrize("jit_compile", [None, False, True])
@pytest.mark.parametrize("size", [1, 3, 4, 10])
@pytest.mark.parametrize(
    "seed", [np.int32([5, 77]), np.int32([-3, 2**31 - 1]), np.int64([2**62 + 5, -77])]
)
def test_bits_are_those_of_a_stateless_uniform_from_any_row_on(size, jit_compile, seed):
    def draw(first_row, seed):
        return random_bits(6, size, seed=seed, first_row=first_row)

    if jit_compile is not None:
        draw = tf.function(draw, jit_compile=jit_compile)
    expected = reference_bits(20, size, seed)
    for first_row in range(14):
        got = draw(tf.constant(first_row), tf.constant(seed)).numpy()
        np.testing.assert_array_equal(got, expected[first_row : first_row + 6])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_bits_of_an_unknown_number_of_rows_of_unknown_size(jit_compile):
    @tf.function(jit_compile=jit_compile, input_signature=[tf.TensorSpec([None, None])])
    def draw(x):
        return random_bits(tf.shape(x)[0], tf.shape(x)[1], seed=[5, 77], first_row=3)

    for rows, size in [(6, 10), (2, 5)]:
        expected = reference_bits(rows + 3, size, [5, 77])[3:]
        np.testing.assert_array_equal(draw(tf.zeros([rows, size])), expected)


def test_complementary_masks_are_the_order_of_the_first_bits_of_the_stream():
    # What the masks of every earlier version were: saved runs go on as they began.
    expected = reference_bits(50, 9, [1, 2]).argsort(axis=1, kind="stable") < 4
    np.testing.assert_array_equal(complementary_mask(50, 9, seed=[1, 2]), expected)


@every_half
@given(size=SIZES, seed=st.integers(0, 2**31 - 1))
def test_each_row_keeps_exactly_half(draw, size, seed):
    rows, features = size
    mask = draw(rows, features, seed=[seed, 1]).numpy()
    assert mask.shape == (rows, features)
    np.testing.assert_array_equal(mask.sum(axis=1), np.full(rows, features // 2))


@every_half
def test_every_half_is_as_likely_as_every_other(draw):
    rows = 20_000
    mask = draw(rows, 6, seed=[3, 3]).numpy()
    codes = mask @ (1 << np.arange(6))
    halves = [sum(1 << i for i in half) for half in combinations(range(6), 3)]
    counts = np.bincount(codes, minlength=64)
    assert counts[halves].sum() == rows
    expected = rows / len(halves)
    # Chi-square with 19 degrees of freedom exceeds 43.8 with probability 0.001.
    assert ((counts[halves] - expected) ** 2 / expected).sum() < 43.8


@every_half
@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_and_xla_draw_the_eager_masks(draw, jit_compile):
    compiled = tf.function(lambda seed: draw(37, 10, seed=seed), jit_compile=jit_compile)
    seed = tf.constant([5, 12])
    np.testing.assert_array_equal(compiled(seed), draw(37, 10, seed=seed))


@every_half
@pytest.mark.parametrize("features", [0, 1])
def test_too_few_features_are_refused(draw, features):
    with pytest.raises(ValueError, match=f"at least 2 features.*Received: num_features={features}"):
        draw(3, features, seed=[0, 0])


@given(hnp.arrays(bool, (6, 5)), st.integers(0, 2**31 - 1))
def test_half_of_the_real_events_and_no_padding(mask, seed):
    half = half_of_events(tf.constant(mask), seed=[seed, 1]).numpy()
    assert not (half & ~mask).any()
    np.testing.assert_array_equal(half.sum(axis=1), mask.sum(axis=1) // 2)


@pytest.mark.parametrize("value", [tf.int32.min, 0, tf.int32.max - 1, tf.int32.max])
def test_halves_are_exact_whatever_numbers_are_drawn(monkeypatch, value):
    def constant(num_rows, row_size, **_):
        return tf.fill([num_rows, row_size], tf.constant(value, tf.int32))

    monkeypatch.setattr(masks, "random_bits", constant)
    mask = np.array([[False, True, True, False, True, True], [False] * 5 + [True]])
    half = half_of_events(tf.constant(mask), seed=[0, 0]).numpy()
    assert not (half & ~mask).any()
    np.testing.assert_array_equal(half.sum(axis=1), [2, 0])
    for draw in (complementary_mask, sampled_halves):
        np.testing.assert_array_equal(draw(3, 7, seed=[0, 0]).numpy().sum(axis=1), [3, 3, 3])


@pytest.mark.parametrize(
    ("rate", "bound"),
    [
        (0.0, -(2**31)),
        (2**-32, -(2**31) + 1),
        (0.25, -(2**31) + 2**30),
        (0.5, 0),
        (1 - 2**-32, 2**31 - 1),
        (1 - 2**-40, 2**31 - 1),
    ],
)
def test_exactly_the_numbers_below_the_rate_are_dropped(monkeypatch, rate, bound):
    # `bound + 2^31` of the 2^32 numbers lie below the bound.
    candidates = (-(2**31), bound - 1, bound, bound + 1, 2**31 - 1)
    numbers = [number for number in candidates if -(2**31) <= number < 2**31]
    monkeypatch.setattr(masks, "random_bits", lambda *_, **__: tf.constant([numbers], tf.int32))
    kept = kept_features(1, len(numbers), rate=rate, seed=[0, 0])
    np.testing.assert_array_equal(kept, [[number >= bound for number in numbers]])


FIELDS = ["category", "item", "price", "shop", "tag"]


@given(
    hnp.arrays(np.float64, (5, 5), elements=st.sampled_from([0.0, 0.5, 1.0, 2.0])),
    st.integers(2, 5),
    st.permutations(FIELDS),
)
def test_correlated_halves_equal_the_oracle(values, count, order):
    fields = order[:count]
    information = {a: {b: values[i, j] for j, b in enumerate(fields)} for i, a in enumerate(fields)}
    halves = correlated_halves(fields, information)
    for seed_field, row in zip(fields, halves, strict=True):
        got = {field for field, kept in zip(fields, row, strict=True) if kept}
        assert got == set(view_oracles.correlated_half(fields, information, seed_field))


def test_what_a_field_knows_about_itself_is_not_read():
    others = {a: {b: 1.0 for b in FIELDS if b != a} for a in FIELDS}
    with_itself = {a: {**others[a], a: float("nan")} for a in FIELDS}
    expected = correlated_halves(FIELDS, others)
    np.testing.assert_array_equal(correlated_halves(FIELDS, with_itself), expected)


@pytest.mark.parametrize(
    ("information", "message"),
    [
        ({"a": {"b": 1.0}}, r"must name the fields \['a', 'b'\].*Received: {'a': \['b'\]}"),
        ({"a": {"b": 1.0}, "b": {"a": 1.0}, "c": {}}, "must name the fields.*Received: .*'c'"),
        ({"a": {"b": 1.0}, "b": {}}, r"must name the fields.*Received: .*'b': \[\]"),
        ({"a": {"b": 1.0, "c": 1.0}, "b": {"a": 1.0}}, "must name the fields.*Received: .*'c'"),
        ({"a": {"b": 1.0}, "b": {"a": float("nan")}}, "finite numbers. Received: for `b` .*nan"),
    ],
)
def test_information_that_does_not_fit_is_refused(information, message):
    with pytest.raises(ValueError, match=message):
        correlated_halves(["a", "b"], information)


def test_one_field_cannot_be_shared_out():
    with pytest.raises(ValueError, match=r"at least 2 fields.*Received: \['a'\]"):
        correlated_halves(["a"], {"a": {}})


@pytest.mark.parametrize("count", [2, 3, 5])
def test_each_seed_field_is_drawn_equally_often(count):
    halves = np.eye(count, dtype=bool)
    mask = correlated_mask(10_000, halves, seed=[3, 3]).numpy()
    np.testing.assert_array_equal(mask.sum(axis=1), np.ones(10_000))
    np.testing.assert_allclose(mask.mean(axis=0), np.full(count, 1 / count), atol=0.02)
