import datetime
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kuairand_layouts import (
    APRIL_20,
    APRIL_25,
    APRIL_26,
    HISTORY_FILE,
    HOUR,
    LOG,
    USER_HEADER,
    write_official,
    write_subset,
)

from pipelines.sources.kuairand import import_kuairand


@pytest.fixture
def subset(tmp_path):
    home = tmp_path / "subset"
    write_subset(home)
    return home


@pytest.fixture
def official(tmp_path):
    home = tmp_path / "official"
    write_official(home / "data")
    return home


def read(folder):
    return {path.stem: pq.read_table(path) for path in folder.iterdir()}


def rows(table):
    return [tuple(row.values()) for row in table.to_pylist()]


LATE_EVENTS = [
    (3, 5, "exposure", APRIL_25 - HOUR),
    (3, 5, "forward", APRIL_25 - HOUR),
    (0, 7, "exposure", APRIL_25 + 5),
    (0, 7, "exposure", APRIL_25 + 5),
    (0, 6, "exposure", APRIL_26 + 3 * HOUR),
    (0, 6, "long_view", APRIL_26 + 3 * HOUR),
    (0, 6, "like", APRIL_26 + 3 * HOUR),
    (0, 6, "click", APRIL_26 + 3 * HOUR),
]
EARLY_EVENTS = [
    (0, 5, "exposure", APRIL_20 + 7),
    (0, 5, "click", APRIL_20 + 7),
    (0, 5, "comment", APRIL_20 + 7),
    (2, 6, "exposure", APRIL_20 + 9),
    (2, 6, "follow", APRIL_20 + 9),
]
# user, item, timestamp, is_click, long_view, is_like, tab, hour in China, duration_ms
IMPRESSIONS = [
    (3, 5, APRIL_25 - HOUR, 0, 0, 0, 1, 23, 0),
    (0, 7, APRIL_25 + 5, 0, 0, 0, 1, 0, 9000),
    (0, 7, APRIL_25 + 5, 0, 0, 0, 1, 0, 9000),
    (0, 6, APRIL_26 + 3 * HOUR, 1, 1, 1, 4, 3, 9000),
]
ITEMS = [
    (5, 7349781, 9155697141, 39, "NORMAL", "LongImport", 19092, 87433.0),
    (6, 9007199254740993, 9007199254740993, 20, "AD", "Web", 1, None),
    (7, 1, None, None, "NORMAL", "Web", 19093, 1.5),
]


def test_subset_layout(subset, tmp_path):
    counts = import_kuairand(subset, tmp_path / "log")
    tables = read(tmp_path / "log")
    assert set(tables) == {"events", "impressions", "histories", "items", "users"}
    assert rows(tables["events"]) == LATE_EVENTS
    assert rows(tables["impressions"]) == IMPRESSIONS
    assert rows(tables["histories"]) == [
        (0, "exposure", [7, 7, 5]),
        (0, "long_view", [5]),
        (1, "exposure", [6]),
        (1, "like", [6]),
    ]
    assert rows(tables["items"]) == ITEMS
    assert counts == {
        "events": 8,
        "impressions": 4,
        "histories": 4,
        "items": 3,
        "users": 3,
        "duplicates": 1,
        "histories_left_out": 1,
    }


def test_official_layout(official, tmp_path):
    counts = import_kuairand(official, tmp_path / "log")
    tables = read(tmp_path / "log")
    assert set(tables) == {"events", "impressions", "items", "users"}
    assert rows(tables["events"]) == EARLY_EVENTS + LATE_EVENTS
    assert rows(tables["impressions"]) == IMPRESSIONS
    assert rows(tables["items"]) == ITEMS
    assert "history_len" not in tables["users"].column_names
    assert (counts["duplicates"], counts["histories_left_out"]) == (1, 0)


def test_official_files_may_lie_in_the_folder_itself(official, tmp_path):
    import_kuairand(official / "data", tmp_path / "log")
    assert rows(read(tmp_path / "log")["impressions"]) == IMPRESSIONS


def test_impressions_may_begin_on_another_day(official, tmp_path):
    import_kuairand(official, tmp_path / "log", impressions_from=datetime.date(2022, 4, 26))
    tables = read(tmp_path / "log")
    assert rows(tables["impressions"]) == IMPRESSIONS[-1:]
    assert rows(tables["events"]) == EARLY_EVENTS + LATE_EVENTS


