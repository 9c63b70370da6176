import json
import os
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_log
from small_log import MINUTE, START

from pipelines.config import ConfigError
from pipelines.preparation.bucket import ROW_GROUP_ROWS
from pipelines.preparation.summary import length_statistics
from pipelines.prepare import prepare
from pipelines.run_sections import SplitConfig
from pipelines.splits import split_bounds, split_codes, to_ticks
from seqdenoise.errors import DataError


def read(folder, name):
    return pq.read_table(folder / "prepared" / f"{name}.parquet")


def expected_rows(raw, low, high, max_length=6):
    """The prepared rows with `low <= timestamp < high` in tabs 0 and 1, one at a time."""
    items = {row["item"]: row for row in raw["items"].to_pylist()}
    users = {row["user"]: row for row in raw["users"].to_pylist()}
    events, histories = raw["events"].to_pylist(), raw["histories"].to_pylist()
    rows = []
    for row in raw["impressions"].to_pylist():
        if row["tab"] not in (0, 1) or not low <= row["timestamp"] < high:
            continue
        item, user = items.get(row["item"], {}), users.get(row["user"], {})
        row |= {"brand": item.get("brand"), "author": item.get("author"), "age": user.get("age")}
        for kind in small_log.TYPES:
            seen = []
            for past in histories:
                if past["user"] == row["user"] and past["type"] == kind:
                    seen += [(key, None) for key in past["items"] or []]
            timed = [
                (event["item"], event["timestamp"])
                for event in events
                if event["user"] == row["user"]
                and event["type"] == kind
                and event["timestamp"] < row["timestamp"]
            ]
            seen = (seen + sorted(timed, key=lambda entry: entry[1]))[-max_length:]
            row[f"{kind}__item"] = [key for key, _ in seen]
            for field in ("brand", "author"):
                row[f"{kind}__{field}"] = [items.get(key, {}).get(field) for key, _ in seen]
            row[f"{kind}__timestamp"] = [time for _, time in seen]
        rows.append(row)
    return sorted(rows, key=lambda row: (row["timestamp"], row["user"], row["item"]))


def test_equals_the_definition_row_by_row(tmp_path):
    raw = small_log.tables()
    small_log.write_log(tmp_path, raw)
    prepare(small_log.settings(tmp_path))
    bounds = [START, START + 360 * MINUTE, START + 480 * MINUTE, START + 10**9]
    for name, low, high in zip(("train", "valid", "test"), bounds, bounds[1:], strict=False):
        table = read(tmp_path, name)
        assert table.to_pylist() == expected_rows(raw, low, high)
    assert [str(table.schema.field(name).type) for name in ("user", "is_click", "author")] == [
        "int64",
        "int8",
        "int64",
    ]
    assert sorted(os.listdir(tmp_path / "prepared")) == [
        "prepare.json",
        "statistics.json",
        "test.parquet",
        "train.parquet",
        "valid.parquet",
    ]


