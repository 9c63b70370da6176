import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqdenoise.data.files import ParquetSource
from seqdenoise.data.locations import exists, find_files
from seqdenoise.errors import DataError


def write(path, numbers, rows=2, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"number": pa.array(numbers, pa.int64()), **columns})
    pq.write_table(table, path, row_group_size=rows)
    return path


@pytest.fixture
def folder(tmp_path):
    """Three files as Spark leaves them: the second without rows, beside what is no data."""
    folder = tmp_path / "train.parquet"
    write(folder / "part-00000.parquet", [0, 1, 2])
    write(folder / "part-00001.parquet", [])
    write(folder / "part-00002.parquet", [3, 4])
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-00000.parquet.crc").write_text("x")
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "half.parquet").write_text("")
    return folder


def numbers(location):
    with ParquetSource(location) as source:
        return source.read(["number"])["number"].to_pylist()


def test_a_folder_is_read_in_the_order_of_its_files(folder):
    assert numbers(folder) == [0, 1, 2, 3, 4]
    with ParquetSource(folder) as source:
        assert source.num_rows == 5
        # pyarrow writes a row group without rows for a table without rows.
        assert source.row_group_rows == [2, 1, 0, 2]
        assert source.num_row_groups == 4
        assert [Path(name).name for name, _ in source.files] == [
            f"part-0000{i}.parquet" for i in range(3)
        ]
        assert [size for _, size in source.files] == [
            os.path.getsize(folder / f"part-0000{i}.parquet") for i in range(3)
        ]
        groups = [source.read_row_group(i, ["number"])["number"].to_pylist() for i in range(4)]
        assert groups == [[0, 1], [2], [], [3, 4]]
        assert source.place(3) == f"{folder}/part-00002.parquet, row group 0"
        assert source.place(1) == f"{folder}/part-00000.parquet, row group 1"
        assert source.path == str(folder)
        assert source.footer(1).num_rows == 1


def test_folders_inside_are_read_too(tmp_path):
    write(tmp_path / "all" / "day=2" / "a.parquet", [3])
    write(tmp_path / "all" / "day=1" / "b.parquet", [2])
    write(tmp_path / "all" / "day=1" / "a.parquet", [1])
    assert numbers(tmp_path / "all") == [1, 2, 3]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("part-*.parquet", [0, 1, 2, 3, 4]),
        ("part-0000[12].parquet", [3, 4]),
        ("part-0000?.parquet", [0, 1, 2, 3, 4]),
        ("*", [0, 1, 2, 3, 4]),
    ],
)
def test_globs(folder, pattern, expected):
    assert numbers(folder / pattern) == expected
    assert numbers(f"file://{folder}/{pattern.replace('?', '*')}") == expected


def test_a_glob_matches_folders(folder):
    write(folder.parent / "valid.parquet" / "part-00000.parquet", [9])
    assert numbers(str(folder.parent / "*" / "part-00000.parquet")) == [0, 1, 2, 9]
    assert numbers(str(folder.parent / "*.parquet")) == [0, 1, 2, 3, 4, 9]


def test_a_name_with_wildcards_is_taken_as_it_is(tmp_path):
    assert numbers(write(tmp_path / "a[1]*.parquet", [7])) == [7]


def test_a_relative_path_survives_a_change_of_folder(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder.parent)
    source = ParquetSource("train.parquet")
    monkeypatch.chdir(folder)
    assert source.read(["number"])["number"].to_pylist() == [0, 1, 2, 3, 4]
    assert source.place(0) == "train.parquet/part-00000.parquet, row group 0"
    source.close()


def test_sequences_of_locations_keep_their_order(folder, tmp_path):
    single = write(tmp_path / "b.parquet", [8])
    assert numbers([single, folder]) == [8, 0, 1, 2, 3, 4]
    with ParquetSource([single, folder]) as source:
        assert source.path == f"[{single}, {folder}]"


def test_file_urls(folder):
    assert numbers(f"file://{folder}") == [0, 1, 2, 3, 4]
    with ParquetSource(f"file://{folder}") as source:
        assert source.place(0) == f"file://{folder}/part-00000.parquet, row group 0"


def test_urls_of_fsspec(folder):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in folder.glob("part-*"):
        memory.pipe(f"/logs/train/{path.name}", path.read_bytes())
    try:
        assert numbers("memory://logs/train") == [0, 1, 2, 3, 4]
        assert numbers("memory://logs/train/part-00002.parquet") == [3, 4]
        assert numbers("memory://logs/*/part-0000[02].parquet") == [0, 1, 2, 3, 4]
        with pytest.raises(DataError, match=r"memory://logs/none: .*no such file"):
            ParquetSource("memory://logs/none")
    finally:
        memory.rm("/logs", recursive=True)


