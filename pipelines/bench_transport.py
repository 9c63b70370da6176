"""The `bench transport` job: our Sinkhorn solver beside others, in one alternating run."""

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.bench_machine import machine, versions
from pipelines.config import ConfigError
from pipelines.transport_contenders import CONTENDERS, Contender
from seqdenoise.data.atomic import atomic_file

logger = logging.getLogger(__name__)

SIZES = ("512", "1024", "2048", "4096", "512x50x50")
# The ratios' denominator; its own row shows the spread that is noise.
BASELINE = "seqdenoise, XLA"

_PROBLEM = {"dim": 32, "epsilon": 0.05, "iterations": 50}
_DISTRIBUTIONS = (
    "seqdenoise", "tensorflow", "numpy", "scipy", "pot", "ott-jax", "jax", "jaxlib",
    "geomloss", "torch",
)  # fmt: skip
# Threads of the one before spin for some milliseconds before they sleep.
_PAUSE_SECONDS = 0.1


def parse_size(text: str) -> dict[str, int]:
    """Reads `"512"` (one problem of 512 x 512) or `"512x50x50"` (512 problems of 50 x 50).

    Raises:
        ConfigError: It is neither.
    """
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*)x([1-9]\d*))?", text)
    if match is None:
        raise ConfigError(
            "sizes: expected a number (512) or problems x rows x columns (512x50x50). "
            f"Received: {text!r}"
        )
    first, rows, columns = match.groups()
    sizes = (1, first, first) if rows is None else (first, rows, columns)
    names = ("num_problems", "num_rows", "num_columns")
    return {name: int(size) for name, size in zip(names, sizes, strict=True)}


