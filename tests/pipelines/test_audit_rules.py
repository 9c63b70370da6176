"""The audit under every rule of the sequences: it passes what prepare writes, and nothing else."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_log
from small_log import MINUTE

from pipelines import audit as audit_module
from pipelines.audit import audit
from pipelines.config import ConfigError
from pipelines.prepare import prepare
from seqdenoise.data.user_hash import user_fraction
from seqdenoise.errors import DataError

FIELDS = {"event_fields": ["price", "shop"], "age": True, "session_gap": 7 * MINUTE}


def write_log(folder):
    """Few items and whole minutes: many duplicates of every kind, and ties."""
    raw = small_log.tables(num_items=5)
    random = np.random.default_rng(7)
    count = len(raw["events"])
    price = random.integers(0, 900, count) / 8
    shop = random.choice(["x", "y", None], count).tolist()
    events = raw["events"].append_column("price", pa.array(price, mask=random.random(count) < 0.1))
    events = events.append_column("shop", pa.array(shop))
    # Exact duplicates, of other prices.
    again = events.slice(0, 300).set_column(4, "price", pa.array(np.arange(300) / 4))
    small_log.write_log(folder, raw | {"events": pa.concat_tables([events, again])})


def prepared_with(folder, **rules):
    write_log(folder)
    config = small_log.settings(folder, **rules)
    prepare(config)
    return config


@pytest.mark.parametrize("ties", ["exclude", "include"])
@pytest.mark.parametrize("deduplicate", [None, "exact", "consecutive", "item"])
@pytest.mark.parametrize("max_age", [None, 90 * MINUTE])
def test_what_prepare_writes_passes_under_every_rule(tmp_path, ties, deduplicate, max_age):
    rules = {**FIELDS, "ties": ties, "deduplicate": deduplicate, "max_age": max_age}
    config = prepared_with(tmp_path, **rules)
    report = audit(config)
    assert report.violations == []
    assert report.events_checked > 1000
    assert (report.history_entries_checked == 0) == (max_age is not None)


LATE = "an event at or after the impression"
REPEATED = "an entry that deduplicate rules out"
OLD = "an entry older than max_age, or of unknown age"
NOT_LAST = "not the last entries before the impression"
INCOMPLETE = "not as many entries as the raw log has before it"
FOREIGN = "an entry that the user's raw log has not"


@pytest.mark.parametrize(
    ("built", "audited", "expected"),
    [
        ({"ties": "include"}, {}, {LATE, NOT_LAST, INCOMPLETE}),
        ({}, {"ties": "include"}, {NOT_LAST, INCOMPLETE}),
        ({}, {"max_age": 90 * MINUTE}, {OLD, INCOMPLETE}),
        ({"max_age": 90 * MINUTE}, {}, {INCOMPLETE}),
        ({"max_age": 91 * MINUTE}, {"max_age": 90 * MINUTE}, {OLD, INCOMPLETE}),
        ({}, {"deduplicate": "exact"}, {REPEATED, NOT_LAST, INCOMPLETE, FOREIGN}),
        ({"deduplicate": "exact"}, {}, {NOT_LAST, INCOMPLETE}),
        ({}, {"deduplicate": "consecutive"}, {REPEATED, NOT_LAST, INCOMPLETE}),
        ({"deduplicate": "consecutive"}, {}, {NOT_LAST, INCOMPLETE}),
        ({"deduplicate": "consecutive"}, {"deduplicate": "item"}, {REPEATED, INCOMPLETE}),
        ({"deduplicate": "item"}, {"deduplicate": "consecutive"}, {NOT_LAST, INCOMPLETE}),
        ({"deduplicate": "item"}, {}, {NOT_LAST, INCOMPLETE}),
        ({"session_gap": 7 * MINUTE}, {"session_gap": 7 * MINUTE - 1}, {"a wrong session"}),
        ({"session_gap": 7 * MINUTE}, {"session_gap": 8 * MINUTE}, {"a wrong session"}),
    ],
    ids=str,
)
def test_rows_built_by_other_rules_are_found(tmp_path, built, audited, expected):
    prepared_with(tmp_path, **built)
    found = {
        violation.what for violation in audit(small_log.settings(tmp_path, **audited)).violations
    }
    assert found == expected


def rewrite(config, split, change):
    """Applies `change` to the split's rows as Python dicts and writes them back."""
    path = config.prepared_folder / f"{split}.parquet" / "part-00000.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path, row_group_size=50)


