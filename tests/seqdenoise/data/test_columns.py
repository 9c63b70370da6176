import numpy as np
import pyarrow as pa
import pytest

from seqdenoise.data.columns import flatten_lists, int64_values, string_codes
from seqdenoise.errors import DataError


def null_list_that_spans_values() -> pa.ListArray:
    """[[1, 2], null, [5]], where the null row's offsets still cover 3 and 4."""
    validity = pa.py_buffer(np.packbits([1, 0, 1], bitorder="little").tobytes())
    offsets = pa.py_buffer(np.array([0, 2, 4, 5], np.int32).tobytes())
    values = pa.array([1, 2, 3, 4, 5], pa.int64())
    return pa.Array.from_buffers(
        pa.list_(pa.int64()), 3, [validity, offsets], null_count=1, children=[values]
    )


@pytest.mark.parametrize(
    ("column", "values", "lengths"),
    [
        (pa.array([[1, 2], [], [3]]), [1, 2, 3], [2, 0, 1]),
        (pa.array([[1, 2], [None], None, [3]]), [1, 2, None, 3], [2, 1, 0, 1]),
        (pa.array([[1, 2], [7], [3]]).slice(1, 1), [7], [1]),
        (pa.array([[1], [2, 3]], pa.large_list(pa.int32())), [1, 2, 3], [1, 2]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)), [1, 2, 3, 4], [2, 0, 2]),
        (pa.array([["a"], ["b", "a"]]), ["a", "b", "a"], [1, 2]),
        (pa.chunked_array([[[1], []], [[2, 3]]], pa.list_(pa.int64())), [1, 2, 3], [1, 0, 2]),
        (pa.chunked_array([], pa.list_(pa.int64())), [], []),
        (null_list_that_spans_values(), [1, 2, 5], [2, 0, 1]),
        (pa.array([[2**62 + 1, None]]), [2**62 + 1, None], [2]),
    ],
    ids=str,
)
def test_lists_are_read_through_offsets_and_validity(column, values, lengths):
    flat, counted = flatten_lists(column)
    assert flat.to_pylist() == values
    assert counted.tolist() == lengths


def test_dictionaries_that_differ_between_chunks_are_resolved():
    kind = pa.list_(pa.dictionary(pa.int32(), pa.string()))
    first, second = (pa.array(rows, kind) for rows in ([["b", "a"]], [["a", "c"]]))
    flat, lengths = flatten_lists(pa.chunked_array([first, second]))
    assert flat.to_pylist() == ["b", "a", "a", "c"]
    assert lengths.tolist() == [2, 2]


@pytest.mark.parametrize("encoded", [False, True])
def test_string_codes(encoded):
    column = pa.chunked_array([["b", "x"], ["a", "b"]])
    column = column.dictionary_encode() if encoded else column
    codes = string_codes(pa.table({"type": column}), "type", ["a", "b"], "events")
    assert codes.tolist() == [1, -1, 0, 1]


@pytest.mark.parametrize(
    ("column", "received"),
    [
        (pa.array([1, None]), "1 nulls, the first in row 1"),
        (pa.array([1.0]), "double"),
        (pa.array(["1"]), "string"),
        (pa.array([2**63], pa.uint64()), "9223372036854775808"),
    ],
)
def test_keys_that_are_no_integers_are_refused(column, received):
    with pytest.raises(
        DataError, match=f"events, column `user`: expected .*Received: .*{received}"
    ):
        int64_values(pa.table({"user": column}), "user", "events")
