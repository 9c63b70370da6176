"""`prepare` in several parts, buckets and processes gives what it gives in one."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_log

from pipelines.config import ConfigError
from pipelines.job_errors import FolderInUseError, WorkerDiedError
from pipelines.prepare import prepare
from pipelines.work_lock import alone_in
from seqdenoise.errors import DataError

SPLITS = ("train", "valid", "test")
PARTS = {"part_rows": 600, "bucket_rows": 400}  # 4 parts of events, 2 of impressions, 5 buckets
ROOT = Path(__file__).parents[2]


def contents(folder):
    """Every file of the prepared folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / "prepared").rglob("*"))
        if path.is_file()
    }


def sorted_rows(folder, split):
    rows = pq.read_table(folder / "prepared" / f"{split}.parquet").to_pylist()
    return sorted(rows, key=lambda row: (row["timestamp"], row["user"], row["item"]))


def loaded(folder, name):
    return json.loads((folder / "prepared" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    small_log.write_log(folder, small_log.tables())
    prepare(small_log.settings(folder), processes=1, **PARTS)
    return folder


def test_rows_statistics_and_counts_are_those_of_one_bucket(tmp_path, in_parts):
    small_log.write_log(tmp_path, small_log.tables())
    prepare(small_log.settings(tmp_path))
    for split in SPLITS:
        # Ties of time, user and item would leave the order open: the log must not have them.
        rows = sorted_rows(tmp_path, split)
        assert len({(row["timestamp"], row["user"], row["item"]) for row in rows}) == len(rows)
        assert sorted_rows(in_parts, split) == rows
    assert loaded(in_parts, "statistics") == loaded(tmp_path, "statistics")
    one, several = loaded(tmp_path, "prepare"), loaded(in_parts, "prepare")
    assert (one.pop("buckets"), several.pop("buckets")) == (1, 5)
    assert several == one


def test_each_bucket_is_a_sorted_file_of_users_of_its_own(in_parts):
    files = sorted((in_parts / "prepared" / "train.parquet").iterdir())
    assert [path.name for path in files] == [f"part-{index:05d}.parquet" for index in range(5)]
    users = []
    for path in files:
        table = pq.read_table(path)
        keys = list(zip(*(table[key].to_pylist() for key in ("timestamp", "user")), strict=True))
        assert keys == sorted(keys)
        users.append(set(table["user"].to_pylist()))
    assert sum(map(len, users)) == len(set.union(*users))


def test_processes_write_the_same_files(tmp_path, in_parts):
    small_log.write_log(tmp_path, small_log.tables())
    prepare(small_log.settings(tmp_path), processes=2, **PARTS)
    assert contents(tmp_path) == contents(in_parts)
    assert sorted(os.listdir(tmp_path)) == ["log", "prepared"]


def test_a_log_in_several_files_is_one_log(tmp_path, in_parts):
    raw = small_log.tables()
    small_log.write_log(tmp_path, raw)
    for name in ("events", "impressions"):
        (tmp_path / "log" / f"{name}.parquet").unlink()
        (tmp_path / "log" / f"{name}.parquet").mkdir()
        for index, start in enumerate(range(0, len(raw[name]), 350)):
            part = raw[name].slice(start, 350)
            pq.write_table(part, tmp_path / "log" / f"{name}.parquet" / f"part-{index}.parquet")
    prepare(small_log.settings(tmp_path), processes=1, part_rows=800, bucket_rows=400)
    assert contents(tmp_path) == contents(in_parts)


def test_a_row_group_larger_than_a_part_is_read_in_slices(tmp_path, in_parts):
    for name, table in small_log.tables().items():
        (tmp_path / "log").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "log" / f"{name}.parquet")  # one row group
    prepare(small_log.settings(tmp_path), processes=1, part_rows=130, bucket_rows=400)
    assert contents(tmp_path) == contents(in_parts)
    events = small_log.tables()["events"]
    users = events["user"].to_pylist()
    users[1700] = None
    pq.write_table(events.set_column(0, "user", [users]), tmp_path / "log" / "events.parquet")
    place = "events.parquet, row group 0 from row 1690 on, column `user`: .* the first in row 10"
    with pytest.raises(DataError, match=place):
        prepare(small_log.settings(tmp_path), processes=1, part_rows=130, bucket_rows=400)


def test_arrow_timestamps_read_as_ticks_of_the_run(tmp_path, in_parts):
    raw = small_log.tables()
    for name, kind in (
        ("events", pa.timestamp("us", "Asia/Shanghai")),
        ("impressions", pa.timestamp("ms")),
    ):
        times = raw[name]["timestamp"].cast(pa.timestamp("ms")).cast(kind)
        index = raw[name].schema.get_field_index("timestamp")
        raw[name] = raw[name].set_column(index, "timestamp", times)
    small_log.write_log(tmp_path, raw)
    prepare(small_log.settings(tmp_path), processes=1, **PARTS)
    assert contents(tmp_path) == contents(in_parts)


def test_a_time_between_two_ticks_is_refused(tmp_path):
    raw = small_log.tables()
    times = pa.compute.multiply(raw["events"]["timestamp"], 1000)
    times = pa.concat_arrays([times.slice(0, 1999).combine_chunks(), pa.array([1_650_000_000_001])])
    raw["events"] = raw["events"].set_column(3, "timestamp", times.cast(pa.timestamp("us")))
    small_log.write_log(tmp_path, raw)
    message = r"events.parquet, row group 3, column `timestamp`: expected .* whole numbers of `ms`"
    with pytest.raises(DataError, match=message):
        prepare(small_log.settings(tmp_path))


def test_the_rules_reach_the_sequences(tmp_path):
    raw = small_log.tables()
    prices = np.arange(len(raw["events"])) * 0.5
    raw["events"] = raw["events"].append_column("paid", pa.array(prices))
    small_log.write_log(tmp_path, raw)
    config = small_log.settings(
        tmp_path,
        event_fields=["paid"],
        age=True,
        ties="include",
        deduplicate="item",
        max_age=60 * small_log.MINUTE,
        session_gap=5 * small_log.MINUTE,
    )
    prepare(config, processes=1, **PARTS)
    rows = [row for split in SPLITS for row in sorted_rows(tmp_path, split)]
    assert sum(len(row["click__item"]) for row in rows) > 100
    ages = [age for row in rows for age in row["click__age"]]
    assert min(ages) == 0
    assert max(ages) == 60 * small_log.MINUTE
    assert all(len(set(row["click__item"])) == len(row["click__item"]) for row in rows)
    assert all(row["seen__item"] == [] for row in rows)  # of a history, so of unknown age
    assert {session for row in rows for session in row["click__session"]} >= {0, 1}
    of_time = {}
    for user, item, kind, time, paid in zip(*raw["events"].to_pydict().values(), strict=True):
        of_time.setdefault((user, item, kind, time), set()).add(paid)
    for row in rows:
        for item, time, paid in zip(
            row["click__item"], row["click__timestamp"], row["click__paid"], strict=True
        ):
            assert paid in of_time[row["user"], item, "click", time]


# Kills itself when it is about to build the third bucket.
_KILLED = """
import os, pathlib, signal, sys
from pipelines.config import RunConfig
from pipelines.preparation import local
from pipelines.prepare import prepare
from pipelines.work_lock import alone_in

build, built = local.build_bucket, []

def build_or_die(*arguments, **options):
    if len(built) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    built.append(build(*arguments, **options))

local.build_bucket = build_or_die
config = RunConfig.model_validate_json(sys.argv[1])
prepare(config, processes=1, part_rows=600, bucket_rows=400)
"""


def run_until_killed(config):
    environment = {**os.environ, "SEQDENOISE_DATA_ONLY": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _KILLED, config.model_dump_json()]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr.decode()


def test_a_killed_run_goes_on_where_it_was(tmp_path, in_parts, monkeypatch):
    small_log.write_log(tmp_path, small_log.tables())
    config = small_log.settings(tmp_path)
    run_until_killed(config)
    assert sorted(os.listdir(tmp_path)) == [".prepare", "log"]

    from pipelines.preparation import local

    dealt, built = [], []
    deal, build = local.partition, local.build_bucket

    def counting_deal(*arguments):
        dealt.append(arguments)
        return deal(*arguments)

    def counting_build(*arguments, **options):
        built.append(arguments[3].name)
        return build(*arguments, **options)

    monkeypatch.setattr(local, "partition", counting_deal)
    monkeypatch.setattr(local, "build_bucket", counting_build)
    prepare(config, processes=1, **PARTS)
    assert dealt == []
    assert built == ["00002", "00003", "00004"]
    assert contents(tmp_path) == contents(in_parts)
    assert sorted(os.listdir(tmp_path)) == ["log", "prepared"]


def test_the_pieces_are_gone_at_once(tmp_path, monkeypatch):
    small_log.write_log(tmp_path, small_log.tables())

    def die(path, rmtree=shutil.rmtree, **options):
        if "prepare." in path.name:
            raise KeyboardInterrupt
        rmtree(path, **options)

    # Half of them, were they removed one by one, would pass for a run to go on with.
    monkeypatch.setattr("seqdenoise.data.atomic.shutil.rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        prepare(small_log.settings(tmp_path), processes=1, **PARTS)
    assert ".prepare" not in os.listdir(tmp_path)
    monkeypatch.undo()
    prepare(small_log.settings(tmp_path), processes=1, **PARTS)
    assert sorted(os.listdir(tmp_path)) == ["log", "prepared"]


def test_one_process_at_a_time(tmp_path):
    small_log.write_log(tmp_path, small_log.tables())
    expected = r"\.prepare: expected no other process at work\. Received: a folder that a living"
    with (
        alone_in(tmp_path / ".prepare"),
        pytest.raises(FolderInUseError, match=expected),
    ):
        prepare(small_log.settings(tmp_path), processes=1, **PARTS)


@pytest.mark.parametrize("change", ["log", "time of writing", "run file", "sizes"])
def test_what_another_run_left_is_not_used(tmp_path, change, caplog):
    raw = small_log.tables()
    small_log.write_log(tmp_path, raw)
    run_until_killed(small_log.settings(tmp_path))
    sizes, changes = PARTS, {}
    if change == "time of writing":
        # Perhaps of the same size and with other events.
        os.utime(tmp_path / "log" / "events.parquet", ns=(0, 0))
    elif change == "log":
        raw["events"] = raw["events"].set_column(
            0, "user", pa.array(raw["events"]["user"].to_numpy()[::-1])
        )
        small_log.write_log(tmp_path, raw)
    elif change == "run file":
        changes = {"max_length": 3}
    else:
        sizes = {"part_rows": 600, "bucket_rows": 500}
    with caplog.at_level("INFO"):
        prepare(small_log.settings(tmp_path, **changes), processes=1, **sizes)
    assert "an unfinished run of something else is removed" in caplog.text
    fresh = tmp_path / "fresh"
    small_log.write_log(fresh, raw)
    prepare(small_log.settings(fresh, **changes), processes=1, **sizes)
    assert contents(tmp_path) == contents(fresh)


def test_a_process_that_dies_is_one_clear_error(tmp_path, monkeypatch):
    small_log.write_log(tmp_path, small_log.tables())
    # Stands for the kernel, which kills a process that takes too much memory.
    monkeypatch.setattr("pipelines.preparation.local._deal_part", _die)
    with pytest.raises(WorkerDiedError, match=r"ended without an answer.*fewer --processes"):
        prepare(small_log.settings(tmp_path), processes=2, **PARTS)
    assert ".prepare" in os.listdir(tmp_path)


def _die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_users_and_histories_twice_are_found_across_parts(tmp_path):
    for name, message in (
        ("users", "column `user`: expected every user once. Received: 3$"),
        ("histories", "expected one row a user and type. Received: user 1, type 'click' in 2 rows"),
    ):
        raw = small_log.tables()
        extra = {"users": {"user": [3], "age": [1]}}.get(
            name, {"user": [1], "type": ["click"], "items": [[4]]}
        )
        again = pa.table(extra, schema=raw[name].schema)
        raw[name] = pa.concat_tables([raw[name], again])
        small_log.write_log(tmp_path / name, raw)
        with pytest.raises(DataError, match=rf"{name}.parquet.*{message}"):
            prepare(small_log.settings(tmp_path / name), processes=1, part_rows=3, bucket_rows=400)
        assert os.listdir(tmp_path / name) == ["log"]


@pytest.mark.parametrize("options", [{"processes": 0}, {"bucket_rows": 0}, {"part_rows": 0}])
def test_sizes_below_one_are_refused(tmp_path, options):
    with pytest.raises(ConfigError, match="of at least 1"):
        prepare(small_log.settings(tmp_path), **options)


def test_data_jobs_do_without_tensorflow():
    code = """
import sys
import pipelines.audit, pipelines.prepare, pipelines.preparation.spark, pipelines.sources.kuairand
import seqdenoise.data.row_groups, seqdenoise.data.simulate
assert not {"tensorflow", "keras", "tf_keras"} & set(sys.modules)
import seqdenoise
try:
    seqdenoise.SequenceDenoiser
except AttributeError as error:
    print(error)
"""
    environment = {**os.environ, "SEQDENOISE_DATA_ONLY": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=True)
    assert b"expected seqdenoise.SequenceDenoiser in a process that loads TensorFlow" in run.stdout