def raw_events(config, row, kind="click"):
    """The user's events, (time, item, price), oldest to newest."""
    events = pq.read_table(config.log_folder / "events.parquet").to_pylist()
    return sorted(
        (
            (e["timestamp"], e["item"], e["price"])
            for e in events
            if (e["user"], e["type"]) == (row["user"], kind)
        ),
        key=lambda event: event[0],
    )


def plant(config, change, split="valid"):
    """Spoils the first row that `change` takes; gives what the audit says of that row."""
    where = []

    def spoil(rows):
        where.append(next(index for index, row in enumerate(rows) if change(row)))

    rewrite(config, split, spoil)
    report = audit(config)
    assert {(v.split, v.row, v.type) for v in report.violations} == {(split, where[0], "click")}
    return {violation.what for violation in report.violations}


def newest_with_value(row, name):
    times, values = row["click__timestamp"], row[f"click__{name}"]
    return next(
        (k for k in reversed(range(len(times))) if times[k] and values[k] is not None), None
    )


@pytest.mark.parametrize(
    ("name", "shift", "expected"),
    [
        ("age", 1, {"a wrong age"}),
        ("age", None, {"a wrong age"}),
        ("session", 1, {"a wrong session"}),
        ("session", None, {"a wrong session"}),
        ("price", 0.125, {FOREIGN}),
        ("price", None, {FOREIGN}),
    ],
)
def test_a_wrong_value_beside_an_event(tmp_path, name, shift, expected):
    config = prepared_with(tmp_path, **FIELDS)

    def change(row):
        place = newest_with_value(row, name)
        if place is None:
            return False
        values = row[f"click__{name}"]
        values[place] = None if shift is None else values[place] + shift
        return True

    assert plant(config, change) == expected


@pytest.mark.parametrize("name", ["age", "session", "price"])
def test_a_value_beside_a_history_entry(tmp_path, name):
    config = prepared_with(tmp_path, **FIELDS)

    def change(row):
        if None not in row["click__timestamp"]:
            return False
        row[f"click__{name}"][0] = 0
        return True

    expected = {"price": {NOT_LAST, FOREIGN}}.get(name, {f"a wrong {name}"})
    assert plant(config, change, "train") == expected


def before_1970(folder, **rules):
    """Prepares a log whose times are all negative: the 0 under a null would be the future."""
    write_log(folder)
    shift = small_log.START + 601 * MINUTE
    for name in ("events", "impressions"):
        path = folder / "log" / f"{name}.parquet"
        table = pq.read_table(path)
        times = pa.array(table["timestamp"].to_numpy() - shift)
        index = table.schema.get_field_index("timestamp")
        pq.write_table(table.set_column(index, "timestamp", times), path)
    split = {"valid_from": -241 * MINUTE, "test_from": -121 * MINUTE}
    config = small_log.settings(folder, **rules, split=split)
    prepare(config)
    return config


@pytest.mark.parametrize("deduplicate", ["exact", "consecutive", "item"])
def test_histories_lie_before_negative_times(tmp_path, deduplicate):
    report = audit(before_1970(tmp_path, deduplicate=deduplicate))
    assert report.violations == []
    assert report.history_entries_checked > 50


def test_a_history_entry_has_no_age_to_be_within_max_age(tmp_path):
    config = before_1970(tmp_path, max_age=90 * MINUTE)

    def change(row):
        if not 0 < len(row["click__item"]) < 6:
            return False
        for name in ("item", "brand", "author", "timestamp"):
            row[f"click__{name}"].insert(
                0, None if name == "timestamp" else row[f"click__{name}"][0]
            )
        return True

    assert plant(config, change) == {OLD, INCOMPLETE, FOREIGN}


def test_the_price_of_a_later_event_of_the_same_item(tmp_path):
    """Only the value leaks: item and time are those of the true event."""
    config = prepared_with(tmp_path, **FIELDS)

    def change(row):
        place = newest_with_value(row, "price")
        if place is None:
            return False
        item, price = row["click__item"][place], row["click__price"][place]
        later = [
            e[2]
            for e in raw_events(config, row)
            if e[0] > row["timestamp"] and e[1] == item and e[2] not in (price, None)
        ]
        if later:
            row["click__price"][place] = later[0]
        return bool(later)

    assert plant(config, change) == {FOREIGN}


def test_an_event_after_the_impression_where_ties_are_taken_in(tmp_path):
    config = prepared_with(tmp_path, ties="include")

    def change(row):
        if not row["click__timestamp"]:
            return False
        row["click__timestamp"][-1] = row["timestamp"] + 1
        return True

    assert plant(config, change) == {"an event after the impression", NOT_LAST, FOREIGN}