def test_the_summary_counts_what_was_written(tmp_path):
    raw = small_log.tables()
    small_log.write_log(tmp_path, raw)
    prepare(small_log.settings(tmp_path))
    summary = json.loads((tmp_path / "prepared" / "prepare.json").read_text())
    types = raw["events"]["type"].to_pylist()
    assert summary["events"] == {name: types.count(name) for name in ("cart", "click", "other")}
    for name in ("train", "valid", "test"):
        table, part = read(tmp_path, name), summary["splits"][name]
        assert part["rows"] == len(table)
        assert part["users"] == len(set(table["user"].to_pylist()))
        np.testing.assert_allclose(
            part["label_rates"]["is_click"], np.mean(table["is_click"].to_pylist())
        )
        lengths = [len(row) for row in table["click__item"].to_pylist()]
        clicks = part["sequences"]["click"]
        np.testing.assert_allclose(clicks["mean_length"], np.mean(lengths))
        np.testing.assert_allclose(clicks["empty_rate"], np.mean([n == 0 for n in lengths]))
        np.testing.assert_allclose(clicks["full_rate"], np.mean([n == 6 for n in lengths]))
        assert clicks["median_length"] == sorted(lengths)[(len(lengths) - 1) // 2]


@pytest.mark.parametrize(
    ("lengths", "median"), [([0, 2], 0), ([0, 0, 2], 0), ([0, 1, 2, 2], 1), ([2], 2)]
)
def test_the_median_length_is_the_lower_one(lengths, median):
    counts = np.bincount(lengths, minlength=3)
    assert length_statistics(counts)["median_length"] == median


def test_row_groups_hold_8192_rows_and_a_second_run_replaces_the_first(tmp_path):
    raw = small_log.tables(num_impressions=20_000, num_events=500)
    small_log.write_log(tmp_path, raw)
    config = small_log.settings(tmp_path, where={}, item_fields=[], user_fields=[])
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "stale.txt").write_text("old")
    prepare(config)
    metadata = pq.ParquetFile(
        tmp_path / "prepared" / "train.parquet" / "part-00000.parquet"
    ).metadata
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sizes[:-1] == [ROW_GROUP_ROWS] * (len(sizes) - 1)
    assert len(sizes) == 2
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert sorted(os.listdir(tmp_path)) == ["log", "prepared"]
    assert not (tmp_path / "prepared" / "stale.txt").exists()


def test_optional_tables_may_be_absent(tmp_path):
    raw = small_log.tables()
    raw = {name: raw[name] for name in ("events", "impressions")}
    raw["impressions"] = raw["impressions"].drop_columns(["weight"])
    small_log.write_log(tmp_path, raw)
    prepare(
        small_log.settings(
            tmp_path, item_fields=[], user_fields=[], sequence_types=["click"], context_fields=[]
        )
    )
    assert read(tmp_path, "test").column_names == [
        *("user", "item", "timestamp", "is_click", "click__item", "click__timestamp")
    ]


@pytest.mark.parametrize(
    ("moment", "unit", "ticks"),
    [
        ("1970-01-01T00:00:00.000001+00:00", "ns", 1000),
        ("1970-01-01T00:00:00.000001+00:00", "us", 1),
        # A bound between two ticks is the later one: `t >= bound` keeps its meaning.
        ("1970-01-01T00:00:00.000001+00:00", "ms", 1),
        ("1969-12-31T23:59:59.500000+00:00", "s", 0),
        ("1969-12-31T23:59:59.500000+00:00", "ms", -500),
        # float64 seconds would lose the last microsecond.
        ("2262-04-11T23:47:16.854775+00:00", "us", 9_223_372_036_854_775),
        ("2262-04-11T23:47:16.854775+00:00", "ns", 9_223_372_036_854_775_000),
        ("2022-05-01T00:00:00+08:00", "s", 1_651_334_400),
    ],
)
def test_moments_become_ticks_exactly(moment, unit, ticks):
    assert to_ticks(datetime.fromisoformat(moment), unit) == ticks
    assert to_ticks(ticks, unit) == ticks


def test_splits_are_half_open():
    split = SplitConfig(
        train_from=10,
        valid_from=20,
        test_from=datetime(1970, 1, 1, 0, 0, 30, tzinfo=timezone.utc),
        test_until=40,
    )
    times = np.array([9, 10, 19, 20, 29, 30, 39, 40])
    codes = split_codes(times, split_bounds(split, "s"))
    assert codes.tolist() == [-1, 0, 0, 1, 1, 2, 2, -1]


def test_a_gap_ends_train_and_valid_early():
    split = SplitConfig(valid_from=20, test_from=30, gap=3)
    times = np.array([16, 17, 19, 20, 26, 27, 29, 30, 99])
    codes = split_codes(times, split_bounds(split, "s"))
    assert codes.tolist() == [0, -1, -1, 1, 1, -1, -1, 2, 2]


def replace(table, name, values):
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values))


