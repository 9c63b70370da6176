import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.sources import streams
from pipelines.sources.streams import GrowingTable, csv_blocks, separated_blocks
from seqdenoise.errors import DataError

KINDS = {"b": "int", "a": "string", "c": "float"}


@pytest.fixture(params=[30, 1 << 20])
def block_bytes(request, monkeypatch):
    """Blocks of a few lines, and one for the whole file."""
    monkeypatch.setattr(streams, "_BLOCK_BYTES", request.param)
    monkeypatch.setattr(streams, "_BLOCK_LINES", request.param)
    return request.param


def test_csv_blocks(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_bytes(
        b'\xef\xbb\xbfa,x,b,c\r\n"q, ""r""",,5,.5\r\n1,,-6,1e3\r\ng,,9007199254740993,'
    )
    whole = [(2, {"b": [5, -6, 2**53 + 1], "a": ['q, "r"', "1", "g"], "c": [0.5, 1000.0, None]})]
    found = [(line, t.to_pydict()) for line, t in csv_blocks(path, KINDS, optional=["c"])]
    assert found == whole
    monkeypatch.setattr(streams, "_BLOCK_BYTES", 20)
    blocks = list(csv_blocks(path, KINDS, optional=["c"]))
    assert len(blocks) > 1
    assert pa.concat_tables([table for _, table in blocks]).to_pydict() == whole[0][1]
    expected_line = 2
    for line, table in blocks:
        assert line == expected_line
        expected_line += len(table)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("x,1.5,1", "line 13, column `b`: expected an integer. Received: '1.5'"),
        ("x,,1", "line 13, column `b`: expected an integer. Received: no value"),
        ("x,9223372036854775808,1", "line 13, column `b`: expected an integer. Received: '922"),
        ("x,1,many", "line 13, column `c`: expected a number. Received: 'many'"),
        ("x,1", "readable CSV file. Received: .*Row #13: Expected 3 columns, got 2"),
        ("\udcff,1,1", "readable CSV file. Received: .*invalid UTF8"),
        ("", "(line 13, column `.`: expected .* no value|Row #13: Expected 3 columns)"),
    ],
)
def test_csv_defects(tmp_path, block_bytes, last, message):
    path = tmp_path / "a.csv"
    text = "a,b,c\n" + "x,1,1\n" * 11 + last + "\nx,1,1\n"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=message) as caught:
        list(csv_blocks(path, KINDS))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected one column `b`, `a`, `c`. Received: an empty file"),
        ("a,b,c\n", "expected at least one row. Received: none"),
        ("a,b\nx,1\n", "expected one column `c`. Received: a, b"),
        ("a,b,b,c\nx,1,1,1\n", "expected one column `b`. Received: a, b, b, c"),
    ],
)
def test_csv_headers(tmp_path, text, message):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        list(csv_blocks(path, KINDS))
    with pytest.raises(DataError, match=r"nowhere.csv: expected a readable CSV file"):
        list(csv_blocks(tmp_path / "nowhere.csv", KINDS))


def test_separated_blocks(tmp_path, block_bytes):
    path = tmp_path / "a.dat"
    path.write_bytes('1::Amélie: a, "film"::0.5\n-2::b::3\n3::c::4'.encode("latin-1"))
    kinds = {"b": "int", "a": "string", "c": "float"}
    blocks = list(separated_blocks(path, "::", kinds, encoding="latin-1"))
    assert blocks[0][0] == 1
    assert pa.concat_tables([table for _, table in blocks]).to_pydict() == {
        "b": [1, -2, 3],
        "a": ['Amélie: a, "film"', "b", "c"],
        "c": [0.5, 3.0, 4.0],
    }
    with pytest.raises(DataError, match=r"a.dat: expected a readable text file"):
        list(separated_blocks(path, "::", kinds))


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("1::x", "line 10: expected 3 values, b, a, c, separated by '::'. Received: '1::x'"),
        ("", "line 10: expected 3 values, .* Received: ''"),
        ("one::x::1", "line 10, column `b`: expected an integer. Received: 'one'"),
        ("1::x::", "line 10, column `c`: expected a number. Received: ''"),
    ],
)
def test_separated_defects(tmp_path, block_bytes, last, message):
    path = tmp_path / "a.dat"
    path.write_text("1::x::1\n" * 9 + last + "\n1::x::1\n")
    with pytest.raises(DataError, match=message):
        list(separated_blocks(path, "::", KINDS))
    path.write_text("")
    with pytest.raises(DataError, match=r"a.dat: expected at least one row"):
        list(separated_blocks(path, "::", KINDS))


def test_a_growing_table_has_row_groups_of_one_size(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "ROW_GROUP_ROWS", 4)
    schema = pa.schema([("a", pa.int64())])
    with GrowingTable(tmp_path / "a.parquet", schema) as table:
        for start, stop in ((0, 3), (3, 3), (3, 5), (5, 14), (14, 15)):
            table.add(pa.table({"a": range(start, stop)}) if stop > start else schema.empty_table())
    assert table.num_rows == 15
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        assert sizes == [4, 4, 4, 3]
        assert file.read()["a"].to_pylist() == list(range(15))


def test_a_growing_table_without_rows_has_its_columns(tmp_path):
    schema = pa.schema([("a", pa.int8()), ("b", pa.string())])
    with GrowingTable(tmp_path / "a.parquet", schema):
        pass
    assert pq.read_table(tmp_path / "a.parquet").schema == schema
