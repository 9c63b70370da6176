import contextlib
import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.bench_headlines import of_reader
from pipelines.bench_reader import bench_reader, to_markdown
from pipelines.bench_rows import LISTS, MAX_LENGTH, PARQUET, SCALARS, write_bench_rows
from pipelines.config import ConfigError
from pipelines.reader_contenders import CONTENDERS, DECODING, SHUFFLED, Contender
from pipelines.reader_worker import abandon, read_epoch

PRESENT = [one for one in CONTENDERS if not one.missing()]
NUM_ROWS = 300


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    write_bench_rows(folder, NUM_ROWS)
    return folder


def test_the_rows_have_what_is_measured(rows):
    table = pq.read_table(rows / PARQUET)
    assert table["row"].to_pylist() == list(range(NUM_ROWS))
    means = {}
    for kind in ("click", "cart", "buy"):
        lengths = table[f"{kind}__item"].combine_chunks().value_lengths().to_numpy()
        means[kind] = lengths.mean()
        assert (
            table[f"{kind}__brand"].combine_chunks().value_lengths().to_numpy() == lengths
        ).all()
        assert lengths.min() == 0
    assert 15 < means["click"] < 25
    assert 3 < means["cart"] < 7
    assert 1 < means["buy"] < 3
    longest = table["click__item"].combine_chunks().value_lengths().to_numpy().max()
    assert longest > MAX_LENGTH


@pytest.mark.parametrize("contender", PRESENT[1:], ids=lambda one: one.name)
def test_every_contender_reads_the_same_batches(rows, contender):
    table = pq.read_table(rows / PARQUET).to_pydict()
    seen = []
    for batch in contender.open(rows, 64)():
        assert len(batch["row"]) <= 64
        numbers = np.asarray(batch["row"]).tolist()
        for name in SCALARS:
            expected = np.array([table[name][i] for i in numbers])
            np.testing.assert_allclose(np.asarray(batch[name]), expected, rtol=1e-6)
        for name in LISTS:
            dense = np.asarray(batch[name])
            assert dense.shape == (len(numbers), MAX_LENGTH)
            for i, row in zip(numbers, dense.tolist(), strict=True):
                real = table[name][i][-MAX_LENGTH:]
                assert row == real + [0] * (MAX_LENGTH - len(real))
        seen += numbers
    assert sorted(seen) == list(range(NUM_ROWS))
    assert (seen != sorted(seen)) == contender.shuffled


def test_the_measure_decodes_all_rows(rows):
    used = read_epoch(PRESENT[0].open(rows, 64))
    assert used["rows"] == NUM_ROWS
    assert used["cpu_seconds"] > 0
    assert used["wall_seconds"] > 0
    assert used["megabytes"] > 20


def test_what_abandoned_iterators_leave_is_counted(rows):
    kept = []

    def leaky():
        iterator = iter([{"row": [1]}, {"row": [2]}])
        kept.append((rows / PARQUET).open("rb"))
        return iterator

    before, after = abandon(leaky, 3)["open_files"]
    assert after == before + 3
    for file in kept:
        file.close()
    (ours,) = (one for one in PRESENT if one.name == SHUFFLED)
    for before, after in abandon(ours.open(rows, 64), 3).values():
        assert after <= before


def test_a_run_measures_who_is_there(tmp_path):
    names = (DECODING, "seqdenoise, shuffled, NumPy batches")
    chosen = [one for one in CONTENDERS if one.name in names]
    missing = Contender("absent", chosen[0].open, packages=("no_such_package",))
    output = tmp_path / "report.json"
    report = bench_reader(
        rows=50, rounds=2, folder=tmp_path, output=output, contenders=[*chosen, missing]
    )
    assert json.loads(output.read_text()) == report
    assert list(report["results"]) == list(names)
    assert report["results"][DECODING]["cpu_ratio"] == 1
    assert all(len(row["turns"]) == 2 for row in report["results"].values())
    assert report["not_installed"] == {"absent": ["no_such_package"]}
    text = to_markdown(report)
    assert f"| {names[1]} | " in text
    assert "absent: not installed (no_such_package)" in text
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


class FakeWorker:
    """Answers without a process: its epoch takes some seconds, or fails with a text."""

    def __init__(self, seconds):
        self._seconds = seconds

    def ask(self, do, times=None):
        if do == "abandon":
            return {"threads": [7, 8]}
        seconds = self._seconds
        if isinstance(seconds, str):
            raise RuntimeError(seconds)
        return {"rows": 50, "cpu_seconds": seconds, "wall_seconds": 2 * seconds, "megabytes": 3.0}


def test_ratios_and_rivals_that_fail(monkeypatch, tmp_path):
    seconds = {DECODING: 2.0, SHUFFLED: 5.0, "broken": "boom\nand more"}
    job = sys.modules["pipelines.bench_reader"]
    monkeypatch.setattr(
        job, "_worker", lambda one, *_: contextlib.nullcontext(FakeWorker(seconds[one.name]))
    )
    contenders = [Contender(name, lambda folder, size: None) for name in seconds]
    report = bench_reader(rows=50, rounds=1, folder=tmp_path, contenders=contenders)
    assert report["results"][SHUFFLED]["cpu_ratio"] == 2.5
    assert report["results"]["broken"] == {"error": "boom\nand more"}
    text = to_markdown(report)
    assert f"| {SHUFFLED} | 5.00 | 2.50 (2.50 to 2.50) | 10.00 | 2.50 (2.50 to 2.50) | 3 |" in text
    assert "| broken | failed | | | | |" in text
    assert "broken: boom\n" in text
    assert of_reader(report).endswith("decoding alone: seqdenoise, shuffled 2.50 (2.50 to 2.50)")
    report["results"] |= {"TFRecord": {"cpu_ratio": 4.0}, "slower": {"cpu_ratio": 5.0}}
    assert of_reader(report).endswith("; TFRecord 4.00")
    assert "Threads before and after 20 abandoned iterators: 7, 8." in text
    seconds[SHUFFLED] = "boom"
    with pytest.raises(RuntimeError, match="boom"):
        bench_reader(rows=50, rounds=1, folder=tmp_path, contenders=contenders)
    seconds |= {SHUFFLED: 5.0, "broken": 1.0, DECODING: "boom"}
    with pytest.raises(RuntimeError, match="boom"):
        bench_reader(rows=50, rounds=1, folder=tmp_path, contenders=contenders)


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"at least one row.*Received: 0"):
        bench_reader(rows=0)
