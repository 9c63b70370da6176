"""`statistics.json`: what `prepare` says of the training rows, and of nothing later."""

import json
import math
import os
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_log
from small_log import MINUTE, START

from pipelines.audit import audit
from pipelines.prepare import prepare

VALID_FROM = START + 360 * MINUTE


def prepared_statistics(folder, raw, **changes):
    small_log.write_log(folder, raw)
    config = small_log.settings(folder, **changes)
    prepare(config)
    text = (folder / "prepared" / "statistics.json").read_text()
    return json.loads(text), config


def mutual_information(pairs):
    """In nats, of a list of pairs of values."""
    rows = len(pairs)
    first, second = (Counter(column) for column in zip(*pairs, strict=True))
    return sum(
        count / rows * math.log(count * rows / (first[u] * second[v]))
        for (u, v), count in Counter(pairs).items()
    )


def training_items(raw, kind):
    """The items of a type's events before training ends, and of its histories."""
    items = [
        event["item"]
        for event in raw["events"].to_pylist()
        if event["type"] == kind and event["timestamp"] < VALID_FROM
    ]
    for history in raw["histories"].to_pylist():
        items += (history["items"] or []) if history["type"] == kind else []
    return items


@pytest.mark.parametrize("kind", small_log.TYPES)
def test_mutual_information_is_of_the_type_s_events_before_training_ends(tmp_path, kind):
    raw = small_log.tables()
    statistics, _ = prepared_statistics(tmp_path, raw)
    assert list(statistics) == small_log.TYPES
    got = statistics[kind]["mutual_information"]
    fields = ["item", "brand", "author"]
    assert list(got) == fields
    of_item = {row["item"]: row for row in raw["items"].to_pylist()}
    rows = [
        {"item": item, **{key: of_item[item][key] for key in ("brand", "author")}}
        for item in training_items(raw, kind)
    ]
    assert len(rows) > 3
    for field in fields:
        assert list(got[field]) == fields
        for other in fields:
            expected = mutual_information([(row[field], row[other]) for row in rows])
            assert got[field][other] == pytest.approx(expected, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("kind", small_log.TYPES)
def test_tau_plus_is_over_training_rows_with_a_sequence(tmp_path, kind):
    raw = small_log.tables(num_users=12)
    # Another history that ends like that of user 1.
    raw["histories"] = raw["histories"].set_column(
        2, "items", pa.array([[5, 6, 7], [4, 7], [9, 9, 8], [1]])
    )
    statistics, _ = prepared_statistics(tmp_path, raw, max_length=1)
    table = pq.read_table(tmp_path / "prepared" / "train.parquet")
    rows = [
        (row["user"], row[f"{kind}__item"]) for row in table.to_pylist() if row[f"{kind}__item"]
    ]
    assert 0 < len(rows) < len(table)
    pairs = [(a, b) for place, a in enumerate(rows) for b in rows[:place]]
    others = [(a, b) for a, b in pairs if a[0] != b[0]]
    expected = {
        "same_user_or_sequence": sum(a[0] == b[0] or a[1] == b[1] for a, b in pairs) / len(pairs),
        "same_sequence_of_other_user": sum(a[1] == b[1] for a, b in others) / len(others),
    }
    assert statistics[kind]["tau_plus"] == expected
    assert 0 < expected["same_sequence_of_other_user"] <= 1
    assert 0 < expected["same_user_or_sequence"] <= 1


def test_nothing_after_training_changes_the_statistics(tmp_path):
    raw = small_log.tables()
    first, _ = prepared_statistics(tmp_path / "first", raw)
    times = raw["events"]["timestamp"].to_numpy()
    later = times >= VALID_FROM
    assert later.any()
    items = raw["events"]["item"].to_numpy().copy()
    items[later] = 1
    raw["events"] = raw["events"].set_column(1, "item", pa.array(items))
    second, _ = prepared_statistics(tmp_path / "second", raw)
    assert second == first
    # ... and the last moment of training does.
    last = times == times[~later].max()
    items[last] = 1
    raw["events"] = raw["events"].set_column(1, "item", pa.array(items))
    third, _ = prepared_statistics(tmp_path / "third", raw)
    assert third["click"]["mutual_information"] != first["click"]["mutual_information"]


def test_impressions_after_training_do_not_count(tmp_path):
    raw = small_log.tables()
    first, _ = prepared_statistics(tmp_path / "first", raw)
    shown = raw["impressions"]
    kept = [
        row
        for place, row in enumerate(shown.to_pylist())
        if row["timestamp"] < VALID_FROM or place % 2
    ]
    assert len(kept) < len(shown)
    raw["impressions"] = pa.Table.from_pylist(kept, shown.schema)
    second, _ = prepared_statistics(tmp_path / "second", raw)
    assert second == first


def test_items_and_types_that_training_does_not_know(tmp_path):
    raw = small_log.tables()
    # No click before training ends, none in the histories; half of the items have no fields.
    events = [
        row
        for row in raw["events"].to_pylist()
        if row["type"] != "click" or row["timestamp"] >= VALID_FROM
    ]
    raw["events"] = pa.Table.from_pylist(events)
    histories = [row for row in raw["histories"].to_pylist() if row["type"] != "click"]
    raw["histories"] = pa.Table.from_pylist(histories, raw["histories"].schema)
    raw["items"] = raw["items"].slice(0, 20)
    statistics, _ = prepared_statistics(tmp_path, raw)
    fields = ["item", "brand", "author"]
    nothing = {field: dict.fromkeys(fields, 0.0) for field in fields}
    assert statistics["click"] == {
        "mutual_information": nothing,
        "tau_plus": {"same_user_or_sequence": 0.0, "same_sequence_of_other_user": 0.0},
    }
    of_item = {row["item"]: row["brand"] for row in raw["items"].to_pylist()}
    pairs = [(item, of_item.get(item)) for item in training_items(raw, "cart")]
    got = statistics["cart"]["mutual_information"]["item"]["brand"]
    assert got == pytest.approx(mutual_information(pairs), rel=1e-10)


def test_without_side_tables_only_the_item_is_known(tmp_path):
    raw = {name: small_log.tables()[name] for name in ("events", "impressions")}
    statistics, _ = prepared_statistics(
        tmp_path, raw, item_fields=[], user_fields=[], sequence_types=["click"]
    )
    items = [
        row["item"]
        for row in raw["events"].to_pylist()
        if row["type"] == "click" and row["timestamp"] < VALID_FROM
    ]
    entropy = mutual_information([(item, item) for item in items])
    got = statistics["click"]["mutual_information"]
    assert got == {"item": {"item": pytest.approx(entropy, rel=1e-10)}}


def test_the_folder_holds_five_files_and_still_passes_the_audit(tmp_path):
    _, config = prepared_statistics(tmp_path, small_log.tables())
    assert sorted(os.listdir(tmp_path / "prepared")) == [
        "prepare.json",
        "statistics.json",
        "test.parquet",
        "train.parquet",
        "valid.parquet",
    ]
    assert audit(config).num_violations == 0


def test_statistics_do_not_depend_on_row_groups(tmp_path, monkeypatch):
    raw = small_log.tables()
    first, _ = prepared_statistics(tmp_path / "first", raw)
    monkeypatch.setattr("pipelines.preparation.bucket.ROW_GROUP_ROWS", 50)
    second, _ = prepared_statistics(tmp_path / "second", raw)
    (part,) = (tmp_path / "second" / "prepared" / "train.parquet").iterdir()
    assert pq.ParquetFile(part).num_row_groups > 1
    assert second == first


def test_a_failure_leaves_no_prepared_folder(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("pipelines.statistics.rates_of_pairs", fail)
    with pytest.raises(OSError, match="disk full"):
        prepared_statistics(tmp_path, small_log.tables())
    assert sorted(os.listdir(tmp_path)) == [".prepare", "log"]