def test_a_url_that_needs_fsspec_says_so_without_its_password(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(DataError, match="package fsspec for others") as caught:
        ParquetSource("memory://user:secret@logs/train?key=secret")
    assert str(caught.value).startswith("memory://logs/train: expected a URL")


def test_a_url_nobody_opens(tmp_path):
    with pytest.raises(DataError, match=r"nonsense://x: expected a URL"):
        ParquetSource("nonsense://x")


def test_what_exists(folder):
    assert exists(folder)
    assert exists(folder / "part-00000.parquet")
    assert exists(f"file://{folder}")
    assert not exists(folder / "absent")
    assert not exists(f"file://{folder}/absent")
    with pytest.raises(DataError, match="nonsense://x: expected a URL"):
        exists("nonsense://x")


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_the_part_that_has_a_row_group_can_be_opened_alone(folder, prefix):
    for location in (f"{prefix}{folder}", f"{prefix}{folder}/part-*.parquet"):
        with ParquetSource(location) as source:
            for index in range(source.num_row_groups):
                part, local = source.part_of(index)
                with ParquetSource(part) as alone:
                    assert alone.place(local) == source.place(index)
                    assert alone.read_row_group(local, ["number"]).equals(
                        source.read_row_group(index, ["number"])
                    )


def test_the_options_of_a_url_stay_with_its_files(tmp_path):
    pytest.importorskip("fsspec")
    write(tmp_path / "all" / "a.parquet", [1])
    write(tmp_path / "all" / "b" / "c.parquet", [2])
    url = f"mock-local://x@{tmp_path}/all?key=secret"
    fsspec = __import__("fsspec")

    class Options(fsspec.get_filesystem_class("file")):
        protocol = "mock-local"

        @classmethod
        def _strip_protocol(cls, path):
            # Whoever lost the options on the way would fail here.
            if "://" in path:
                assert path.endswith("?key=secret")
                path = path.split("@")[1].split("?")[0]
            return super()._strip_protocol(path)

    fsspec.register_implementation("mock-local", Options, clobber=True)
    with ParquetSource(url) as source:
        assert source.read(["number"])["number"].to_pylist() == [1, 2]
        assert "secret" not in source.place(1)
        part, _ = source.part_of(1)
    assert part == f"mock-local://x@{tmp_path}/all/b/c.parquet?key=secret"
    assert numbers(part) == [2]


def test_row_counts_that_contradict_are_refused(folder):
    path = folder / "part-00000.parquet"
    content = path.read_bytes()
    # The footer has the numbers of rows of both row groups, 2 and 1, as zigzag varints.
    footer = content.rindex(b"\x16\x02")
    path.write_bytes(content[:footer] + b"\x16\x00" + content[footer + 2 :])
    with pytest.raises(DataError, match=r"part-00000.parquet: expected row groups that add up to"):
        ParquetSource(folder)


def bad_locations(folder):
    empty = folder.parent / "empty"
    empty.mkdir()
    part = folder / "part-00000.parquet"
    return {
        "missing": (folder / "absent", "absent: expected a parquet file. Received: no such file"),
        "no match": (folder / "x*", "expected at least one file. Received: no match"),
        "empty folder": (empty, "empty: expected parquet files in the folder. Received: none"),
        "twice": ([folder, part], f"{part}: expected every file once. Received: it twice"),
        "nothing": ([], "expected at least one location"),
    }


@pytest.mark.parametrize("case", ["missing", "no match", "empty folder", "twice", "nothing"])
def test_locations_without_files_are_refused(folder, case):
    location, message = bad_locations(folder)[case]
    with pytest.raises(DataError) as caught:
        find_files(location)
    assert message in str(caught.value)


@pytest.mark.parametrize("size", [0, 4, 100])
def test_a_broken_file_of_a_folder_is_named(folder, size):
    path = folder / "part-00001.parquet"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=f"part-00001.parquet: expected a whole .*{size} bytes"):
        ParquetSource(folder)


def test_a_damaged_page_names_its_file_and_row_group(folder):
    path = folder / "part-00002.parquet"
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"number": pa.array([3, 4], pa.int64())}), path, **options)
    column = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 255
    path.write_bytes(content)
    message = r"part-00002.parquet, row group 0, column `number`: expected readable pages"
    with ParquetSource(folder) as source, pytest.raises(DataError, match=message):
        source.read(["number"])