def test_an_older_entry_of_an_item_instead_of_its_latest(tmp_path):
    """Each item once, all entries true, in order: but one was superseded before the impression."""
    config = prepared_with(tmp_path, deduplicate="item")

    def change(row):
        times, items = row["click__timestamp"], row["click__item"]
        if len(times) < 3 or None in times:
            return False
        older = [
            e[0] for e in raw_events(config, row) if e[1] == items[1] and times[0] < e[0] < times[1]
        ]
        if older:
            times[1] = older[-1]
        return bool(older)

    assert plant(config, change, "train") == {NOT_LAST}


def test_a_later_event_that_supersedes_nothing_yet(tmp_path):
    """`known at the impression`: an entry must not vanish because the item comes again later."""
    config = prepared_with(tmp_path, deduplicate="item", max_age=90 * MINUTE)
    columns = ["item", "brand", "author", "timestamp"]

    def change(row):
        items = row["click__item"]
        again = {e[1] for e in raw_events(config, row) if e[0] >= row["timestamp"]}
        place = next((k for k, item in enumerate(items) if item in again), None)
        if place is None:
            return False
        for name in columns:
            del row[f"click__{name}"][place]
        return True

    assert plant(config, change) == {INCOMPLETE}


def test_a_sample_of_the_users(tmp_path, monkeypatch):
    config = prepared_with(tmp_path)
    table = pq.read_table(config.prepared_folder / "test.parquet")
    sampled = user_fraction(table["user"].to_numpy()) < 0.4
    whole, part = audit(config), audit(config, sample=0.4)
    assert (whole.sample, part.sample) == (1, 0.4)
    assert part.passed
    assert 0 < part.rows < whole.rows
    assert 0 < part.events_checked < whole.events_checked

    def change(rows):
        for row in rows:
            row["cart__item"], row["cart__timestamp"] = [], []
            row["cart__brand"], row["cart__author"] = [], []

    rewrite(config, "test", change)
    everywhere = {v.row for v in audit(config, sample=1.0).violations}
    assert everywhere - set(np.flatnonzero(sampled))
    found = {v.row for v in audit(config, sample=0.4).violations}
    assert found == everywhere & set(np.flatnonzero(sampled))

    monkeypatch.setattr(audit_module, "EVENTS_AUDITED", 920)
    default = audit(config)
    assert default.sample == 0.4  # of 2300 raw events
    assert {v.row for v in default.violations} == found
    assert " 40 % of the users checked" in str(default)


def test_a_sample_without_users_finds_nothing(tmp_path):
    report = audit(prepared_with(tmp_path, **FIELDS), sample=1e-9)
    assert (report.rows, report.events_checked, report.passed) == (0, 0, True)


@pytest.mark.parametrize("sample", [0, -0.1, 1.1])
def test_a_sample_out_of_range_is_refused(tmp_path, sample):
    config = prepared_with(tmp_path)
    with pytest.raises(ConfigError, match="sample: expected above 0 and at most 1"):
        audit(config, sample=sample)


def test_parts_of_a_split_are_numbered_on(tmp_path):
    """Rows of a second file count on from the first's."""
    config = prepared_with(tmp_path)
    folder = config.prepared_folder / "valid.parquet"
    table = pq.read_table(folder / "part-00000.parquet")
    half = len(table) // 2
    pq.write_table(table.slice(0, half), folder / "part-00000.parquet", row_group_size=20)
    rows = table.slice(half).to_pylist()
    rows[3]["timestamp"] += 1
    moved = pa.Table.from_pylist(rows, schema=table.schema)
    pq.write_table(moved, folder / "part-00001.parquet", row_group_size=20)
    found = audit(config).violations
    assert {v.row for v in found if v.what.startswith("an impression")} == {half + 3}


def test_event_fields_of_another_type_are_refused(tmp_path):
    config = prepared_with(tmp_path, **FIELDS)
    path = config.prepared_folder / "test.parquet" / "part-00000.parquet"
    table = pq.read_table(path)
    index = table.schema.get_field_index("click__price")
    table = table.set_column(
        index, "click__price", table["click__price"].cast(pa.list_(pa.float32()))
    )
    pq.write_table(table, path)
    with pytest.raises(DataError, match=r"`click__price`: expected lists of double.*raw events"):
        audit(config)