def with_value(table, name, value):
    values = table[name].to_pylist()
    values[7] = value
    return replace(table, name, values)


# Each: the table, how it is spoilt, the run file's changes, where and what the message says.
BAD = {
    "missing event column": (
        "events",
        lambda table: table.drop_columns(["timestamp"]),
        {},
        "expected one column `timestamp`",
    ),
    "missing label": (
        "impressions",
        lambda table: table.drop_columns(["is_click"]),
        {},
        "expected one column `is_click` (prepare.labels)",
    ),
    "float item": (
        "events",
        lambda table: table.set_column(1, "item", table["item"].cast(pa.float64())),
        {},
        "column `item`: expected integers. Received: double",
    ),
    "integer type": (
        "events",
        lambda table: replace(table, "type", [1] * len(table)),
        {},
        "column `type`: expected strings. Received: int64",
    ),
    "null user": (
        "events",
        lambda table: with_value(table, "user", None),
        {},
        "column `user`: expected no nulls. Received: 1 nulls, the first in row 7",
    ),
    "null type": (
        "events",
        lambda table: with_value(table, "type", None),
        {},
        "column `type`: expected no nulls",
    ),
    "null label": (
        "impressions",
        lambda table: with_value(table, "is_click", None),
        {},
        "column `is_click`: expected no nulls",
    ),
    "label 2": (
        "impressions",
        lambda table: with_value(table, "is_click", 2),
        {},
        "column `is_click`: expected labels 0 or 1. Received: 2 in row 7",
    ),
    "negative weight": (
        "impressions",
        lambda table: with_value(table, "weight", -1.0),
        {},
        "column `weight`: expected finite weights of at least 0. Received: -1.0 in row 7",
    ),
    "no events": ("events", lambda table: table.slice(0, 0), {}, "expected at least one row"),
    "no impressions": ("impressions", lambda table: table.slice(0, 0), {}, "expected at least one"),
    "unknown sequence type": (
        "events",
        None,
        {"sequence_types": ["click", "clack"]},
        "column `type`: expected the sequence types ['click', 'clack']",
    ),
    "unknown label": (
        "impressions",
        None,
        {"labels": ["is_click", "is_clack"]},
        "expected one column `is_clack` (prepare.labels)",
    ),
    "unknown context field": (
        "impressions",
        None,
        {"context_fields": ["tub"]},
        "expected one column `tub` (prepare.context_fields)",
    ),
    "unknown item field": (
        "items",
        None,
        {"item_fields": ["brend"]},
        "expected one column `brend` (prepare.item_fields)",
    ),
    "unknown user field": (
        "users",
        None,
        {"user_fields": ["aje"]},
        "expected one column `aje` (prepare.user_fields)",
    ),
    "unknown where column": (
        "impressions",
        None,
        {"where": {"scene": [1]}},
        "expected one column `scene` (prepare.where)",
    ),
    "where of another kind": (
        "impressions",
        None,
        {"where": {"tab": ["1"]}},
        "column `tab`: expected prepare.where values like the column's int64. Received: '1'",
    ),
    "where without rows": (
        "impressions",
        None,
        {"where": {"tab": [17]}},
        "expected rows that match prepare.where",
    ),
    "empty split": (
        "impressions",
        None,
        {"split": {"valid_from": START + 5 * MINUTE + 1, "test_from": START + 5 * MINUTE + 2}},
        "expected impressions for the valid split",
    ),
    "duplicate item": (
        "items",
        lambda table: with_value(table, "item", table["item"][3].as_py()),
        {},
        "column `item`: expected every item once",
    ),
    "null item": (
        "items",
        lambda table: with_value(table, "item", None),
        {},
        "column `item`: expected no nulls",
    ),
    "duplicate user": (
        "users",
        lambda table: with_value(table, "user", table["user"][3].as_py()),
        {},
        "column `user`: expected every user once",
    ),
    "history of strings": (
        "histories",
        lambda table: replace(table, "items", [["a"]] * len(table)),
        {},
        "column `items`: expected lists of integers",
    ),
    "history twice": (
        "histories",
        lambda table: pa.concat_tables([table, table]),
        {},
        "expected one row a user and type. Received: user 1, type 'click'",
    ),
    "null in a history": (
        "histories",
        lambda table: replace(table, "items", [[1], [None], [2], [3]]),
        {},
        "column `items`: expected lists without null elements. Received: 1 nulls",
    ),
    "context field that is a label": (
        None,
        None,
        {"context_fields": ["is_click"]},
        "distinct names (labels, context, item and user fields, sequences). Received: ['is_click']",
    ),
    "item field that is a user field": (
        "users",
        lambda table: table.append_column("brand", pa.array(range(len(table)))),
        {"user_fields": ["brand"]},
        None,
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_error_that_names_the_place(tmp_path, case):
    name, spoil, changes, message = BAD[case]
    raw = small_log.tables()
    if spoil is not None:
        raw[name] = spoil(raw[name])
    small_log.write_log(tmp_path, raw)
    with pytest.raises(DataError) as caught:
        prepare(small_log.settings(tmp_path, **changes))
    text = str(caught.value)
    assert (message or "distinct names") in text
    assert "Received: " in text
    where = f"{name}.parquet" if name and message else "log"
    assert str(tmp_path / "log") in text
    assert where in text
    assert os.listdir(tmp_path) == ["log"]


@pytest.mark.parametrize("name", ["events", "impressions", "histories", "items", "users"])
@pytest.mark.parametrize("size", [0, 3, -200])
def test_files_cut_off_are_named(tmp_path, name, size):
    small_log.write_log(tmp_path, small_log.tables())
    path = tmp_path / "log" / f"{name}.parquet"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=rf"{name}.parquet: expected a whole parquet file"):
        prepare(small_log.settings(tmp_path))
    assert os.listdir(tmp_path) == ["log"]


def test_a_damaged_page_names_row_group_and_column(tmp_path):
    small_log.write_log(tmp_path, small_log.tables())
    path = tmp_path / "log" / "events.parquet"
    column = pq.ParquetFile(path).metadata.row_group(2).column(3)
    start = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"events.parquet, row group 2, column `timestamp`: exp"):
        prepare(small_log.settings(tmp_path))
    assert os.listdir(tmp_path) == ["log"]


