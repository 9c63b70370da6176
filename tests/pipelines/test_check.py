import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_log

from pipelines.check import check, sizes_of
from pipelines.config import ConfigError

ROW_GROUP = 4
IDS = pa.list_(pa.int64())


def columns():
    """Ten prepared rows in row groups of 4, 4 and 2; nothing is wrong with them."""
    return {
        "user": pa.array(range(1, 11)),
        "item": pa.array([7] * 10),
        "timestamp": pa.array(range(100, 110)),
        "is_click": pa.array([0, 1] * 5, pa.int8()),
        "weight": pa.array([0.0, 0.5] * 5),
        "price": pa.array([1.5] * 10),
        # The second entry of a history has no time.
        "click__item": pa.array([[5, 6, 8]] * 9 + [[]], IDS),
        "click__timestamp": pa.array([[None, 90, 99]] * 9 + [[]], IDS),
        "click__price": pa.array([[None, 1.0, 2.0]] * 9 + [[]]),
        "cart__item": pa.array([[9]] * 10, IDS),
        "click__length": pa.array([3] * 9 + [0]),
    }


def write(path, table=None, **changed):
    table = columns() if table is None else table
    pq.write_table(
        pa.table({k: v for k, v in {**table, **changed}.items() if v is not None}),
        path,
        row_group_size=ROW_GROUP,
    )
    return path


def with_value(name, row, value):
    column = columns()[name]
    values = column.to_pylist()
    values[row] = value
    return {name: pa.array(values, column.type)}


def test_nothing_is_found_in_good_files(tmp_path):
    write(tmp_path / "part-0.parquet")
    users = pa.array(range(11, 21))
    write(tmp_path / "part-1.parquet", user=users)
    (tmp_path / "prepare.json").write_text("{}")
    report = check([tmp_path])
    assert report.findings == []
    assert (report.files, report.rows, report.passed) == (2, 20, True)


