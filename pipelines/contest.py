"""Contests of ways to compute the same: each in a process of its own, in turns within one run."""

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.bench_machine import described, machine, versions
from pipelines.config import ConfigError
from pipelines.json_report import write_json_report

logger = logging.getLogger(__name__)

# Threads of the one before spin for some milliseconds before they sleep.
_PAUSE_SECONDS = 0.1

# Value, gradient with respect to one input, to the other; arrays of whichever library.
Results = tuple[Any, Any, Any]


@dataclass(frozen=True)
class Contender:
    """One way to compute what a contest is about.

    Attributes:
        name: What reports call it. A failure of one whose name begins with `seqdenoise` is an
            error, of another a line of the report.
        make: Loads what it needs and takes a problem to a call that solves it and returns when the
            results are there. Some compile at the first call.
        packages: Distributions it needs beside this project's own, by the name they install under.
        modules: What those distributions are imported as.
        largest: The most rows it is given, for want of memory; None for no limit.
        is_comparable: Whether its gradients are those of the others.
    """

    name: str
    make: Callable[[Any], Callable[[], Results]]
    packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    largest: int | None = None
    is_comparable: bool = True

    def missing(self) -> list[str]:
        """Its packages that are not installed."""
        pairs = zip(self.packages, self.modules, strict=True)
        return [package for package, module in pairs if find_spec(module) is None]

    def takes(self, problem: Mapping[str, Any]) -> bool:
        """Whether a problem is for it."""
        return self.largest is None or problem["num_rows"] <= self.largest


@dataclass(frozen=True)
class Contest:
    """Who meets over what.

    Attributes:
        module: The module with the `CONTENDERS`, and `make_problem`, which makes a problem of its
            numbers. A process of each contender loads it; it loads no library itself.
        contenders: Those that take part.
        baseline: The name of the ratios' denominator; its own row shows the spread that is noise.
        reference: The name of the one whose gradients the others' are compared with; None where
            they do not all compute the same.
        distributions: Whose versions are reported.
        memory_calls: Memory is the median of so many calls: more than one where operations that
            run side by side need more or less, as the threads happen to meet.
    """

    module: str
    contenders: Sequence[Contender]
    baseline: str
    reference: str | None
    distributions: Sequence[str]
    memory_calls: int = 1