def test_column_types(subset, tmp_path):
    import_kuairand(subset, tmp_path / "log")
    tables = read(tmp_path / "log")
    types = {
        name: dict(zip(t.schema.names, map(str, t.schema.types), strict=True))
        for name, t in tables.items()
    }
    assert types["events"] == {
        "user": "int64",
        "item": "int64",
        "type": "string",
        "timestamp": "int64",
    }
    # Exactly these: no outcome of the row itself.
    assert types["impressions"] == {
        "user": "int64",
        "item": "int64",
        "timestamp": "int64",
        "is_click": "int8",
        "long_view": "int8",
        "is_like": "int8",
        "tab": "int64",
        "hour": "int64",
        "duration_ms": "int64",
    }
    assert tables["histories"].schema.field("items").type.value_type == pa.int64()
    assert types["items"] == {
        "item": "int64",
        "author": "int64",
        "music": "int64",
        "tag": "int64",
        "video_type": "string",
        "upload_type": "string",
        "upload_dt": "int64",
        "video_duration": "double",
    }


def test_users(subset, tmp_path):
    import_kuairand(subset, tmp_path / "log")
    users = read(tmp_path / "log")["users"]
    assert users.column_names[0] == "user"
    assert set(users.column_names) == set(USER_HEADER.split(",")) - {"user_id"} | {
        "user",
        "history_len",
    }
    first, second, third = users.to_pylist()
    assert (first["user"], first["user_active_degree"]) == (0, "full_active")
    assert (first["is_live_streamer"], first["is_video_author"]) == (None, 1)
    assert (first["fans_user_num_range"], first["register_days"]) == ("[100,1k)", 799)
    assert (first["onehot_feat3"], first["onehot_feat4"], first["onehot_feat13"]) == (949, 1, 1)
    assert (second["is_live_streamer"], second["is_video_author"]) == (1, None)
    assert (second["onehot_feat4"], second["onehot_feat5"], second["onehot_feat12"]) == (
        None,
        5,
        None,
    )
    # Known; overlaps the log; no history.
    assert [row["history_len"] for row in (first, second, third)] == [70, None, 0]
    strings = {"user_active_degree"} | {n for n in users.column_names if n.endswith("_range")}
    for field in users.schema:
        assert field.type == (pa.string() if field.name in strings else pa.int64()), field.name


DATA = os.environ.get("SEQDENOISE_DATA")


@pytest.mark.real_data
@pytest.mark.skipif(
    not DATA or not (Path(DATA) / "kuairand_pure").is_dir(),
    reason="SEQDENOISE_DATA names no folder that contains kuairand_pure",
)
def test_real_data(tmp_path):
    source = Path(DATA) / "kuairand_pure"
    counts = import_kuairand(source, tmp_path / "log")
    assert pq.read_metadata(source / LOG).num_rows == 228_329
    assert counts["duplicates"] == 5_460
    assert counts["impressions"] == 228_329 - 5_460
    assert (counts["items"], counts["users"], counts["histories_left_out"]) == (7_583, 27_285, 3)
    tables = read(tmp_path / "log")
    kind = {
        row["values"]: row["counts"]
        for row in pc.value_counts(tables["events"]["type"]).to_pylist()
    }
    impressions = tables["impressions"]
    assert kind["exposure"] == impressions.num_rows
    assert kind["click"] == pc.sum(impressions["is_click"]).as_py()
    assert kind["long_view"] == pc.sum(impressions["long_view"]).as_py()
    assert kind["like"] == pc.sum(impressions["is_like"]).as_py()
    assert abs(pc.mean(impressions["is_click"]).as_py() - 0.449) < 0.001
    # No history reaches into the log: its users' first rows come later than the history's end.
    history = pq.read_table(source / HISTORY_FILE).to_pandas().set_index("user_id")["last_time_ms"]
    first = tables["events"].to_pandas().groupby("user")["timestamp"].min()
    kept = tables["histories"]["user"].unique().to_pylist()
    both = first.index.intersection(kept)
    assert (history[both] < first[both]).all()
    assert len(both) > 15_000
