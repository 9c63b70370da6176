"""The `bench all` job: every benchmark, one after another, and one page of what they found."""

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines import bench_headlines as headlines
from pipelines.bench_machine import described, machine, versions
from pipelines.config import ConfigError
from pipelines.json_report import write_json_report
from seqdenoise.data.atomic import atomic_file

_logger = logging.getLogger(__name__)

PAGE, FIGURES = "benchmarks.md", "benchmarks.json"


@dataclass(frozen=True)
class Benchmark:
    """One of the benchmarks.

    Attributes:
        name: The command, `pipelines bench NAME`.
        headline: What its report says, in a line.
        quick: The command's options in a quick run; otherwise it has its defaults.
        figure: The name of the figure that it draws, if it draws one.
    """

    name: str
    headline: Callable[[Mapping[str, Any]], str]
    quick: Sequence[str]
    figure: str | None = None

    def command(self, *, quick: bool) -> list[str]:
        """Arguments of `python` that run it."""
        return ["-m", "pipelines", "bench", self.name, *(self.quick if quick else ())]


BENCHMARKS = (
    Benchmark(
        "step",
        headlines.of_step,
        quick=("--rounds", "3"),
    ),
    Benchmark(
        "losses",
        headlines.of_losses,
        quick=("--rows", "1024", "--rows", "4096", "--rounds", "3"),
    ),
    Benchmark(
        "serving",
        headlines.of_serving,
        quick=("--rounds", "7"),
    ),
    Benchmark(
        "scaling",
        headlines.of_scaling,
        quick=(
            *("--rows", "256", "--rows", "4096", "--length", "10", "--length", "100"),
            *("--types", "1", "--types", "6", "--fields", "1", "--fields", "4", "--rounds", "3"),
        ),
        figure="scaling.svg",
    ),
    Benchmark(
        "transport",
        headlines.of_transport,
        quick=("--sizes", "512,512x50x50", "--rounds", "3", "--no-memory"),
    ),
    Benchmark(
        "reader",
        headlines.of_reader,
        quick=("--rows", "30000", "--rounds", "3"),
    ),
    Benchmark(
        "sequences",
        headlines.of_sequences,
        quick=("--events", "1000000", "--impressions", "100000", "--rounds", "2"),
    ),
    Benchmark(
        "metrics",
        headlines.of_metrics,
        quick=("--rows", "500000", "--loop-rows", "20000", "--rounds", "2"),
    ),
)


def bench_all(
    folder: Path,
    *,
    quick: bool = False,
    only: Sequence[str] | None = None,
    benchmarks: Sequence[Benchmark] = BENCHMARKS,
) -> dict[str, Any]:
    """Runs the benchmarks, each in a process of its own, and writes what they found.

    The folder gets each one's JSON file, `benchmarks.json` with all of them, figures, and the page
    `benchmarks.md`. Both are written anew after each benchmark, so a run that is stopped leaves
    what it has. One that fails is named as such, and the others are run all the same.

    Args:
        folder: Where to write.
        quick: Small sizes and few turns.
        only: Names of those to run; by default all.
        benchmarks: Those that there are.

    Returns:
        `machine`, `versions`, `quick`, `seconds` (of all), and `benchmarks`, by name: `command`,
        `seconds`, and `headline`, `markdown` (what it printed) and `report`, or else `error`.

    Raises:
        ConfigError: `only` names one that there is not.
    """
    known = [one.name for one in benchmarks]
    if not {*(only or ())} <= {*known}:
        raise ConfigError(f"only: expected names of {known}. Received: {list(only or ())}")
    chosen = [one for one in benchmarks if not only or one.name in only]
    folder = folder.resolve()  # the processes run elsewhere
    folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(("seqdenoise", "tensorflow", "numpy")),
        "quick": quick,
        "seconds": 0.0,
        "benchmarks": {},
    }
    start = time.perf_counter()
    for one in chosen:
        _logger.info("bench: %s", one.name)
        report["benchmarks"][one.name] = _run(one, folder, quick=quick)
        report["seconds"] = time.perf_counter() - start
        write_json_report(report, folder / FIGURES)
        with atomic_file(folder / PAGE) as aside:
            aside.write_text(_page(report, chosen), encoding="utf-8")
    return report


def _run(one: Benchmark, folder: Path, *, quick: bool) -> dict[str, Any]:
    command = one.command(quick=quick)
    output = folder / f"{one.name}.json"
    output.unlink(missing_ok=True)  # of another run
    figure = [] if one.figure is None else ["--figure", str(folder / one.figure)]
    start = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as printed,
        subprocess.Popen(
            [sys.executable, *command, "--output", str(output), *figure],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr is not None
        last = ""
        for line in process.stderr:
            sys.stderr.write(line)
            last = line.strip() or last
        status = process.wait()
        printed.seek(0)
        markdown = printed.read().strip()
    row: dict[str, Any] = {
        "command": " ".join(["python", *command]),
        "seconds": time.perf_counter() - start,
    }
    if status or not output.is_file():
        return {**row, "error": f"exit status {status}: {last}"}
    report = json.loads(output.read_text("utf-8"))
    return {**row, "headline": one.headline(report), "markdown": markdown, "report": report}


def to_markdown(report: Mapping[str, Any]) -> str:
    """The table of the headlines, and what it was measured on."""
    lines = ["| benchmark | what it found | took |", "| :--- | :--- | ---: |"]
    for name, row in report["benchmarks"].items():
        found = row.get("headline") or f"failed: {row['error']}"
        lines.append(f"| {name} | {found.replace('|', '/')} | {row['seconds']:.0f} s |")
    kind = "A quick run" if report["quick"] else "A run"
    lines += [
        "",
        f"{kind} of {report['seconds'] / 60:.0f} minutes on "
        f"{described(report['machine'], report['versions'])}.",
    ]
    return "\n".join(lines)


def _page(report: Mapping[str, Any], chosen: Sequence[Benchmark]) -> str:
    parts = ["# Benchmarks", to_markdown(report)]
    for one in chosen:
        row = report["benchmarks"].get(one.name)
        if row is None:
            continue
        parts += [f"## {one.name}", f"    {row['command']}"]
        parts.append(row.get("markdown") or f"Failed: {row['error']}")
        if one.figure is not None and "error" not in row:
            parts.append(f"![{one.name}]({one.figure})")
    return "\n\n".join(parts) + "\n"
