"""What a contest measures and reports, of scripted contenders; nothing looks at real times."""

import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from pipelines import contest
from pipelines.contest import Contender, Contest, run_contest, to_markdown
from pipelines.contest_worker import peak_megabytes

BASELINE = "seqdenoise"


def contest_of(*contenders):
    return Contest("somebodys.contenders", contenders, BASELINE, BASELINE, ("numpy",))


class ScriptedWorker:
    """Answers what it is told to."""

    def __init__(self, name, turns, gradient, megabytes=None):
        self.name, self._turns, self._gradient = name, iter(turns), gradient
        self._megabytes = megabytes

    def prepare(self, problem, results=None):
        if self._gradient is None:
            return {"error": "ImportError: too new"}
        if results is not None:
            gradients = [np.full((size, 2), self._gradient, np.float32) for size in (2, 3)]
            np.savez(results, np.zeros(1), *gradients)
        return {"seconds": 9.0}

    def ask(self, do):
        if do == "memory":
            return {"megabytes": self._megabytes}
        seconds = next(self._turns)
        return {"error": "MemoryError: too large"} if seconds is None else {"seconds": seconds}


def test_a_run_reports_every_contender_and_who_is_missing(tmp_path, monkeypatch):
    @contextmanager
    def worker(module, contender, **environment):
        assert module == "somebodys.contenders"
        # Blocks that stay with the allocator would hide a part of the next peak.
        is_for_memory = environment.get("MALLOC_MMAP_THRESHOLD_") == "65536"
        yield ScriptedWorker(contender.name, [1.0] * 4, 1.0, 64.0 if is_for_memory else None)

    monkeypatch.setattr(contest, "worker", worker)
    absent = Contender("Nobody's", print, packages=("nobodys-solver",), modules=("nobodys_solver",))
    path = tmp_path / "out" / "bench.json"
    report = run_contest(
        contest_of(Contender(BASELINE, print), Contender("small", print, largest=6), absent),
        {"6": {"num_rows": 6}, "7": {"num_rows": 7}},
        rounds=2,
        memory=True,
        output=path,
    )
    assert json.loads(path.read_text()) == report
    assert report["not_installed"] == {"Nobody's": ["nobodys-solver"]}
    assert list(report["results"]["6"]) == [BASELINE, "small"]
    assert list(report["results"]["7"]) == [BASELINE]
    for rows in report["results"].values():
        for row in rows.values():
            assert row["turns"] == [1.0, 1.0]
            assert row["ratio"] == 1
            assert row["gradient_difference"] == 0
            assert row["peak_megabytes"] == 64
    markdown = to_markdown(report)
    assert "Nobody's: not installed (nobodys-solver)" in markdown
    assert "| small | 1000 |  |" in markdown
    assert "| small | 64 |  |" in markdown


def test_ratios_are_of_medians_and_ranges_of_rounds(monkeypatch):
    monkeypatch.setattr(contest, "_PAUSE_SECONDS", 0)
    workers = [
        ScriptedWorker(BASELINE, [1, 2, 4], 2.0),
        ScriptedWorker("rival", [6, 4, 2], 2.5),
        ScriptedWorker("broken", [], None),
        ScriptedWorker("breaks", [1, None, 1], 2.0),
        ScriptedWorker("something else", [1, 2, 4], 5.0),
    ]
    contenders = [Contender(one.name, print) for one in workers[:-1]]
    contenders.append(Contender("something else", print, is_comparable=False))
    rows = contest._time_size(contest_of(*contenders), "7", {}, workers, rounds=3)
    assert rows["rival"]["seconds"] == 4
    assert rows["rival"]["ratio"] == 2  # medians 4 and 2
    assert rows["rival"]["ratio_range"] == [0.5, 6]  # 2 / 4 in the last round, 6 / 1 in the first
    assert rows["rival"]["fastest_ratio"] == 2  # 2 and 1
    assert rows["rival"]["gradient_difference"] == 0.25
    assert rows["rival"]["first_call_seconds"] == 9
    assert "gradient_difference" not in rows["something else"]
    assert rows["broken"] == {"error": "ImportError: too new"}
    assert rows["breaks"] == {"error": "MemoryError: too large"}
    report = {
        "machine": {"cores": 2, "processor": "chip", "python": "3", "settings": {}},
        "versions": {"pot": "1"},
        "not_installed": {}, "results": {"7": rows}, "baseline": BASELINE,
    }  # fmt: skip
    lines = to_markdown(report).splitlines()
    assert "| rival | 4000 |" in lines
    assert "| rival | 2.00 (0.500 to 6.00) |" in lines
    assert f"| time, ratio to {BASELINE} | 7 |" in lines
    assert "| rival | 2e-01 |" in lines
    assert "| something else |  |" in lines
    assert "| broken | failed |" in lines
    assert "breaks at 7: MemoryError: too large" in lines
    assert lines[-1] == "2 cores of chip, Python 3; pot 1."