def test_a_file_that_changes_after_its_footer_was_read_is_refused(folder):
    with ParquetSource(folder) as source:
        write(folder / "part-00002.parquet", range(100))
        with pytest.raises(DataError, match=r"part-00002.parquet, row group 0.*another size"):
            source.read(["number"])


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files through /proc")
def test_one_file_is_open_at_a_time(folder):
    def open_files():
        links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
        return [path for path in map(os.path.realpath, links) if str(folder) in path]

    source = ParquetSource(folder)
    assert open_files() == []
    for index in (0, 3, 0, 1):
        source.read_row_group(index, ["number"])
        assert len(open_files()) == 1
    other = source.again()
    assert other.read(["number"]).num_rows == 5
    assert len(open_files()) == 2
    other.close()
    source.close()
    assert open_files() == []


LIST = pa.array([[1], [2]], pa.list_(pa.int32()))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pa.array([1, 2], pa.int8()), pa.array([3, 4], pa.int64()), pa.int64()),
        (pa.array([1, 2], pa.uint32()), pa.array([3, 4], pa.int16()), pa.int64()),
        (pa.array([1.5, 2], pa.float32()), pa.array([3.5, 4]), pa.float64()),
        (pa.nulls(2), pa.array([3, 4], pa.int32()), pa.int32()),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "d"]), pa.string()),
        (pa.array(["a", "b"], pa.large_string()), pa.array(["c", "d"]), pa.large_string()),
        (LIST, pa.array([[3], None], pa.large_list(pa.int64())), pa.large_list(pa.int64())),
        (LIST, pa.array([[], []], pa.list_(pa.null())), pa.list_(pa.int32())),
        (LIST, pa.array([[3], [4]], pa.list_(pa.int32(), 1)), pa.list_(pa.int32())),
    ],
    ids=str,
)
def test_types_that_differ_between_files_are_widened(tmp_path, first, second, expected):
    for one, other in ((first, second), (second, first)):
        write(tmp_path / "all" / "0.parquet", [0, 1], value=one)
        write(tmp_path / "all" / "1.parquet", [2, 3], value=other)
        with ParquetSource(tmp_path / "all") as source:
            assert source.schema.field("value").type == expected
            table = source.read(["value", "number"])
        assert table.schema.field("value").type == expected
        assert table["value"].to_pylist() == one.to_pylist() + other.to_pylist()
        assert table["number"].to_pylist() == [0, 1, 2, 3]


def test_columns_in_another_order_are_the_same_columns(tmp_path):
    write(tmp_path / "all" / "0.parquet", [0], value=["a"])
    pq.write_table(pa.table({"value": ["b"], "number": [1]}), tmp_path / "all" / "1.parquet")
    with ParquetSource(tmp_path / "all") as source:
        assert source.read(["number", "value"]).to_pydict() == {
            "number": [0, 1],
            "value": ["a", "b"],
        }


@pytest.mark.parametrize(
    "values",
    [["a", "b"], [1.5, 2.5], [[1], [2]], np.array([1, 2], "datetime64[s]")],
    ids=["text", "floats", "lists", "times"],
)
def test_types_that_do_not_fit_are_refused_by_file_and_column(tmp_path, values):
    write(tmp_path / "all" / "0.parquet", [0, 1], value=[1, 2])
    write(tmp_path / "all" / "1.parquet", [2, 3], value=pa.array(values))
    message = r"1.parquet, column `value`: expected int64 as .*0.parquet. Received: "
    with pytest.raises(DataError, match=message):
        ParquetSource(tmp_path / "all")


def test_columns_that_come_or_go_are_refused(tmp_path):
    write(tmp_path / "all" / "0.parquet", [0, 1], weight=[1, 2])
    write(tmp_path / "all" / "1.parquet", [2, 3])
    with pytest.raises(DataError, match=r"1.parquet: expected the columns .*\['weight'\]"):
        ParquetSource(tmp_path / "all")


def test_a_number_beyond_the_common_type_is_refused_by_place(tmp_path):
    write(tmp_path / "all" / "0.parquet", [0], value=pa.array([1], pa.int64()))
    write(tmp_path / "all" / "1.parquet", [1], value=pa.array([2**63], pa.uint64()))
    message = r"1.parquet, row group 0, column `value`: expected int64"
    with ParquetSource(tmp_path / "all") as source, pytest.raises(DataError, match=message):
        source.read(["value"])
