import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.sources.columns import read_csv, read_parquet
from seqdenoise.errors import DataError


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("kind", "stored", "expected"),
    [
        ("int", pa.array([1, 2**40]), [1, 2**40]),
        ("int", pa.array([1, 2], pa.uint8()), [1, 2]),
        ("nullable_int", pa.array([3, None], pa.int32()), [3, None]),
        ("float", pa.array([3, None], pa.int32()), [3.0, None]),
        ("float", pa.array([0.5, None], pa.float32()), [0.5, None]),
        ("string", pa.array(["a", None]).dictionary_encode(), ["a", None]),
        ("string", pa.array(["a", None], pa.large_string()), ["a", None]),
        ("date", pa.array(["1970-01-03", None]), [2, None]),
        ("first_id", pa.array(["4,5", None]).dictionary_encode(), [4, None]),
        ("ids", pa.array([[1, 2], None, []], pa.large_list(pa.int32())), [[1, 2], [], []]),
        # A null list may still span values.
        (
            "ids",
            pa.ListArray.from_arrays([0, 2, 3], pa.array([1, 2, 3]), mask=pa.array([True, False])),
            [[], [3]],
        ),
    ],
)
def test_parquet_kinds(tmp_path, kind, stored, expected):
    table = read_parquet(write(tmp_path / "a.parquet", x=stored, other=stored), {"x": kind})
    assert table.column_names == ["x"]
    assert table["x"].to_pylist() == expected
    types = {"float": pa.float64(), "string": pa.string(), "ids": pa.list_(pa.int64())}
    assert table["x"].type == types.get(kind, pa.int64())


@pytest.mark.parametrize(
    ("kind", "stored", "message"),
    [
        ("int", pa.array([2**63], pa.uint64()), "column `x`: expected integers. Received: .*"),
        ("int", pa.array([1, None]), "without nulls. Received: 1 null, the first in row 1"),
        ("flag", pa.array([0, 1, 2, -1]), r"expected 0 or 1. Received: \[2, -1\]"),
        ("string", pa.array([1]), "expected strings. Received: int64"),
        ("float", pa.array(["1.0"]), "expected numbers. Received: string"),
        ("ids", pa.array([1]), "expected lists of integers. Received: int64"),
        ("int", pa.nulls(2), "expected integers. Received: null"),
    ],
)
def test_parquet_defects(tmp_path, kind, stored, message):
    path = write(tmp_path / "a.parquet", x=stored)
    with pytest.raises(DataError, match=message) as caught:
        read_parquet(path, {"x": kind})
    assert str(path) in str(caught.value)


def test_csv_kinds(tmp_path):
    path = tmp_path / "a.csv"
    # With a byte order mark, quotes, and an integer no float64 can hold.
    path.write_bytes(
        b'\xef\xbb\xbfa,b,c,d\r\n1,9007199254740993.0,"x, y",2.5\r\n-2,,,nan\r\n3,10,NA,1e3\r\n'
    )
    table = read_csv(path, {"d": "float", "a": "int", "b": "nullable_int", "c": "string"})
    assert table.to_pydict() == {
        "d": [2.5, None, 1000.0],
        "a": [1, -2, 3],
        "b": [9007199254740993, None, 10],
        "c": ["x, y", None, "NA"],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b\n1\n", "expected column `a`. Received: b"),
        ("a\n1.5\n", "column `a`: expected integers. Received: .*1.5"),
        ("a,b\n1,2\n3\n", "expected a readable CSV file. Received: .*Expected 2 columns, got 1"),
    ],
)
def test_csv_defects(tmp_path, text, message):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_csv(path, {"a": "int"})
