import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipelines.sources.retailrocket import import_retailrocket
from seqdenoise.errors import DataError

HOUR = 3_600_000
# The first weekly snapshot of the properties, 2015-05-10T03:00Z; the log begins a week earlier.
SNAPSHOT = 1_431_226_800_000
WEEK = 7 * 24 * HOUR
HEADER = "timestamp,visitorid,event,itemid,transactionid"


def line(hours, visitor, event, item, transaction="", plus_ms=0):
    return f"{SNAPSHOT + hours * HOUR + plus_ms},{visitor},{event},{item},{transaction}"


EVENTS = [
    line(3, 1, "view", 10),  # in the cart later, bought a day and a millisecond later
    line(27, 1, "transaction", 10, 5, plus_ms=1),
    line(4, 1, "addtocart", 10),
    line(-2, 1, "view", 10),  # before the item fields: an event only
    line(4, 1, "view", 10),  # at the cart's own moment; bought
    line(4, 2, "view", 10),  # another visitor's
    line(4, 2, "view", 10),  # exact duplicate
    line(27, 1, "transaction", 10, 6, plus_ms=1),  # another transaction: no duplicate
    line(27, 1, "transaction", 10, 5, plus_ms=1),  # but this one is
    line(5, 2, "view", 11),
    line(50, 2, "view", 10),  # the log ends here: its horizon does too
]
PART_1 = [
    f"{SNAPSHOT},10,categoryid,100",
    f"{SNAPSHOT},10,790,n15360.000",
    f"{SNAPSHOT + WEEK},11,categoryid,101",  # only known a week later
    f"{SNAPSHOT},12,categoryid,102",
]
PART_2 = [
    f"{SNAPSHOT + WEEK},10,categoryid,101",  # moved later
    f"{SNAPSHOT},13,available,",
    f"{SNAPSHOT},13,categoryid,999",  # not in the tree
]
TREE = ["100,1", "101,1", "102,", "1,0", "0,"]

TABLE_EVENTS = [
    (1, 10, "view", SNAPSHOT - 2 * HOUR),
    (1, 10, "view", SNAPSHOT + 3 * HOUR),
    (1, 10, "cart", SNAPSHOT + 4 * HOUR),
    (1, 10, "view", SNAPSHOT + 4 * HOUR),
    (2, 10, "view", SNAPSHOT + 4 * HOUR),
    (2, 11, "view", SNAPSHOT + 5 * HOUR),
    (1, 10, "purchase", SNAPSHOT + 27 * HOUR + 1),
    (1, 10, "purchase", SNAPSHOT + 27 * HOUR + 1),
    (2, 10, "view", SNAPSHOT + 50 * HOUR),
]
# user, item, timestamp, is_cart, is_purchase, hour of UTC
IMPRESSIONS = [
    (1, 10, SNAPSHOT + 3 * HOUR, 1, 0, 6),
    (1, 10, SNAPSHOT + 4 * HOUR, 0, 1, 7),
    (2, 10, SNAPSHOT + 4 * HOUR, 0, 0, 7),
    (2, 11, SNAPSHOT + 5 * HOUR, 0, 0, 8),
]
# item, category, parent_category, root_category
ITEMS = [(10, 100, 1, 0), (12, 102, None, 102), (13, 999, None, None)]


