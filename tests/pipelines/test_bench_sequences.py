import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import bench_sequences as job
from pipelines.bench_headlines import of_sequences
from pipelines.bench_log import TYPES, write_bench_log
from pipelines.bench_sequences import BASELINE, bench_sequences, output_digest, to_markdown
from pipelines.config import ConfigError
from pipelines.process_usage import Usage, run_measured
from pipelines.sequence_contenders import CONTENDERS, MAX_LENGTH, Contender

PRESENT = [one for one in CONTENDERS if not one.missing()]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "log"
    write_bench_log(folder, events=6000, impressions=500)
    return folder


def test_the_log_has_what_makes_the_task_hard(log):
    events = pq.read_table(log / "events.parquet").to_pandas()
    shown = pq.read_table(log / "impressions.parquet").to_pandas()
    assert (len(events), len(shown)) == (6000, 500)
    assert shown["row"].tolist() == list(range(500))
    assert events["timestamp"].is_unique
    for table in (events, shown):
        assert table["timestamp"].is_monotonic_increasing
    own = shown.merge(events, on=["user", "timestamp"])
    assert 150 < len(own) < 350  # impressions at the time of an event of their user
    per_user = events.groupby(["user", "type"], observed=True).size()
    assert per_user.max() > MAX_LENGTH
    assert set(events["type"]) == set(TYPES)


