import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_log
from small_log import MINUTE

from pipelines.audit import audit
from pipelines.auditing import findings
from pipelines.auditing.findings import AuditReport, Violation
from pipelines.prepare import prepare
from seqdenoise.data.sequences import SequenceBuilder
from seqdenoise.errors import DataError


@pytest.fixture
def prepared(tmp_path):
    small_log.write_log(tmp_path, small_log.tables())
    config = small_log.settings(tmp_path)
    prepare(config)
    return config


def rewrite(config, split, change):
    """Applies `change` to the split's rows as Python dicts and writes them back."""
    path = config.prepared_folder / f"{split}.parquet" / "part-00000.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path, row_group_size=50)


def first_row(rows, kind="click", length=4, found=lambda row: True):
    """The first row with so many entries with times, whose last two times differ."""
    for index, row in enumerate(rows):
        times = row[f"{kind}__timestamp"]
        if len(times) >= length and None not in times and times[-1] > times[-2] and found(row):
            return index
    raise AssertionError("the small log has no such row")


def replace_entry(row, kind, position, item, time):
    for field, value in {"item": item, "timestamp": time}.items():
        if value is not None:
            row[f"{kind}__{field}"][position] = value


def found_for(report, split, row, kind="click"):
    return {
        violation.what
        for violation in report.violations
        if (violation.split, violation.row, violation.type) == (split, row, kind)
    }


LATE = "an event at or after the impression"
ORDER = "not oldest to newest"
FOREIGN = "an entry that the user's raw log has not"
NOT_LAST = "not the last entries before the impression"
INCOMPLETE = "not as many entries as the raw log has before it"


def test_what_prepare_writes_passes(prepared):
    report = audit(prepared)
    assert report.passed
    assert report.violations == []
    rows = [
        row
        for split in ("train", "valid", "test")
        for row in pq.read_table(prepared.prepared_folder / f"{split}.parquet").to_pylist()
    ]
    times = [time for row in rows for kind in small_log.TYPES for time in row[f"{kind}__timestamp"]]
    assert report.rows == len(rows)
    assert report.events_checked == sum(time is not None for time in times)
    assert report.history_entries_checked == times.count(None)
    # Each is a sizeable check: neither kind of entry may be missing from the small log.
    assert report.events_checked > 1000
    assert report.history_entries_checked > 50


def plant(config, change, split="valid", **search):
    where = []

    def spoil(rows):
        index = first_row(rows, **search)
        change(rows[index], rows)
        where.append(index)

    rewrite(config, split, spoil)
    report = audit(config)
    assert {(v.split, v.row) for v in report.violations} == {(split, where[0])}
    assert report.num_violations == len(report.violations)
    assert not report.passed
    return found_for(report, split, where[0])


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize("later", [0, 5 * MINUTE])
def test_an_event_at_or_after_the_impression(prepared, split, later):
    def change(row, _):
        replace_entry(row, "click", -1, None, row["timestamp"] + later)

    assert plant(prepared, change, split) == {LATE, NOT_LAST, FOREIGN}


def test_an_event_of_another_user(prepared):
    def change(row, rows):
        other = next(
            r
            for r in rows
            if r["user"] != row["user"]
            and r["click__timestamp"]
            and r["click__timestamp"][-1] not in (None, *row["click__timestamp"])
        )
        position = len(row["click__item"]) - 1
        replace_entry(
            row, "click", position, other["click__item"][-1], other["click__timestamp"][-1]
        )
        row["click__timestamp"].sort()

    assert FOREIGN in plant(prepared, change)


def test_a_future_event_under_an_earlier_event_s_time(prepared):
    """Only the item gives it away: times and lengths are those of the true sequence."""
    events = pq.read_table(prepared.log_folder / "events.parquet").to_pylist()

    def change(row, _):
        mine = [e for e in events if e["user"] == row["user"] and e["type"] == "click"]
        before = {e["item"] for e in mine if e["timestamp"] < row["timestamp"]}
        future = next(
            e["item"]
            for e in mine
            if e["timestamp"] >= row["timestamp"] and e["item"] not in before
        )
        replace_entry(row, "click", -1, future, None)

    assert plant(prepared, change, "train") == {FOREIGN}