def write(home, **replaced):
    home.mkdir(parents=True, exist_ok=True)
    files = {
        "events": (HEADER, EVENTS),
        "item_properties_part1": ("timestamp,itemid,property,value", PART_1),
        "item_properties_part2": ("timestamp,itemid,property,value", PART_2),
        "category_tree": ("categoryid,parentid", TREE),
    }
    for name, (header, lines) in files.items():
        lines = replaced.get(name, lines)
        (home / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    return home


def rows(path):
    return [tuple(row.values()) for row in pq.read_table(path).to_pylist()]


def test_the_tables(tmp_path):
    counts = import_retailrocket(write(tmp_path / "raw"), tmp_path / "log")
    assert {path.stem for path in (tmp_path / "log").iterdir()} == {
        "events",
        "impressions",
        "items",
    }
    assert rows(tmp_path / "log" / "events.parquet") == TABLE_EVENTS
    assert rows(tmp_path / "log" / "impressions.parquet") == IMPRESSIONS
    assert rows(tmp_path / "log" / "items.parquet") == ITEMS
    assert counts == {
        "events": 9,
        "impressions": 4,
        "items": 3,
        "duplicates": 2,
        "views_before_fields": 1,
        "impressions_cut": 1,
    }


def test_item_fields_of_another_moment(tmp_path):
    # The lines' order within and over the files must not matter.
    home = write(tmp_path / "raw", item_properties_part1=PART_2, item_properties_part2=PART_1)
    at = datetime(2015, 5, 10, 7, tzinfo=timezone.utc)  # four hours after the snapshot
    import_retailrocket(home, tmp_path / "log", fields_at=at)
    assert rows(tmp_path / "log" / "items.parquet") == ITEMS
    assert rows(tmp_path / "log" / "impressions.parquet") == IMPRESSIONS[1:]
    write(home, events=[*EVENTS, line(24 * 8, 2, "view", 11), line(24 * 10, 2, "view", 11)])
    import_retailrocket(home, tmp_path / "log", fields_at=at + timedelta(days=7))
    assert rows(tmp_path / "log" / "items.parquet") == [
        (10, 101, 1, 0),
        (11, 101, 1, 0),
        *ITEMS[1:],
    ]
    found = rows(tmp_path / "log" / "impressions.parquet")
    assert found == [(2, 11, SNAPSHOT + 24 * 8 * HOUR, 0, 0, 3)]
    with pytest.raises(ValueError, match="with a time zone"):
        import_retailrocket(home, tmp_path / "log", fields_at=datetime(2015, 5, 17))


DEFECTS = {
    "strange event": (
        {"events": [*EVENTS, line(1, 1, "buy", 1)]},
        r"events.csv, line 13, column `event`: expected one of \['view', .* Received: 'buy'",
    ),
    "string visitor": (
        {"events": [line(1, "anna", "view", 1)]},
        "events.csv, line 2, column `visitorid`: expected an integer. Received: 'anna'",
    ),
    "no item": (
        {"events": [*EVENTS[:3], line(1, 1, "view", "")]},
        "events.csv, line 5, column `itemid`: expected an integer. Received: no value",
    ),
    "cut off": ({"events": [*EVENTS, "143,1"]}, "events.csv: .*Row #13: Expected 5 columns, got 2"),
    "no events": ({"events": []}, "events.csv: expected at least one row"),
    "category": (
        {"item_properties_part2": [*PART_2, f"{SNAPSHOT},1,categoryid,n5.000"]},
        "part2.csv, line 5, column `value`: expected a category id. Received: 'n5.000'",
    ),
    "no category": (
        {"item_properties_part1": PART_1[1:2], "item_properties_part2": [f"{SNAPSHOT},1,7,5"]},
        "expected rows of `categoryid`. Received: none",
    ),
    "null category": (
        {"item_properties_part1": [f"{SNAPSHOT},1,categoryid,"]},
        "part1.csv, line 2, column `value`: expected a category id. Received: None",
    ),
    "circle": (
        {"category_tree": ["100,1", "1,100"]},
        r"category_tree.csv: expected a tree. Received: a circle, \[100, 1, 100\]",
    ),
    "category twice": (
        {"category_tree": [*TREE, "100,2"]},
        "category_tree.csv, line 7, column `categoryid`: expected each category once",
    ),
    "too short": (
        {"events": [line(0, 1, "view", 1), line(23, 1, "view", 1)]},
        "events.csv: expected impressions at least 86400000 ms before the end",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_one_clear_error_and_nothing_is_written(tmp_path, defect):
    replaced, message = DEFECTS[defect]
    home = write(tmp_path / "raw", **replaced)
    with pytest.raises(DataError, match=message) as caught:
        import_retailrocket(home, tmp_path / "out" / "log")
    assert str(home) in str(caught.value)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    "name", ["events", "item_properties_part1", "item_properties_part2", "category_tree"]
)
def test_a_missing_file(tmp_path, name):
    home = write(tmp_path / "raw")
    (home / f"{name}.csv").unlink()
    with pytest.raises(DataError, match=f"{name}.csv: expected a readable CSV file"):
        import_retailrocket(home, tmp_path / "log")
    (home / f"{name}.csv").write_text("timestamp,itemid\n1,2\n")
    with pytest.raises(DataError, match=f"{name}.csv: expected one column `"):
        import_retailrocket(home, tmp_path / "log")


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "pipelines", "import", "retailrocket", *map(str, arguments)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        env={**os.environ, "SEQDENOISE_DATA_ONLY": "1"},
    )


def test_the_command(tmp_path):
    home = write(tmp_path / "raw")
    # Without a zone the moment is UTC's, wherever the machine is.
    at = ["--fields-at", "2015-05-10T07:00:00", "--horizon-hours", 45]
    assert run(home, tmp_path / "log", *at).returncode == 0
    assert rows(tmp_path / "log" / "impressions.parquet") == IMPRESSIONS[1:]
    (home / "events.csv").unlink()
    result = run(home, tmp_path / "log")
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {home / 'events.csv'}: expected a readable CSV file")
    assert "Traceback" not in result.stderr
