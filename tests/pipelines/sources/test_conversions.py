import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.sources.conversions import distinct, followed, write_judged
from seqdenoise.errors import DataError

SMALL = st.integers(0, 2)
ROWS = st.lists(st.tuples(SMALL, SMALL, st.integers(0, 9), st.booleans()), max_size=12)


@given(rows=ROWS, horizon=st.integers(1, 5))
def test_followed_as_defined(rows, horizon):
    user, item, time = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    outcome = np.array([row[3] for row in rows], bool)
    expected = [
        int(
            not mine
            and any(
                (u, i, o) == (user_, item_, True) and time_ < t <= time_ + horizon
                for u, i, t, o in rows
            )
        )
        for user_, item_, time_, mine in rows
    ]
    found = followed(user, item, time, outcome, horizon)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int8


VALUES = st.one_of(st.none(), st.integers(0, 1))


@given(rows=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("xy"), VALUES), max_size=10))
def test_distinct_is_the_sorted_set(rows):
    columns = list(zip(*rows, strict=True)) or [[], [], []]
    table = pa.table(
        {
            "a": pa.array(columns[0], pa.int64()),
            "b": pa.array(columns[1], pa.string()),
            "c": pa.array(columns[2], pa.int64()),
        }
    )
    found = [tuple(row.values()) for row in distinct(table, ["a", "b", "c"]).to_pylist()]
    # None sorts last.
    assert found == sorted(set(rows), key=lambda row: (*row[:2], row[2] is None, row[2] or 0))


def test_only_finished_horizons_are_judged(tmp_path):
    pq.write_table(pa.table({"timestamp": [1, 8, 7, 9, 10]}), tmp_path / "uncut", row_group_size=2)
    counts = write_judged(tmp_path / "uncut", tmp_path / "cut", last=10, horizon=2)
    assert pq.read_table(tmp_path / "cut")["timestamp"].to_pylist() == [1, 8, 7]
    assert counts == {"impressions": 3, "impressions_cut": 2}
    with pytest.raises(DataError, match=r"at least 10 ms before .* log, 10. Received: none of 5"):
        write_judged(tmp_path / "uncut", tmp_path / "cut", last=10, horizon=10)