# Row 5 of the file is row 1 of row group 1.
DEFECTS = {
    "null user": (with_value("user", 5, None), "error", "null", "user"),
    "null time": (with_value("timestamp", 5, None), "error", "null", "timestamp"),
    "null label": (with_value("is_click", 5, None), "warning", "null_feature", "is_click"),
    "null weight": (with_value("weight", 5, None), "error", "null", "weight"),
    "null feature": (with_value("price", 5, None), "warning", "null_feature", "price"),
    "nan": (with_value("price", 5, float("nan")), "error", "not_finite", "price"),
    "infinite weight": (with_value("weight", 5, float("inf")), "error", "not_finite", "weight"),
    "negative weight": (with_value("weight", 5, -0.1), "error", "weight", "weight"),
    "strange label": (with_value("is_click", 5, 2), "warning", "maybe_label", "is_click"),
    "negative user": (with_value("user", 5, -3), "warning", "negative_id", "user"),
    "item 0": (with_value("item", 5, 0), "warning", "pad_id", "item"),
    "entry 0": (with_value("cart__item", 5, [0]), "warning", "pad_id", "cart__item"),
    "negative entry": (with_value("cart__item", 5, [-1]), "warning", "negative_id", "cart__item"),
    "null list": (with_value("cart__item", 5, None), "warning", "null_list", "cart__item"),
    "null entry": (with_value("cart__item", 5, [None]), "error", "null_in_list", "cart__item"),
    "null price of an event": (
        with_value("click__price", 5, [None, None, 2.0]),
        "warning",
        "null_feature_in_list",
        "click__price",
    ),
    "infinity in a list": (
        with_value("click__price", 5, [None, float("-inf"), 2.0]),
        "error",
        "not_finite",
        "click__price",
    ),
    "short list": (
        with_value("click__price", 5, [1.0, 2.0]),
        "error",
        "length_mismatch",
        "click__price",
    ),
    "event at the impression": (
        with_value("click__timestamp", 5, [None, 90, 105]),
        "error",
        "future",
        "click__timestamp",
    ),
    "newest first": (
        with_value("click__timestamp", 5, [None, 91, 90]),
        "error",
        "order",
        "click__timestamp",
    ),
    "history last": (
        with_value("click__timestamp", 5, [90, 91, None])
        | with_value("click__price", 5, [1.0, 1.0, None]),
        "error",
        "order",
        "click__timestamp",
    ),
    "beyond int64": (
        {"user": pa.array([*range(1, 6), 2**63, *range(7, 11)], pa.uint64())},
        "error",
        "beyond_int64",
        "user",
    ),
    "entry beyond int64": (
        {"cart__item": pa.array([[9]] * 5 + [[2**64 - 1]] + [[9]] * 4, pa.list_(pa.uint64()))},
        "error",
        "beyond_int64",
        "cart__item",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found_and_placed(tmp_path, defect):
    changed, severity, code, column = DEFECTS[defect]
    path = write(tmp_path / "a.parquet", **changed)
    report = check([path])
    (finding,) = report.findings
    assert (finding.severity, finding.code, finding.column) == (severity, code, column)
    assert finding.file == str(path)
    assert (finding.row_group, finding.row, finding.file_row, finding.count) == (1, 1, 5, 1)
    assert report.passed == (severity == "warning")


def test_rows_of_a_file_are_counted_and_the_first_is_named(tmp_path):
    prices = pa.array([1.0, 1.0, 1.0, None, 1.0, 1.0, None, None, 1.0, None])
    (finding,) = check([write(tmp_path / "a.parquet", price=prices)]).findings
    assert (finding.row_group, finding.row, finding.file_row, finding.count) == (0, 3, 3, 4)
    # A row with three bad entries is one row.
    late = pa.array([[200, 300, 400]] * 2 + [[None, 90, 99]] * 7 + [[]], IDS)
    changed = {"click__timestamp": late, "click__price": pa.array([[1.0] * 3] * 9 + [[]])}
    (finding,) = check([write(tmp_path / "a.parquet", **changed)]).findings
    assert (finding.code, finding.count) == ("future", 2)
    assert finding.what.endswith("Received: 200 for 100")


def test_lists_of_any_kind(tmp_path):
    for kind in (pa.large_list(pa.int64()), pa.list_(pa.int64(), 3)):
        times = [[None, 90, 99]] * 10
        times[5] = [None, 90, 500]
        changed = {"click__timestamp": pa.array(times, kind)}
        changed["click__item"] = pa.array([[5, 6, 8]] * 10, kind)
        changed["click__price"] = pa.array([[None, 1.0, 2.0]] * 10)
        (finding,) = check([write(tmp_path / "a.parquet", **changed)]).findings
        assert (finding.code, finding.file_row) == ("future", 5)


def test_arrow_timestamps_are_compared_in_the_finer_unit(tmp_path):
    table = {
        "user": pa.array([1, 2, 3]),
        "item": pa.array([1, 1, 1]),
        "timestamp": pa.array([1000, 1000, 1000], pa.timestamp("ms")),
        "click__timestamp": pa.array(
            [[999_999], [1_000_000], [1_000_001]], pa.list_(pa.timestamp("us"))
        ),
    }
    (finding,) = check([write(tmp_path / "a.parquet", table)]).findings
    assert (finding.code, finding.row, finding.count) == ("future", 1, 2)
    table["timestamp"] = pa.array([1, 2, 3])
    (finding,) = check([write(tmp_path / "a.parquet", table)]).findings
    assert finding.code == "wrong_type"
    table["timestamp"] = pa.array([1000, 1000, 1000], pa.timestamp("ms", "UTC"))
    (finding,) = check([write(tmp_path / "a.parquet", table)]).findings
    assert (finding.code, "zone" in finding.what) == ("wrong_type", True)


def found(report):
    return {(finding.code, finding.column) for finding in report.findings}


def test_schemas(tmp_path):
    path = tmp_path / "a.parquet"
    decimals = pa.array(["1.50"] * 10).cast(pa.decimal128(5, 2))
    changed = {"item": pa.array([1.0] * 10), "price": decimals, "timestamp": None}
    assert found(check([write(path, **changed)])) == {
        ("wrong_type", "item"),
        ("unused_type", "price"),
        ("missing_column", ""),
    }
    changed = {"click__item": pa.array([1] * 10), "cart__item": pa.array([[1.0]] * 10)}
    assert found(check([write(path, **changed)])) == {
        ("wrong_type", "click__item"),
        ("wrong_type", "cart__item"),
    }
    table = pa.table(columns())
    pq.write_table(table.append_column("item", table["user"]), path)
    assert found(check([path])) == {("repeated_column", "item")}
    write(path, {"a": pa.array([1])})
    assert found(check([path])) == {("unknown_table", "")}


def test_drift_between_files(tmp_path):
    first = write(tmp_path / "a.parquet")
    users = pa.array(range(11, 21))
    wider = write(tmp_path / "b.parquet", user=users, is_click=pa.array([0, 1] * 5, pa.int64()))
    other = write(tmp_path / "c.parquet", user=pa.array(range(21, 31)), price=pa.array(["1"] * 10))
    fewer = write(tmp_path / "d.parquet", user=pa.array(range(31, 41)), weight=None)
    report = check([first, wider, other, fewer])
    assert {(f.code, f.file, f.column) for f in report.findings} == {
        ("widened_type", str(wider), "is_click"),
        ("schema_drift", str(other), ""),
        ("schema_drift", str(fewer), ""),
    }
    texts = {finding.file: finding.what for finding in report.findings}
    assert "column `price`: expected double" in texts[str(other)]
    assert "differ in ['weight']" in texts[str(fewer)]


def test_duplicates_over_row_groups_and_files(tmp_path):
    users = pa.array([1, 2, 3, 4, None, 2, 7, None, 9, 2])
    changed = {"user": users, "timestamp": pa.array([100] * 10)}
    first = write(tmp_path / "a.parquet", click__timestamp=None, **changed)
    users = pa.array([11, 12, 13, 14, 15, 16, 4, 18, 19, 11])
    second = write(tmp_path / "b.parquet", click__timestamp=None, **{**changed, "user": users})
    third = write(tmp_path / "c.parquet", timestamp=pa.array(range(200, 210)))
    report = check([first, second, third])
    repeats = [finding for finding in report.findings if finding.code == "duplicate"]
    assert [(f.file, f.row_group, f.row, f.file_row, f.count) for f in repeats] == [
        (str(first), 1, 1, 5, 2),
        (str(second), 1, 2, 6, 2),
    ]
    assert repeats[0].what.endswith("Received: {'user': 2, 'item': 7, 'timestamp': 100} again")


def raw_tables():
    return {
        "events": {
            "user": pa.array([1, 1, 1]),
            "item": pa.array([5, 5, 5]),
            "type": pa.array(["click", "cart", "click"]),
            "timestamp": pa.array([9, 9, 9]),
        },
        "histories": {
            "user": pa.array([1, 1]),
            "type": pa.array(["click", "cart"]).dictionary_encode(),
            "items": pa.array([[3, None], [4]]),
        },
        "items": {"item": pa.array([5, 6, 5]), "brand": pa.array(["a", None, "a"])},
        "users": {"user": pa.array([1, 2, None])},
    }


def test_raw_tables(tmp_path):
    for name, table in raw_tables().items():
        write(tmp_path / f"{name}.parquet", table)
    report = check([tmp_path])
    assert [(f.severity, f.code, Path(f.file).stem, f.row, f.count) for f in report.findings] == [
        ("error", "null_in_list", "histories", 0, 1),
        ("error", "duplicate", "items", 2, 1),
        ("error", "null", "users", 2, 1),
        ("warning", "duplicate_event", "events", 2, 1),
        ("warning", "null_feature", "items", 1, 1),
    ]


def test_which_table_a_file_is(tmp_path):
    events = raw_tables()["events"]
    log = tmp_path / "events.parquet"
    log.mkdir()
    del events["item"]
    # By the name of the folder in a log; its columns alone would rather say otherwise.
    del events["timestamp"]
    (finding,) = check([write(log / "part-0.parquet", events)]).findings
    assert (finding.code, finding.what.split(". ")[0]) == (
        "missing_column",
        "expected `item`, `timestamp` (events table)",
    )
    events = raw_tables()["events"]
    (finding,) = check([write(tmp_path / "day.parquet", events)]).findings
    assert (finding.code, finding.row) == ("duplicate_event", 2)
    del events["type"]
    (finding,) = check([write(tmp_path / "day.parquet", events)]).findings
    assert (finding.code, finding.row, finding.count) == ("duplicate", 1, 2)


def test_the_check_goes_on_after_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "empty.parquet").write_bytes(b"")
    good = write(tmp_path / "good.parquet", **with_value("price", 5, None))
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(good.read_bytes()[:-100])
    none = write(tmp_path / "none.parquet", {k: v.slice(0, 0) for k, v in columns().items()})
    report = check([tmp_path / "nowhere.parquet", tmp_path])
    assert [(f.severity, f.code, f.file) for f in report.findings] == [
        ("error", "unreadable", str(tmp_path / "nowhere.parquet")),
        ("error", "unreadable", str(cut)),
        ("error", "unreadable", str(tmp_path / "empty.parquet")),
        ("warning", "empty_file", str(none)),
        ("warning", "null_feature", str(good)),
    ]
    assert (report.files, report.rows) == (4, 10)
    assert found(check([none])) == {("no_rows", ""), ("empty_file", "")}


def test_a_damaged_page_is_placed_and_the_other_row_groups_are_checked(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({**columns(), **with_value("price", 9, None)})
    pq.write_table(
        table, path, row_group_size=ROW_GROUP, use_dictionary=False, write_page_checksum=True
    )
    with pq.ParquetFile(path) as file:
        position = table.column_names.index("price")
        chunk = file.metadata.row_group(1).column(position)
        middle = chunk.data_page_offset + chunk.total_compressed_size - 3
    data = bytearray(path.read_bytes())
    data[middle] ^= 255
    path.write_bytes(data)
    report = check([path])
    assert [(f.code, f.row_group, f.file_row) for f in report.findings] == [
        ("unreadable", 1, None),
        ("null_feature", 2, 9),
    ]
    assert "column `price`" in report.findings[0].what


def test_the_run_file_says_what_is_needed(tmp_path):
    settings = small_log.settings(tmp_path)
    prepare = settings.prepare.model_copy(
        update={
            "sequence_types": ["click"],
            "max_length": 2,
            "item_fields": ["price"],
            "user_fields": ["age"],
            "context_fields": [],
            "labels": ["is_click"],
        }
    )
    config = settings.model_copy(update={"prepare": prepare})
    labels = with_value("is_click", 5, 2)
    report = check([write(tmp_path / "a.parquet", **labels)], config=config)
    assert {(f.code, f.column, f.count) for f in report.findings} == {
        ("missing_column", "", 1),
        ("label", "is_click", 1),
        *(("too_long", f"click__{name}", 9) for name in ("item", "timestamp", "price")),
    }
    assert "`age` (prepared table)" in report.findings[0].what
    tied = with_value("click__timestamp", 5, [None, 90, 105])
    path = write(tmp_path / "a.parquet", **tied, age=pa.array([1] * 10))
    assert ("future", "click__timestamp") in found(check([path], config=config))
    included = prepare.model_copy(update={"ties": "include"})
    config = settings.model_copy(update={"prepare": included})
    assert "future" not in {code for code, _ in found(check([path], config=config))}


def test_sizes(tmp_path):
    changed = {"cart__item": pa.array([[9], [10], [-1], [0], [], [11]] + [[1]] * 4, IDS)}
    path = write(tmp_path / "a.parquet", **changed)
    report = check([path], sizes={"cart__item": 10})
    assert [(f.severity, f.code, f.row, f.count) for f in report.findings] == [
        ("error", "beyond_size", 1, 3),
        ("warning", "pad_id", 3, 1),
    ]
    assert report.findings[0].what == "expected ids from 0 to 9. Received: 10"
    with pytest.raises(ConfigError, match=r"sizes of columns .* Received: \['cart'\]"):
        check([path], sizes={"cart": 10})


def test_errors_may_be_taken_as_warnings(tmp_path):
    path = write(tmp_path / "a.parquet", user=pa.array([1] * 10), timestamp=pa.array([100] * 10))
    assert not check([path]).passed
    assert check([path], as_warnings=["duplicate"]).passed
    with pytest.raises(ConfigError, match=r"codes of findings.* Received: \['dupes'\]"):
        check([path], as_warnings=["dupes"])
    with pytest.raises(ConfigError, match="at least one file"):
        check([])


def test_what_prepare_writes_is_clean(tmp_path):
    from pipelines.prepare import prepare

    small_log.write_log(tmp_path, small_log.tables())
    config = small_log.settings(tmp_path)
    prepare(config)
    report = check([config.prepared_folder], config=config)
    assert (report.files, report.passed) == (3, True)
    # Item 0 is among the random items, and some have no brand.
    assert {f.code for f in report.findings} == {"pad_id", "null_feature", "null_feature_in_list"}
    table = pq.read_table(config.prepared_folder / "test.parquet")
    pq.write_table(table, config.prepared_folder / "train.parquet" / "part-99999.parquet")
    report = check([config.prepared_folder], config=config)
    assert sum(f.count for f in report.findings if f.code == "duplicate") == len(table)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "pipelines", "check", *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        env={**os.environ, "SEQDENOISE_DATA_ONLY": "1"},
    )


def test_the_command_and_its_exit_codes(tmp_path):
    good = write(tmp_path / "good.parquet", **with_value("price", 5, None))
    bad = write(tmp_path / "bad.parquet", **with_value("user", 5, None))
    result = run(good)
    assert result.returncode == 0
    assert result.stdout.splitlines() == [
        f"warning: {good}, row group 1, column `price`, row 1 (row 5 of the file): 1 row, "
        "null_feature: nulls",
        "1 files, 10 rows checked: no errors, 1 warnings",
    ]
    result = run(bad, "--json", tmp_path / "out.json", "--show", 0)
    assert result.returncode == 1
    assert result.stdout.splitlines()[0] == "and 1 more findings"
    (finding,) = json.loads((tmp_path / "out.json").read_text())["findings"]
    assert finding == {
        "severity": "error",
        "code": "null",
        "what": "expected no nulls",
        "file": str(bad),
        "column": "user",
        "row_group": 1,
        "row": 1,
        "file_row": 5,
        "count": 1,
    }
    result = run(good, "--size", "user")
    assert result.returncode == 2
    assert result.stderr == ("error: expected COLUMN=SIZE, like click__item=1000. Received: user\n")


@pytest.mark.parametrize("option", ["", "=5", "user", "user=", "user=0", "user=-1", "user=x"])
def test_a_size_is_a_column_and_a_number(option):
    with pytest.raises(ConfigError, match=f"expected COLUMN=SIZE.* Received: {option}$"):
        sizes_of([option])


def test_the_table_for_a_terminal(tmp_path):
    from rich.console import Console

    path = write(tmp_path / "a.parquet", **with_value("user", 5, None), **with_value("item", 3, 0))
    console = Console(width=200, file=io.StringIO())
    console.print(check([path]).table(1))
    text = console.file.getvalue()
    assert "row 1 (row 5 of the file)" in text
    assert "and 1 more findings" in text
    assert "pad_id" not in text


def test_many_keys_are_told_apart():
    from pipelines.checking.duplicates import RepeatedKeys, key_hashes

    n = 40_000
    random = np.random.default_rng(0)
    keys = np.stack(
        [random.integers(0, 50, n), random.integers(0, 50, n), random.integers(0, 40, n)]
    )
    table = pa.table(dict(zip(["user", "item", "timestamp"], keys, strict=True)))
    repeated = RepeatedKeys()
    hashes, whole = key_hashes(table, table.column_names)
    repeated.add(hashes)
    repeated.found()
    parts = np.array_split(hashes, 7)
    starts = np.cumsum([0, *map(len, parts[:-1])])
    rows = [repeated.repeats(part) + start for part, start in zip(parts, starts, strict=True)]
    _, first = np.unique(keys, axis=1, return_index=True)
    np.testing.assert_array_equal(np.concatenate(rows), np.setdiff1d(np.arange(n), first))
    assert whole.all()
