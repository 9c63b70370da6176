import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import mutual_info_score

from seqdenoise.data.mutual_information import mutual_information

ROWS = 60


def loops(first, second):
    """The definition, over every pair of values."""
    rows = len(first)
    total = 0.0
    for u in set(first):
        for v in set(second):
            both = sum(a == u and b == v for a, b in zip(first, second, strict=True)) / rows
            if both:
                apart = list(first).count(u) / rows * (list(second).count(v) / rows)
                total += both * math.log(both / apart)
    return total


@given(
    hnp.arrays(np.int64, ROWS, elements=st.integers(-2, 3)),
    hnp.arrays(np.int64, ROWS, elements=st.integers(2**62, 2**62 + 4)),
)
def test_equals_the_definition_and_scikit_learn(first, second):
    got = mutual_information({"a": first, "b": second})
    assert list(got) == list(got["a"]) == list(got["b"]) == ["a", "b"]
    assert got["a"]["b"] == got["b"]["a"] >= 0
    np.testing.assert_allclose(got["a"]["b"], loops(first, second), rtol=1e-10, atol=1e-12)
    expected = mutual_info_score(first, second)
    np.testing.assert_allclose(got["a"]["b"], expected, rtol=1e-10, atol=1e-12)
    # With itself: its entropy.
    np.testing.assert_allclose(got["b"]["b"], loops(second, second), rtol=1e-10, atol=1e-12)


@given(
    hnp.arrays(np.int64, 8, elements=st.integers(0, 2)),
    hnp.arrays(np.int64, 8, elements=st.integers(0, 2)),
    hnp.arrays(np.int64, 8, elements=st.integers(0, 5)),
)
def test_counts_stand_for_repeated_rows(first, second, counts):
    got = mutual_information({"a": first, "b": second}, counts=counts)
    repeated = [np.repeat(column, counts) for column in (first, second)]
    expected = loops(*repeated) if counts.sum() else 0.0
    np.testing.assert_allclose(got["a"]["b"], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x", None, "y", "x", None, "z"]),
        pa.array(["x", None, "y", "x", None, "z"]).dictionary_encode(),
        pa.chunked_array([[1, None], [2, 1, None, 3]]),
        pa.array([True, None, False, True, None, False]),
        # Two bins are too few to part floats further, and enough to part them from missing ones.
        pa.array([0.5, None, 1.5, 0.5, float("nan"), 1.5]),
    ],
    ids=["strings", "dictionary", "chunks", "booleans", "floats"],
)
def test_missing_is_a_value_of_its_own(column):
    other = np.array([0, 1, 0, 1, 1, 0])
    got = mutual_information({"a": column, "b": other}, num_bins=2)
    values = [str(value) for value in column.to_pylist()]
    values = ["None" if value == "nan" else value for value in values]
    np.testing.assert_allclose(got["a"]["b"], loops(values, other), rtol=1e-10)
    np.testing.assert_allclose(got["a"]["a"], loops(values, values), rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_bins", [2, 5, 16])
def test_floats_are_cut_at_their_quantiles(dtype, num_bins):
    rng = np.random.default_rng(0)
    values = rng.lognormal(size=400).astype(dtype)
    other = (values > 1).astype(np.int64) + rng.integers(0, 2, 400)
    got = mutual_information({"a": values, "b": other}, num_bins=num_bins)
    binned = pd.qcut(values, num_bins, labels=False)
    np.testing.assert_allclose(got["a"]["b"], mutual_info_score(binned, other), rtol=1e-10)


def test_equal_floats_share_a_bin_and_a_frequent_one_has_its_own():
    values = np.array([0.0] * 70 + [1.0, 2.0, 3.0] + [4.0] * 27)
    bins = np.array([0] * 70 + [1] * 3 + [2] * 27)
    got = mutual_information({"a": values}, num_bins=4)
    # Middles at 35, 70.5 to 72.5 and 86.5 of 100 rows: bins 1, 2 and 3 of four.
    np.testing.assert_allclose(got["a"]["a"], loops(bins, bins), rtol=1e-10)
    counted = mutual_information(
        {"a": np.arange(5.0)}, counts=np.array([70, 1, 1, 1, 27]), num_bins=4
    )
    np.testing.assert_allclose(counted["a"]["a"], got["a"]["a"], rtol=1e-12)


def test_all_that_determine_another_know_its_entropy_to_the_same_digit():
    items = np.arange(1000)
    shelves = items % 77
    columns = {"item": items, "shelf": shelves, "brand": shelves % 7}
    for seed in range(5):
        counts = np.random.default_rng(seed).integers(1, 100, 1000)
        got = mutual_information(columns, counts=counts)["brand"]
        assert got["item"] == got["shelf"] == got["brand"]


def test_counts_beyond_32_bits():
    counts = np.full(4, 2**40)
    got = mutual_information({"a": np.array([0, 0, 1, 1]), "b": np.arange(4) % 2}, counts=counts)
    np.testing.assert_allclose([got["a"]["a"], got["a"]["b"]], [np.log(2), 0.0], atol=1e-12)


def test_without_rows_nothing_is_known():
    empty = pa.array([], pa.string())
    got = mutual_information({"a": empty, "b": np.array([], np.float64)})
    assert got == {"a": {"a": 0.0, "b": 0.0}, "b": {"a": 0.0, "b": 0.0}}
    assert mutual_information({}) == {}


def test_a_float_column_without_any_number():
    got = mutual_information({"a": pa.array([None, None], pa.float64()), "b": np.array([1, 2])})
    assert got["a"] == {"a": 0.0, "b": 0.0}


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match=r"one length. Received: {'a': 2, 'b': 3}, counts 2"):
        mutual_information({"a": np.arange(2), "b": np.arange(3)})
    with pytest.raises(ValueError, match=r"one length. Received: {'a': 2}, counts 3"):
        mutual_information({"a": np.arange(2)}, counts=np.ones(3, np.int64))