class _Worker:
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
def _worker(contender: Contender, **environment: str) -> Iterator[_Worker]:
    with subprocess.Popen(
        [sys.executable, "-m", "pipelines.bench_worker"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Warnings of libraries that would hide the progress; a failure is in the answer.
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield _Worker(contender.name, process)
        finally:
            process.kill()


def bench_transport(
    sizes: Sequence[str] = SIZES,
    *,
    rounds: int = 5,
    memory: bool = True,
    output: Path | None = None,
    contenders: Sequence[Contender] = CONTENDERS,
) -> dict[str, Any]:
    """Times every contender on the same problems, each in turn within each round.

    A turn is as many calls as fill a quarter of a second, at least one, and counts with their
    median. Memory is measured apart, in a fresh process for each contender and size.

    Args:
        sizes: As `parse_size` reads them.
        rounds: Turns of each contender at each size, at least 1.
        memory: Whether to measure memory.
        output: The JSON file of everything measured.
        contenders: Who takes part; those whose packages are missing are listed as such.

    Returns:
        `machine` and `versions`; `not_installed`, from contender to packages; and `results`, from
        size to contender: `seconds` (median of the turns), `ratio` to `BASELINE`'s, `ratio_range`
        (lowest and highest of a round), `fastest_ratio` (of the fastest turns, which other work on
        the machine disturbed least), `turns` (seconds of each), `first_call_seconds` (with
        compilation), `peak_megabytes` (above the process before the call; None where not measured)
        and `gradient_difference` (largest, relative to the largest entry of `BASELINE`'s gradient).
        A rival that fails has `error` alone.

    Raises:
        ConfigError: A size or `rounds` is out of range.
        RuntimeError: One of our own solvers failed.
    """
    problems = {size: {**parse_size(size), **_PROBLEM} for size in sizes}
    if rounds < 1:
        raise ConfigError(f"rounds: expected at least 1. Received: {rounds}")
    present = [one for one in contenders if not one.missing()]
    report: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(_DISTRIBUTIONS),
        "problem": _PROBLEM,
        "rounds": rounds,
        "not_installed": {one.name: one.missing() for one in contenders if one.missing()},
        "results": {},
    }
    with ExitStack() as stack:
        workers = {one.name: stack.enter_context(_worker(one)) for one in present}
        for size, problem in problems.items():
            fitting = [
                workers[one.name]
                for one in present
                if problem["num_problems"] > 1 or not one.for_batches
            ]
            report["results"][size] = _time_size(size, problem, fitting, rounds)
    if memory:
        for size, problem in problems.items():
            for one in present:
                row = report["results"][size].get(one.name, {"error": ""})
                if "error" not in row:
                    row["peak_megabytes"] = _peak_megabytes(one, size, problem)
    if output is not None:
        with atomic_file(output) as aside:
            aside.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _time_size(
    size: str, problem: Mapping[str, Any], workers: Sequence[_Worker], rounds: int
) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {worker.name: {} for worker in workers}
    with tempfile.TemporaryDirectory() as folder:
        files = {worker.name: Path(folder) / f"{i}.npz" for i, worker in enumerate(workers)}
        for worker in workers:
            logger.info("bench: %s, first call of %s", size, worker.name)
            answer = worker.prepare(problem, files[worker.name])
            _keep(rows[worker.name], size, worker.name, answer, "first_call_seconds")
        for name, difference in _gradient_differences(files).items():
            rows[name]["gradient_difference"] = difference
    for index in range(rounds):
        logger.info("bench: %s, round %d of %d", size, index + 1, rounds)
        for worker in workers:
            row = rows[worker.name]
            if "error" in row:
                continue
            time.sleep(_PAUSE_SECONDS)
            answer = worker.ask("time")
            _keep(row, size, worker.name, answer, "turn")
            if "turn" in row:
                row.setdefault("turns", []).append(row.pop("turn"))
    baseline = np.array(rows[BASELINE]["turns"])
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


def _gradient_differences(files: Mapping[str, Path]) -> dict[str, float]:
    gradients = {}
    for name, path in files.items():
        if path.is_file():
            with np.load(path) as parts:
                both = [parts[part].astype(np.float64).ravel() for part in ("arr_1", "arr_2")]
                gradients[name] = np.concatenate(both)
    expected = gradients[BASELINE]
    scale = np.abs(expected).max()
    return {name: float(np.abs(got - expected).max() / scale) for name, got in gradients.items()}


def _peak_megabytes(contender: Contender, size: str, problem: Mapping[str, Any]) -> float | None:
    logger.info("bench: %s, memory of %s", size, contender.name)
    # What a library frees must leave the process, or its next call would seem to need less.
    with _worker(contender, MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="0") as worker:
        answer = worker.prepare(problem)
        answer = answer if "error" in answer else worker.ask("memory")
    peak: float | None = answer.get("megabytes")
    return peak


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

    blocks = [
        table("ms a call", lambda row: _short(1000 * row["seconds"])),
        table(f"time, ratio to {BASELINE}", ratio),
        table("the same of the fastest turns", lambda row: _short(row["fastest_ratio"])),
        table("peak memory, MB", peak),
        table("gradient's difference", lambda row: f"{row['gradient_difference']:.0e}"),
        table("first call, s", lambda row: _short(row["first_call_seconds"])),
    ]
    lines = [line for block in blocks for line in (*block, "")]
    for name, packages in report["not_installed"].items():
        lines.append(f"{name}: not installed ({', '.join(packages)})")
    for size, rows in results.items():
        for name, row in rows.items():
            if "error" in row:
                lines.append(f"{name} at {size}: {row['error'].splitlines()[0]}")
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines.append(f"{machine['cores']} cores of {machine['processor']}; {versions}.")
    return "\n".join(lines)


def _names(report: Mapping[str, Any]) -> list[str]:
    seen: dict[str, None] = {}
    # The batch is the only size at which every contender stands, in the order they are listed.
    for rows in sorted(report["results"].values(), key=len, reverse=True):
        seen |= dict.fromkeys(rows)
    return list(seen)


def _short(value: float) -> str:
    """Three digits at least, as many before the point as there are."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")