def test_one_event_twice(prepared):
    """Both entries exist, but the log has them once."""

    def change(row, _):
        item, time = row["click__item"][-1], row["click__timestamp"][-1]
        replace_entry(row, "click", -2, item, time)

    assert plant(prepared, change) == {NOT_LAST, FOREIGN}


@pytest.mark.parametrize("position", [0, 2, -1])
def test_a_dropped_event(prepared, position):
    def change(row, _):
        for name in ("item", "brand", "author", "timestamp"):
            del row[f"click__{name}"][position]

    assert plant(prepared, change) == {INCOMPLETE}


def test_an_older_window(prepared):
    """Off by one the other way: as many entries, all true, but not the last ones."""
    events = pq.read_table(prepared.log_folder / "events.parquet").to_pylist()

    def earlier(row):
        return sorted(
            (e["timestamp"], e["item"])
            for e in events
            if (e["user"], e["type"]) == (row["user"], "click")
            and e["timestamp"] < row["click__timestamp"][0]
        )

    def change(row, _):
        time, item = earlier(row)[-1]
        row["click__timestamp"] = [time, *row["click__timestamp"][:-1]]
        row["click__item"] = [item, *row["click__item"][:-1]]

    found = plant(prepared, change, "test", length=6, found=lambda row: len(earlier(row)) > 0)
    assert found == {NOT_LAST}


def test_reversed_order(prepared):
    def change(row, _):
        for name in ("item", "brand", "author", "timestamp"):
            row[f"click__{name}"].reverse()

    assert plant(prepared, change) == {ORDER, NOT_LAST}


def test_equal_times_may_stand_in_any_order(prepared):
    def swap(rows):
        for row in rows:
            times, items = row["click__timestamp"], row["click__item"]
            for k in range(1, len(times)):
                if times[k] == times[k - 1] is not None and items[k] != items[k - 1]:
                    items[k], items[k - 1] = items[k - 1], items[k]
                    swapped.append(row)

    swapped = []
    rewrite(prepared, "train", swap)
    assert swapped
    assert audit(prepared).passed


def test_too_long(prepared):
    def change(row, _):
        for name in ("item", "brand", "author", "timestamp"):
            values = row[f"click__{name}"]
            values.insert(0, values[0])

    found = plant(prepared, change, length=6)
    assert found >= {"longer than max_length", INCOMPLETE}


def test_columns_of_unequal_length_and_null_lists(prepared):
    def change(row, _):
        row["click__brand"].pop()

    assert plant(prepared, change) == {"the type's columns have lists of unequal length"}

    def remove(row, _):
        row["click__brand"] = None

    assert "a list is null" in plant(prepared, remove)


def history_rows(rows, kind, user=1):
    return [
        index
        for index, row in enumerate(rows)
        if row["user"] == user and None in row[f"{kind}__timestamp"]
    ]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([5, 6, 9], {NOT_LAST, FOREIGN}),  # 9 is no entry of that history
        ([6, 5, 7], {NOT_LAST}),
        ([5, 6], {INCOMPLETE}),
    ],
)
def test_history_entries_are_those_of_the_user_s_history(prepared, items, expected):
    where = []

    def change(rows):
        index = history_rows(rows, "seen")[0]
        row = rows[index]
        assert row["seen__item"] == [5, 6, 7]
        row |= {f"seen__{field}": [None] * len(items) for field in ("brand", "author", "timestamp")}
        row["seen__item"] = items
        where.append(index)

    rewrite(prepared, "train", change)
    assert found_for(audit(prepared), "train", where[0], "seen") == expected


