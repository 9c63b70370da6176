import numpy as np
import pytest

from seqdenoise.data.memory import Recycler
from seqdenoise.data.row_groups import Lists, Rows, RowsBuilder


def rows_of(lists, number=0):
    lengths = np.array([len(one) for one in lists], np.int64)
    flat = np.array([value for one in lists for value in one], np.int64)
    starts = np.cumsum(lengths) - lengths
    scalars = {"number": number + np.arange(len(lists))}
    return Rows(len(lists), scalars, {"click": Lists(starts, lengths, {"click__item": flat})})


def as_lists(rows):
    lists = rows.lists["click"]
    flat = lists.fields["click__item"]
    return [
        flat[start : start + length].tolist()
        for start, length in zip(lists.starts, lists.lengths, strict=True)
    ]


@pytest.mark.parametrize(
    "parts",
    [
        [[[1], [2, 3]], [[4, 5, 6]]],
        [[[], []], [[7] * 100, [8]], [], [[9]]],  # much denser than the first part
        [[[1]], [[2] * 50], [[3] * 500], [[4] * 5000]],
        [[], [[5]]],
    ],
    ids=["alike", "denser", "ever denser", "empty first"],
)
def test_parts_are_put_together(parts):
    whole = [one for part in parts for one in part]
    builder, first = RowsBuilder(len(whole), Recycler()), 0
    for part in parts:
        builder.add(rows_of(part, first))
        first += len(part)
    rows = builder.rows()
    assert rows.num_rows == len(whole)
    assert as_lists(rows) == whole
    assert rows.scalars["number"].tolist() == list(range(len(whole)))
    chosen = np.arange(len(whole))[::-1]
    assert as_lists(rows.take(chosen)) == whole[::-1]
    assert as_lists(rows.slice(1, 3)) == whole[1:3]


def test_nothing_put_together_is_no_rows():
    assert RowsBuilder(0, Recycler()).rows() == Rows(0, {}, {})
