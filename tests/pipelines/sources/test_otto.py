import json
import os
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipelines.sources import otto
from pipelines.sources.otto import import_otto
from seqdenoise.errors import DataError

HOUR = 3_600_000
# 2022-08-15T00:00+02:00, which is 22:00 the day before in UTC.
MONDAY = 1_660_514_400_000


def event(aid, hours, kind, plus_ms=0):
    return {"aid": aid, "ts": MONDAY + hours * HOUR + plus_ms, "type": kind}


SESSIONS = [
    {
        "session": 3,
        "events": [
            event(7, 0, "clicks"),  # carted after a day exactly, ordered a millisecond too late
            event(9, 1, "clicks"),  # never carted, though another session does
            event(7, 2, "clicks"),  # carted and ordered
            event(7, 24, "carts"),
            event(7, 24, "orders", 1),
            event(7, 24, "clicks", 1),  # at the order's own moment: not ordered
            event(7, 24, "clicks", 1),  # exact duplicate
        ],
    },
    {
        "session": 4,
        "events": [
            event(9, 30, "orders"),  # times out of order
            event(9, 5, "clicks"),  # ordered 25 hours later
            event(9, 6, "carts"),
            event(9, 49, "clicks"),  # the horizon ends 73 hours after Monday, with the log
            event(9, 50, "clicks"),  # cut
        ],
    },
    {"session": 9, "events": [event(2**40, 73, "clicks")]},
    {"session": 10, "events": []},
]
EVENTS = [
    (3, 7, "click", MONDAY),
    (3, 9, "click", MONDAY + HOUR),
    (3, 7, "click", MONDAY + 2 * HOUR),
    (3, 7, "cart", MONDAY + 24 * HOUR),
    (3, 7, "click", MONDAY + 24 * HOUR + 1),
    (3, 7, "order", MONDAY + 24 * HOUR + 1),
    (4, 9, "click", MONDAY + 5 * HOUR),
    (4, 9, "cart", MONDAY + 6 * HOUR),
    (4, 9, "order", MONDAY + 30 * HOUR),
    (4, 9, "click", MONDAY + 49 * HOUR),
    (4, 9, "click", MONDAY + 50 * HOUR),
    (9, 2**40, "click", MONDAY + 73 * HOUR),
]
# user, item, timestamp, is_cart, is_order, hour in UTC
IMPRESSIONS = [
    (3, 7, MONDAY, 1, 0, 22),
    (3, 9, MONDAY + HOUR, 0, 0, 23),
    (3, 7, MONDAY + 2 * HOUR, 1, 1, 0),
    (3, 7, MONDAY + 24 * HOUR + 1, 0, 0, 22),
    (4, 9, MONDAY + 5 * HOUR, 1, 0, 3),
    (4, 9, MONDAY + 49 * HOUR, 0, 0, 23),
]


def write(path, sessions=SESSIONS):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(session) + "\n" for session in sessions))
    return path


def rows(path):
    return [tuple(row.values()) for row in pq.read_table(path).to_pylist()]


def test_the_tables(tmp_path):
    write(tmp_path / "raw" / "train.jsonl")
    counts = import_otto(tmp_path / "raw", tmp_path / "log")
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == [
        "events.parquet",
        "impressions.parquet",
    ]
    assert rows(tmp_path / "log" / "events.parquet") == EVENTS
    assert rows(tmp_path / "log" / "impressions.parquet") == IMPRESSIONS
    assert counts == {
        "events": 12,
        "impressions": 6,
        "impressions_cut": 2,
        "sessions": 4,
        "duplicates": 1,
    }


def test_the_official_name_and_the_file_itself(tmp_path):
    path = write(tmp_path / "raw" / "otto-recsys-train.jsonl")
    for source in (path, path.parent):
        import_otto(source, tmp_path / "log")
        assert rows(tmp_path / "log" / "impressions.parquet") == IMPRESSIONS


def test_another_horizon(tmp_path):
    path = write(tmp_path / "train.jsonl")
    counts = import_otto(path, tmp_path / "log", horizon=timedelta(hours=22))
    found = {row[:3]: row[3:5] for row in rows(tmp_path / "log" / "impressions.parquet")}
    assert found[3, 7, MONDAY] == (0, 0)
    assert found[3, 7, MONDAY + 2 * HOUR] == (1, 0)  # the order is a millisecond too late now
    assert counts["impressions_cut"] == 1  # the click at 50 hours has its horizon now
    with pytest.raises(ValueError, match="at least 1 ms"):
        import_otto(path, tmp_path / "log", horizon=timedelta(0))


@pytest.mark.parametrize("block_bytes", [1, 100, 700])
def test_blocks_of_any_size_give_the_same_tables(tmp_path, monkeypatch, block_bytes):
    path = write(tmp_path / "train.jsonl")
    path.write_text(path.read_text().rstrip("\n"))  # and no newline at the end
    monkeypatch.setattr(otto, "_BLOCK_BYTES", block_bytes)
    assert import_otto(path, tmp_path / "log")["sessions"] == 4
    assert rows(tmp_path / "log" / "events.parquet") == EVENTS
    assert rows(tmp_path / "log" / "impressions.parquet") == IMPRESSIONS