class Worker:
    """The process of one contender."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self._process = process

    def prepare(self, problem: Mapping[str, Any], results: Path | None = None) -> dict[str, Any]:
        """Makes the contender solve a problem for the first time, and keeps what it found."""
        path = None if results is None else str(results)
        return self.ask("prepare", contender=self.name, problem=problem, results=path)

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Waits for the answer to a request: what was measured, or `error`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **details}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"error": f"the process ended with status {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def worker(module: str, contender: Contender, **environment: str) -> Iterator[Worker]:
    """The process of a contender of a module, while the context lasts."""
    with subprocess.Popen(
        [sys.executable, "-m", "pipelines.contest_worker", module],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Warnings of libraries that would hide the progress; a failure is in the answer.
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield Worker(contender.name, process)
        finally:
            process.kill()


def run_contest(
    contest: Contest,
    problems: Mapping[str, Mapping[str, Any]],
    *,
    rounds: int,
    memory: bool,
    output: Path | None,
) -> dict[str, Any]:
    """Times every contender on the same problems, each in turn within each round.

    A turn is as many calls as fill a quarter of a second, at least one, and counts with their
    median. Memory is measured apart, in a fresh process for each contender and size.

    Args:
        contest: The contest.
        problems: By size, what `make_problem` takes.
        rounds: Turns of each contender at each size, at least 1.
        memory: Whether to measure memory.
        output: The JSON file of everything measured.

    Returns:
        `machine` and `versions`; `baseline`, `problems` and `rounds`; `not_installed`, from
        contender to packages; and `results`, from size to contender: `seconds` (median of the
        turns), `ratio` to the baseline's, `ratio_range` (lowest and highest of a round),
        `fastest_ratio` (of the fastest turns, which other work on the machine disturbed least),
        `turns` (seconds of each), `first_call_seconds` (with compilation), `peak_megabytes` (above
        the process before the call; None where not measured) and `gradient_difference` (largest,
        relative to the largest entry of the reference's gradient). One that fails has `error`
        alone, and one that does not take a size no entry.

    Raises:
        ConfigError: `rounds` is out of range.
        RuntimeError: One of our own failed, or the baseline.
    """
    if rounds < 1:
        raise ConfigError(f"rounds: expected at least 1. Received: {rounds}")
    present = [one for one in contest.contenders if not one.missing()]
    report: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(contest.distributions),
        "baseline": contest.baseline,
        "problems": {size: dict(problem) for size, problem in problems.items()},
        "rounds": rounds,
        "not_installed": {one.name: one.missing() for one in contest.contenders if one.missing()},
        "results": {},
    }
    with ExitStack() as stack:
        workers = {one.name: stack.enter_context(worker(contest.module, one)) for one in present}
        for size, problem in problems.items():
            fitting = [workers[one.name] for one in present if one.takes(problem)]
            report["results"][size] = _time_size(contest, size, problem, fitting, rounds)
    if memory:
        for size, problem in problems.items():
            for one in present:
                row = report["results"][size].get(one.name, {"error": ""})
                if "error" not in row:
                    row["peak_megabytes"] = _peak_megabytes(contest, one, size, problem)
    write_json_report(report, output)
    return report


def _time_size(
    contest: Contest,
    size: str,
    problem: Mapping[str, Any],
    workers: Sequence[Worker],
    rounds: int,
) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {process.name: {} for process in workers}
    with tempfile.TemporaryDirectory() as folder:
        files = {one.name: Path(folder) / f"{i}.npz" for i, one in enumerate(workers)}
        for process in workers:
            logger.info("bench: %s, first call of %s", size, process.name)
            answer = process.prepare(problem, files[process.name])
            _keep(rows[process.name], size, process.name, answer, "first_call_seconds")
        for name, difference in _gradient_differences(contest, files).items():
            rows[name]["gradient_difference"] = difference
    for index in range(rounds):
        logger.info("bench: %s, round %d of %d", size, index + 1, rounds)
        for process in workers:
            row = rows[process.name]
            if "error" in row:
                continue
            time.sleep(_PAUSE_SECONDS)
            answer = process.ask("time")
            _keep(row, size, process.name, answer, "turn")
            if "turn" in row:
                row.setdefault("turns", []).append(row.pop("turn"))
    if "error" in rows[contest.baseline]:
        raise RuntimeError(
            f"{contest.baseline} failed at {size}: {rows[contest.baseline]['error']}"
        )
    baseline = np.array(rows[contest.baseline]["turns"])
    for row in rows.values():
        if "error" in row:
            continue
        turns = np.array(row["turns"])
        row["seconds"] = float(np.median(turns))
        row["ratio"] = float(np.median(turns) / np.median(baseline))
        row["ratio_range"] = [float(np.min(turns / baseline)), float(np.max(turns / baseline))]
        row["fastest_ratio"] = float(np.min(turns) / np.min(baseline))
        row["peak_megabytes"] = None
    return rows


def _keep(
    row: dict[str, Any], size: str, name: str, answer: Mapping[str, Any], measured: str
) -> None:
    if "error" not in answer:
        row[measured] = answer["seconds"]
        return
    if name.startswith("seqdenoise"):
        raise RuntimeError(f"{name} failed at {size}: {answer['error']}")
    logger.warning("bench: %s failed at %s: %s", name, size, answer["error"])
    row.clear()
    row["error"] = answer["error"]


def _gradient_differences(contest: Contest, files: Mapping[str, Path]) -> dict[str, float]:
    if contest.reference is None:
        return {}
    comparable = {one.name for one in contest.contenders if one.is_comparable}
    gradients = {}
    for name, path in files.items():
        if name in comparable and path.is_file():
            with np.load(path) as parts:
                both = [parts[part].astype(np.float64).ravel() for part in ("arr_1", "arr_2")]
                gradients[name] = np.concatenate(both)
    expected = gradients[contest.reference]
    scale = np.abs(expected).max()
    return {name: float(np.abs(got - expected).max() / scale) for name, got in gradients.items()}


def _peak_megabytes(
    contest: Contest, contender: Contender, size: str, problem: Mapping[str, Any]
) -> float | None:
    logger.info("bench: %s, memory of %s", size, contender.name)
    # What a library frees must leave the process, or its next call would seem to need less.
    frugal = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    with worker(contest.module, contender, **frugal) as process:
        if "error" in process.prepare(problem):
            return None
        answers = [process.ask("memory") for _ in range(contest.memory_calls)]
    peaks = [one["megabytes"] for one in answers if one.get("megabytes") is not None]
    return float(np.median(peaks)) if peaks else None


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report as Markdown: times and ratios, then memory, then how far the gradients differ."""
    results = report["results"]
    names = [name for name in _names(report) if any(name in rows for rows in results.values())]

    def table(title: str, cell: Any) -> list[str]:
        head = f"| {title} | " + " | ".join(results) + " |"
        lines = [head, "| :--- |" + " ---: |" * len(results)]
        for name in names:
            cells = []
            for rows in results.values():
                row = rows.get(name)
                if row is None:
                    cells.append("")
                else:
                    cells.append("failed" if "error" in row else cell(row))
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return lines

    def ratio(row: Mapping[str, Any]) -> str:
        low, high = row["ratio_range"]
        return f"{_short(row['ratio'])} ({_short(low)} to {_short(high)})"

    def peak(row: Mapping[str, Any]) -> str:
        return "" if row["peak_megabytes"] is None else f"{row['peak_megabytes']:.0f}"

    def difference(row: Mapping[str, Any]) -> str:
        return f"{row['gradient_difference']:.0e}" if "gradient_difference" in row else ""

    blocks = [
        table("ms a call", lambda row: _short(1000 * row["seconds"])),
        table(f"time, ratio to {report['baseline']}", ratio),
        table("the same of the fastest turns", lambda row: _short(row["fastest_ratio"])),
        table("peak memory, MB", peak),
        table("gradient's difference", difference),
        table("first call, s", lambda row: _short(row["first_call_seconds"])),
    ]
    lines = [line for block in blocks for line in (*block, "")]
    for name, packages in report["not_installed"].items():
        lines.append(f"{name}: not installed ({', '.join(packages)})")
    for size, rows in results.items():
        for name, row in rows.items():
            if "error" in row:
                lines.append(f"{name} at {size}: {row['error'].splitlines()[0]}")
    lines.append(f"{described(report['machine'], report['versions'])}.")
    return "\n".join(lines)


def _names(report: Mapping[str, Any]) -> list[str]:
    seen: dict[str, None] = {}
    # Not every contender takes every size; the size that most take has the order of the list.
    for rows in sorted(report["results"].values(), key=len, reverse=True):
        seen |= dict.fromkeys(rows)
    return list(seen)


def _short(value: float) -> str:
    """Three digits at least, as many before the point as there are."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")