def test_a_failure_of_our_own_is_no_line_of_the_report():
    workers = [ScriptedWorker(BASELINE, [], None)]
    with pytest.raises(RuntimeError, match=r"seqdenoise failed at 7: ImportError: too new"):
        contest._time_size(contest_of(Contender(BASELINE, print)), "7", {}, workers, rounds=1)


def test_nor_is_one_of_the_baseline():
    workers = [ScriptedWorker("products", [], None)]
    others = Contest("somebodys.contenders", [Contender("products", print)], "products", None, ())
    with pytest.raises(RuntimeError, match=r"products failed at 7: ImportError: too new"):
        contest._time_size(others, "7", {}, workers, rounds=1)


def test_without_a_reference_no_gradients_are_compared():
    workers = [ScriptedWorker("one", [1], 2.0), ScriptedWorker("two", [2], 3.0)]
    contenders = [Contender(one.name, print) for one in workers]
    others = Contest("somebodys.contenders", contenders, "one", None, ())
    rows = contest._time_size(others, "7", {}, workers, rounds=1)
    assert rows["two"]["ratio"] == 2
    assert not any("gradient_difference" in row for row in rows.values())


def test_memory_is_the_median_of_its_calls(monkeypatch):
    peaks = iter([5.0, 90.0, 6.0])

    class Uneven(ScriptedWorker):
        def ask(self, do):
            return {"megabytes": next(peaks)}

    @contextmanager
    def worker(module, contender, **environment):
        yield Uneven(contender.name, [], 1.0)

    monkeypatch.setattr(contest, "worker", worker)
    of_three = Contest("somebodys.contenders", [], "one", None, (), memory_calls=3)
    assert contest._peak_megabytes(of_three, Contender("one", print), "7", {}) == 6
    monkeypatch.setattr(Uneven, "ask", lambda self, do: {"megabytes": None})  # not on Linux
    assert contest._peak_megabytes(of_three, Contender("one", print), "7", {}) is None


def test_a_process_times_and_measures_its_contender_until_it_dies():
    from pipelines.transport_contenders import CONTENDERS

    pot = next(one for one in CONTENDERS if one.name == "POT NumPy")
    problem = {"num_problems": 1, "num_rows": 300, "num_columns": 500, "dim": 4}
    module = "pipelines.transport_contenders"
    with contest.worker(module, pot, MALLOC_MMAP_THRESHOLD_="65536") as worker:
        assert worker.ask("time") == {"error": "RuntimeError: no problem was prepared"}
        assert worker.prepare({**problem, "epsilon": 0.1, "iterations": 2})["seconds"] > 0
        assert worker.ask("time")["seconds"] > 0
        if Path("/proc/self/clear_refs").exists():
            # Costs, kernel and plan, at least.
            assert worker.ask("memory")["megabytes"] > 2 * 300 * 500 * 4 / 1e6
        worker._process.kill()
        assert worker.ask("time") == {"error": "the process ended with status -9"}


def test_peak_memory_is_the_highest_mark_of_a_call():
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux")

    def call():
        both = np.ones(80_000_000, np.uint8).copy()
        passing = both + both
        del passing
        return (both[:1].copy(), 0, 0)

    np.ones(400_000_000, np.uint8)  # higher, but before the call
    # 80 MB from `ones` are gone when the sum is made; with the copy it is 160 at any time.
    assert peak_megabytes(call) == pytest.approx(160, abs=8)