@pytest.mark.parametrize("name", ["events", "impressions", "items", "users"])
def test_absent_files_are_named(tmp_path, name):
    raw = small_log.tables()
    del raw[name]
    small_log.write_log(tmp_path, raw)
    with pytest.raises(DataError, match=rf"{name}.parquet: expected .*no such file"):
        prepare(small_log.settings(tmp_path))
    assert os.listdir(tmp_path) == ["log"]


def test_splits_out_of_order_are_a_configuration_error(tmp_path):
    small_log.write_log(tmp_path, small_log.tables())
    split = {"valid_from": START + 2, "test_from": START + 1}
    with pytest.raises(ConfigError, match=r"prepare.split: expected increasing times"):
        prepare(small_log.settings(tmp_path, split=split))
    assert os.listdir(tmp_path) == ["log"]


def test_a_failure_while_writing_leaves_the_old_folder(tmp_path, monkeypatch):
    small_log.write_log(tmp_path, small_log.tables())
    config = small_log.settings(tmp_path)
    prepare(config)
    before = read(tmp_path, "train")

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("pipelines.preparation.bucket.pq.ParquetWriter", fail)
    with pytest.raises(OSError, match="disk full"):
        prepare(config)
    assert read(tmp_path, "train").equals(before)
    # What was finished is kept for the next run.
    assert sorted(os.listdir(tmp_path)) == [".prepare", "log", "prepared"]
    monkeypatch.undo()
    prepare(config)
    assert read(tmp_path, "train").equals(before)
    assert sorted(os.listdir(tmp_path)) == ["log", "prepared"]