def click(**changes):
    return {"session": 5, "events": [{"aid": 1, "ts": 2, "type": "clicks"} | changes]}


DEFECTS = {
    "no json": ("garbage", "line 13: expected JSON like .* Received: 'garbage'"),
    "cut off": ('{"session": 5, "ev', "line 13: expected JSON like"),
    "empty line": ("", "line 13: expected JSON like .* Received: ''"),
    "not utf-8": ("\udcff", "line 13: expected JSON like"),
    "a list": ("[1]", r"line 13: expected the keys of .* Received: \[1\]"),
    "no events": ({"session": 5}, "line 13: expected the keys of"),
    "more": ({"session": 5, "events": [], "x": 1}, "line 13: expected the keys of"),
    "string session": ({"session": "5", "events": []}, "`session`: expected an integer.*'5'"),
    "null events": ({"session": 5, "events": None}, "`events`: expected a list. Received: None"),
    "null event": ({"session": 5, "events": [None]}, "event 0: expected `aid`, `ts` and `type`"),
    "no type": ({"session": 5, "events": [{"aid": 1, "ts": 2}]}, "event 0: expected `aid`"),
    "string aid": (click(aid="1"), "line 13: event 0, `aid`: expected an integer. Received: '1'"),
    "fraction": (click(aid=1.5), "event 0, `aid`: expected an integer. Received: 1.5"),
    "beyond int64": (click(aid=2**63), "event 0, `aid`: expected an integer"),
    "null time": (click(ts=None), "event 0, `ts`: expected an integer. Received: None"),
    "early time": (click(ts=-1), "event 0, `ts`: expected milliseconds since 1970. Received: -1"),
    "unknown type": (click(type="buys"), r"`type`: expected one of \['clicks'.* Received: 'buys'"),
    "session again": ({"session": 3, "events": []}, "line 13: .* once. Received: session 3 again"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_one_clear_error_and_nothing_is_written(tmp_path, monkeypatch, defect):
    # Blocks of several lines, then of about one: the line number must be that of the file.
    monkeypatch.setattr(otto, "_BLOCK_BYTES", 300)
    line, message = DEFECTS[defect]
    text = line if isinstance(line, str) else json.dumps(line)
    short = [json.dumps({"session": 100 + i, "events": []}) for i in range(10)]
    lines = [*short, *map(json.dumps, SESSIONS[:2]), text, *map(json.dumps, SESSIONS[2:])]
    path = tmp_path / "train.jsonl"
    path.write_bytes("\n".join(lines).encode(errors="surrogateescape") + b"\n")
    with pytest.raises(DataError, match=message) as caught:
        import_otto(path, tmp_path / "out" / "log")
    assert str(path) in str(caught.value)
    assert not list((tmp_path / "out").iterdir())


def test_no_session_and_no_judged_click(tmp_path):
    path = write(tmp_path / "train.jsonl", [])
    with pytest.raises(DataError, match=r"at least one session. Received: an empty file"):
        import_otto(path, tmp_path / "log")
    write(path, SESSIONS[2:])
    with pytest.raises(DataError, match=r"train.jsonl: expected impressions at least 86400000 ms"):
        import_otto(path, tmp_path / "log")
    with pytest.raises(DataError, match="no such file or folder"):
        import_otto(tmp_path / "nowhere", tmp_path / "log")
    path.unlink()
    with pytest.raises(DataError, match=r"train.jsonl or otto-recsys.* Received: neither of them"):
        import_otto(tmp_path, tmp_path / "log")


DATA = os.environ.get("SEQDENOISE_DATA")


@pytest.mark.real_data
@pytest.mark.skipif(
    not DATA or not (Path(DATA) / "otto_tiny").is_dir(),
    reason="SEQDENOISE_DATA names no folder that contains otto_tiny",
)
def test_real_data(tmp_path):
    source = Path(DATA) / "otto_tiny" / "train.jsonl"
    counts = import_otto(source.parent, tmp_path)
    sessions = [json.loads(line) for line in source.read_text().splitlines()]
    raw = [(s["session"], e["aid"], e["type"], e["ts"]) for s in sessions for e in s["events"]]
    names = {"clicks": "click", "carts": "cart", "orders": "order"}
    expected = Counter((user, item, names[kind], time) for user, item, kind, time in raw)
    assert Counter(rows(tmp_path / "events.parquet")) == expected
    assert counts == {
        "events": 862,
        "impressions": 745,
        "impressions_cut": 55,
        "sessions": 20,
        "duplicates": 0,
    }
    last = max(row[3] for row in raw)
    judged = set()
    for user, item, kind, time in raw:
        if kind == "clicks" and time + 24 * HOUR <= last:
            later = {
                k for u, i, k, t in raw if (u, i) == (user, item) and time < t <= time + 24 * HOUR
            }
            labels = "carts" in later, "orders" in later
            judged.add((user, item, time, *map(int, labels), time // HOUR % 24))
    found = rows(tmp_path / "impressions.parquet")
    assert set(found) == judged
    assert len(found) == len(judged)