def test_parts_of_a_long_log_follow_one_another(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.bench_log._ROWS_AT_A_TIME", 1000)
    write_bench_log(tmp_path / "log", events=3500, impressions=70)
    events = pq.read_table(tmp_path / "log" / "events.parquet")
    times = events["timestamp"].to_numpy()
    assert (len(times), (np.diff(times) > 0).all()) == (3500, True)
    shown = pq.read_table(tmp_path / "log" / "impressions.parquet")
    assert shown["row"].to_pylist() == list(range(70))
    assert (np.diff(shown["timestamp"].to_numpy()) >= 0).all()


def expected_rows(log):
    """The definition, one impression at a time."""
    of_user = defaultdict(list)
    for event in pq.read_table(log / "events.parquet").to_pylist():
        of_user[event["user"], event["type"]].append(event)
    for shown in pq.read_table(log / "impressions.parquet").to_pylist():
        row = {"row": shown["row"]}
        for kind in TYPES:
            before = [
                event
                for event in of_user[shown["user"], kind]
                if event["timestamp"] < shown["timestamp"]
            ][-MAX_LENGTH:]
            row[f"{kind}__item"] = [event["item"] for event in before]
            row[f"{kind}__timestamp"] = [event["timestamp"] for event in before]
        yield row


@pytest.fixture(scope="module")
def expected(log):
    return list(expected_rows(log))


@pytest.mark.parametrize("contender", PRESENT, ids=lambda one: one.name)
def test_every_contender_makes_the_same_sequences(log, expected, tmp_path, contender):
    made, defined = tmp_path / "made", tmp_path / "defined"
    made.mkdir()
    defined.mkdir()
    contender.make(log, made / contender.output)
    pq.write_table(pa.Table.from_pylist(expected), defined / "rows.parquet")
    assert output_digest(made, 1) == output_digest(defined, 1)


def test_the_digest_sees_every_value_but_no_order_of_rows(expected, tmp_path):
    def digest(rows, step=1):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        return output_digest(tmp_path, step)

    whole = digest(expected)
    assert digest(expected[::-1]) == whole
    row = next(row for row in reversed(expected) if len(row["view__item"]) > 2)
    assert row["row"] % 3
    others = [other for other in expected if other is not row]
    for name in ("view__item", "view__timestamp"):
        changed = row | {name: [*row[name][:-1], row[name][-1] + 1]}
        assert digest([*others, changed]) != whole
        assert digest([*others, changed], 3) == digest(expected, 3)
    shorter = row | {name: row[name][1:] for name in ("view__item", "view__timestamp")}
    assert digest([*others, shorter]) != whole
    assert digest(others) != whole


def test_a_run_measures_every_contender(tmp_path):
    ours, pandas = CONTENDERS[0], CONTENDERS[2]
    missing = Contender("absent", ours.make, packages=("no_such_package",))
    output = tmp_path / "report.json"
    report = bench_sequences(
        events=3000,
        impressions=200,
        rounds=1,
        folder=tmp_path,
        output=output,
        contenders=[ours, pandas, missing],
    )
    assert json.loads(output.read_text()) == report
    assert list(report["results"]) == [ours.name, pandas.name]
    for row in report["results"].values():
        assert row["cpu_seconds"] > 0.1
        assert row["wall_seconds"] > 0.1
        assert 50 < row["peak_megabytes"] < 2000
    assert report["results"][BASELINE]["cpu_ratio"] == 1
    assert report["not_installed"] == {"absent": ["no_such_package"]}
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    text = to_markdown(report)
    assert "| pandas merge_asof | " in text
    assert "absent: not installed (no_such_package)" in text


def fake_turns(monkeypatch, digests, seconds):
    """Turns that take no time: `seconds` and `digests` by contender."""
    turns = {name: iter(values) for name, values in seconds.items()}

    def turn(contender, log, made):
        made.mkdir(exist_ok=True)
        (made / "name").write_text(contender.name)
        used = next(turns[contender.name])
        if isinstance(used, Exception):
            raise used
        return vars(Usage(2 * used, used, 100 * used))

    monkeypatch.setattr(job, "_turn", turn)
    monkeypatch.setattr(
        job, "output_digest", lambda made, step: digests[(made / "name").read_text()]
    )


def run(contenders, rounds):
    return bench_sequences(events=100, impressions=10, rounds=rounds, contenders=contenders)


def test_medians_ratios_and_rivals_that_fail(monkeypatch):
    names = [BASELINE, "rival", "wrong", "broken"]
    contenders = [Contender(name, lambda log, output: None) for name in names]
    seconds = {
        BASELINE: [2, 4, 3],
        "rival": [8, 4, 6],
        "wrong": [1],
        "broken": [RuntimeError("boom")],
    }
    fake_turns(monkeypatch, {BASELINE: "a" * 64, "rival": "a" * 64, "wrong": "b" * 64}, seconds)
    report = run(contenders, rounds=3)
    rival = report["results"]["rival"]
    assert (rival["cpu_seconds"], rival["wall_seconds"], rival["peak_megabytes"]) == (6, 12, 600)
    assert (rival["cpu_ratio"], rival["cpu_ratio_range"]) == (2, [1, 4])
    assert list(report["results"]["wrong"]) == ["error"]
    assert report["results"]["broken"] == {"error": "boom"}
    text = to_markdown(report)
    assert "| rival | 6.0 | 2.00 (1.00 to 4.00) | 12.0 | 600 |" in text
    assert "| broken | failed | | | |" in text
    assert "wrong: expected the sequences of" in text
    report["results"]["slower"] = rival | {"cpu_seconds": 9.0}
    assert of_sequences(report) == (
        "100 events to sequences, processor time: seqdenoise, in memory 3.0 s, 300 MB; "
        "rival 6.0 s, 600 MB"
    )


def test_a_contender_of_ours_that_differs_ends_the_run(monkeypatch):
    contenders = [Contender(name, lambda log, output: None) for name in (BASELINE, "seqdenoise, x")]
    fake_turns(
        monkeypatch,
        {BASELINE: "a" * 64, "seqdenoise, x": "b" * 64},
        {BASELINE: [1], "seqdenoise, x": [1]},
    )
    with pytest.raises(RuntimeError, match="seqdenoise, x: expected the sequences of"):
        run(contenders, rounds=1)


def test_an_output_without_rows_is_no_agreement(tmp_path):
    with pytest.raises(RuntimeError, match="expected rows in parquet"):
        output_digest(tmp_path, 1)


def test_no_rounds_are_refused():
    with pytest.raises(
        ConfigError, match=r"at least one event, impression and round. Received: 100"
    ):
        run(CONTENDERS, rounds=0)


def test_usage_counts_children(tmp_path):
    """A child of the command holds 200 MB and works for a while; the command itself only waits."""
    child = (
        "x = bytearray(b'x') * 200_000_000; sum(range(10_000_000)); import time; time.sleep(0.2)"
    )
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    used = run_measured([sys.executable, "-c", parent], {}, tmp_path)
    assert 200 < used.peak_megabytes < 300
    assert used.cpu_seconds > 0.1
    assert used.wall_seconds > 0.2


def test_a_command_that_fails_says_why():
    command = "import os, sys; sys.stderr.write('no luck ' + os.environ['LUCK']); sys.exit(3)"
    with pytest.raises(RuntimeError, match=r"expected exit status 0. Received: 3: no luck x"):
        run_measured([sys.executable, "-c", command], {"LUCK": "x"}, Path.cwd())