def test_a_history_entry_after_an_event(prepared):
    where = []

    def change(rows):
        index = next(
            i for i in history_rows(rows, "click") if rows[i]["click__timestamp"][-1] is not None
        )
        for name in ("item", "brand", "author", "timestamp"):
            values = rows[index][f"click__{name}"]
            values.append(values.pop(0))
        where.append(index)

    rewrite(prepared, "train", change)
    assert ORDER in found_for(audit(prepared), "train", where[0])


def test_splits_that_overlap(prepared):
    path = prepared.prepared_folder / "train.parquet" / "part-00000.parquet"
    later = pq.read_table(prepared.prepared_folder / "valid.parquet").slice(0, 1)
    pq.write_table(pa.concat_tables([pq.read_table(path), later]), path)
    report = audit(prepared)
    assert [(v.split, v.row, v.what) for v in report.violations] == [
        ("valid", -1, "starts before train has ended")
    ]


def test_an_impression_moved_to_a_later_time(prepared):
    """Its sequence could then hold its own outcome."""

    def change(rows):
        rows[-1]["timestamp"] += 1

    rewrite(prepared, "test", change)
    count = len(pq.read_table(prepared.prepared_folder / "test.parquet"))
    found = found_for(audit(prepared), "test", count - 1, "")
    assert found == {"an impression that the raw log has not"}


def test_the_report_stays_small_and_counts_all(prepared, monkeypatch):
    monkeypatch.setattr(findings, "MAX_RECORDED", 5)

    def change(rows):
        for row in rows:
            for name in ("item", "brand", "author", "timestamp"):
                row[f"cart__{name}"] = []

    rewrite(prepared, "train", change)
    report = audit(prepared)
    assert len(report.violations) == 5
    assert report.num_violations > 100


def test_the_report_as_text():
    violations = [Violation("test", row, "click", LATE) for row in range(25)]
    text = str(
        AuditReport(1.0, 7, 80, 9, 30, [Violation("valid", -1, "", "overlaps"), *violations])
    )
    lines = text.splitlines()
    assert (
        lines[0]
        == "7 impressions, 80 events and 9 history entries of all users checked: 30 violations"
    )
    assert lines[1:3] == ["  valid row -1: overlaps", f"  test row 0, click: {LATE}"]
    assert lines[-1] == "  and 10 more"
    assert len(lines) == 22
    assert str(AuditReport(0.0625, 1, 2, 3, 0, [])).endswith(
        "6.25 % of the users checked: no violations"
    )


def test_damaged_or_foreign_files_raise(prepared):
    path = prepared.prepared_folder / "valid.parquet" / "part-00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["cart__item"]), path)
    with pytest.raises(DataError, match=r"valid.parquet: expected one column `cart__item`"):
        audit(prepared)
    wrong = pa.array([["a"]] * len(table))
    index = table.schema.get_field_index("cart__item")
    pq.write_table(table.set_column(index, "cart__item", wrong), path)
    with pytest.raises(DataError, match="column `cart__item`: expected lists of integers"):
        audit(prepared)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"part-00000.parquet: expected a whole parquet file"):
        audit(prepared)
    os.remove(path)
    with pytest.raises(DataError, match=r"valid.parquet: expected"):
        audit(prepared)


@pytest.mark.parametrize(
    ("shift", "expected"),
    [(0, set()), (1, {LATE, NOT_LAST, INCOMPLETE}), (-MINUTE, {NOT_LAST, INCOMPLETE})],
)
def test_a_builder_off_by_one_is_caught(tmp_path, monkeypatch, shift, expected):
    """One tick later takes in the events of the impression's own minute; one minute earlier misses
    the last ones."""
    build = SequenceBuilder.build

    def shifted(self, impressions):
        times = impressions["timestamp"].to_numpy() + shift
        return build(self, pa.table({"user": impressions["user"], "timestamp": times}))

    small_log.write_log(tmp_path, small_log.tables())
    config = small_log.settings(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(SequenceBuilder, "build", shifted)
        prepare(config)
    report = audit(config)
    assert {violation.what for violation in report.violations} == expected
    assert report.passed == (shift == 0)
