"""Each shipped run file on a small log in the published layout: imported, prepared, audited."""

import json
from pathlib import Path

import pytest

from pipelines.audit import audit
from pipelines.config import load_run_config
from pipelines.prepare import prepare
from pipelines.sources.movielens import import_movielens
from pipelines.sources.otto import import_otto
from pipelines.sources.retailrocket import import_retailrocket

HOUR = 3_600_000
USERS = range(1, 4)


def conversions(start, step_hours, num_steps, names):
    """A look at every step, some carted an hour later, some of these bought another hour later."""
    for step in range(num_steps):
        for hours, name in enumerate(names):
            if step % (hours + 1) == 0:
                yield start + (step * step_hours + hours) * HOUR, step, name


def write_otto(home):
    start = 1_659_909_600_000  # 2022-08-08T00:00+02:00; every 5 hours to the 28th
    sessions = [
        {
            "session": user,
            "events": [
                {"aid": step * user % 4, "ts": time + user, "type": kind}
                for time, step, kind in conversions(start, 5, 96, ["clicks", "carts", "orders"])
            ],
        }
        for user in USERS
    ]
    (home / "train.jsonl").write_text("\n".join(json.dumps(session) for session in sessions))


def write_retailrocket(home):
    start = 1_430_622_000_000  # 2015-05-03T03:00Z; every two days to the 16th of September
    snapshot = start + 7 * 24 * HOUR
    names = ["view", "addtocart", "transaction"]
    events = [
        f"{time + user},{user},{kind},{step * user % 4},{step if kind == 'transaction' else ''}"
        for user in USERS
        for time, step, kind in conversions(start, 48, 69, names)
    ]
    properties = [f"{snapshot},{item},categoryid,{item % 2}" for item in range(3)]
    for name, header, lines in (
        ("events", "timestamp,visitorid,event,itemid,transactionid", events),
        ("item_properties_part1", "timestamp,itemid,property,value", properties),
        ("item_properties_part2", "timestamp,itemid,property,value", [f"{snapshot},0,790,n1"]),
        ("category_tree", "categoryid,parentid", ["0,", "1,0"]),
    ):
        (home / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")


def write_movielens(home):
    start = 1_480_000_000  # 2016-11-24, then every 11 days to November 2019
    ratings = [
        # Two films in the same second.
        f"{user},{film},{step * user % 10 / 2 + 0.5},{start + 11 * 24 * 3600 * step}"
        for user in USERS
        for step in range(99)
        for film in (step % 3, 3)
    ]
    movies = [f"{film},Film ({1990 + film}),Drama|War" for film in range(4)]
    for name, header, lines in (
        ("ratings", "userId,movieId,rating,timestamp", ratings),
        ("movies", "movieId,title,genres", movies),
    ):
        (home / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")


@pytest.mark.parametrize(
    ("name", "write", "import_source"),
    [
        ("otto", write_otto, import_otto),
        ("retailrocket", write_retailrocket, import_retailrocket),
        ("movielens", write_movielens, import_movielens),
    ],
)
def test_the_run_file_prepares_what_was_imported(tmp_path, name, write, import_source):
    home = tmp_path / "raw"
    home.mkdir()
    write(home)
    config = load_run_config(Path(f"pipelines/configs/{name}.yaml"), tmp_path)
    import_source(home, config.log_folder)
    prepare(config)
    report = audit(config)
    assert report.passed, str(report)
    assert report.rows > 75
    assert report.events_checked > 20 * report.rows
    # Both outcomes are there in every split, or nothing could be learnt or judged.
    splits = json.loads((config.prepared_folder / "prepare.json").read_text())["splits"]
    rates = [rate for split in splits.values() for rate in split["label_rates"].values()]
    assert len(rates) == 3 * len(config.prepare.labels)
    assert all(0 < rate < 1 for rate in rates)
