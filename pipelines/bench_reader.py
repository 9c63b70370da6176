"""The `bench reader` job: our reading of prepared rows beside others, in one alternating run."""

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.bench_machine import machine, versions
from pipelines.bench_rows import PARQUET, TFRECORD, write_bench_rows
from pipelines.config import ConfigError
from pipelines.json_report import write_json_report
from pipelines.reader_contenders import CONTENDERS, DECODING, SHUFFLED, Contender

_OURS = "seqdenoise"
_DISTRIBUTIONS = ("seqdenoise", "pyarrow", "numpy", "tensorflow", "datasets", "pandas")
_EPOCHS_OF_MEMORY = 10
_ABANDONED = 20

_logger = logging.getLogger(__name__)


class _Worker:
    """The process of one contender."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **request: Any) -> dict[str, Any]:
        """Waits for the answer to a request.

        Raises:
            RuntimeError: It failed, or the process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


@contextmanager
def _worker(contender: Contender, folder: Path, batch_size: int) -> Iterator[_Worker]:
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if not contender.tensorflow:
        environment["SEQDENOISE_DATA_ONLY"] = "1"
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "pipelines.reader_worker"),
            *(contender.name, str(folder), str(batch_size)),
        ],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Warnings of libraries that would hide the progress; a failure is in the answer.
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield _Worker(process)
        finally:
            process.kill()


def bench_reader(
    *,
    rows: int = 200_000,
    batch_size: int = 1024,
    rounds: int = 5,
    folder: Path | None = None,
    output: Path | None = None,
    contenders: Sequence[Contender] = CONTENDERS,
) -> dict[str, Any]:
    """Measures every contender on the same rows, each in turn within each round.

    A turn is one epoch: all rows become batches, which are dropped. Each contender is a process of
    its own, which waits between its turns; its first epoch does not count.

    Args:
        rows: How many, at least 1.
        batch_size: Rows of a batch.
        rounds: Turns of each contender, at least 1.
        folder: Where the rows are written, and removed again; by default where the system keeps
            temporary files.
        output: The JSON file of everything measured.
        contenders: Who takes part, `DECODING` among them; those whose packages are missing are
            listed as such.

    Returns:
        `machine`, `versions`, `rows`, `batch_size`, `rounds`, `parquet_megabytes` and
        `tfrecord_megabytes`; `not_installed`, from contender to packages; `results`, from contender
        to `turns` (`cpu_seconds` and `wall_seconds` of each, and the process's resident
        `megabytes` after it), their medians under the same names, and `cpu_ratio` and `wall_ratio`
        to `DECODING` with their ranges over the rounds; `memory`, resident megabytes after each of
        10 epochs of `SHUFFLED`; and `abandoned`, threads and open files before and after 20
        iterators of it were dropped after a batch. A rival that fails has `error` alone.

    Raises:
        ConfigError: A number is out of range.
        RuntimeError: A contender of ours failed.
    """
    if min(rows, batch_size, rounds) < 1:
        raise ConfigError(
            "expected at least one row, row a batch and round. "
            f"Received: {rows}, {batch_size}, {rounds}"
        )
    present = [one for one in contenders if not one.missing()]
    results: dict[str, dict[str, Any]] = {one.name: {"turns": []} for one in present}
    report: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(_DISTRIBUTIONS),
        "rows": rows,
        "batch_size": batch_size,
        "rounds": rounds,
        "not_installed": {one.name: one.missing() for one in contenders if one.missing()},
        "results": results,
    }
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        data = Path(temporary)
        _logger.info("bench: writing %d rows", rows)
        write_bench_rows(data, rows)
        report["parquet_megabytes"] = (data / PARQUET).stat().st_size / 1e6
        report["tfrecord_megabytes"] = (data / TFRECORD).stat().st_size / 1e6
        with ExitStack() as stack:
            workers = {
                one.name: stack.enter_context(_worker(one, data, batch_size)) for one in present
            }
            for index in range(-1, rounds):
                for name, worker in workers.items():
                    if "error" not in results[name]:
                        _logger.info("bench: round %d of %d, %s", index + 1, rounds, name)
                        _turn(name, worker, rows, results[name], counts=index >= 0)
            if SHUFFLED in workers:
                _logger.info("bench: memory and threads of %s", SHUFFLED)
                worker = workers[SHUFFLED]
                report["memory"] = [
                    worker.ask(do="epoch")["megabytes"] for _ in range(_EPOCHS_OF_MEMORY)
                ]
                report["abandoned"] = worker.ask(do="abandon", times=_ABANDONED)
    _summarise(results)
    write_json_report(report, output)
    return report


def _turn(name: str, worker: _Worker, rows: int, result: dict[str, Any], *, counts: bool) -> None:
    try:
        turn = worker.ask(do="epoch")
        if turn["rows"] != rows:
            raise RuntimeError(f"expected {rows} rows. Received: {turn['rows']}")
    except RuntimeError as error:
        if name == DECODING or name.startswith(_OURS):
            raise
        _logger.warning("bench: %s failed: %s", name, error)
        result.clear()
        result["error"] = str(error)
        return
    if counts:
        result["turns"].append(turn)


def _summarise(results: Mapping[str, dict[str, Any]]) -> None:
    def turns(name: str, what: str) -> Any:
        return np.array([turn[what] for turn in results[name]["turns"]])

    for name, row in results.items():
        if "error" in row:
            continue
        for what in ("cpu_seconds", "wall_seconds", "megabytes"):
            row[what] = float(np.median(turns(name, what)))
        for what in ("cpu", "wall"):
            own, base = (turns(one, f"{what}_seconds") for one in (name, DECODING))
            row[f"{what}_ratio"] = float(np.median(own) / np.median(base))
            row[f"{what}_ratio_range"] = [float(np.min(own / base)), float(np.max(own / base))]


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report as a Markdown table, and lines about memory, threads and the machine."""
    lines = [
        f"| {report['rows']:,} rows, batches of {report['batch_size']:,} | CPU, s | ratio (range) |"
        " wall, s | ratio (range) | resident, MB |",
        "| :--- | ---: | ---: | ---: | ---: | ---: |",
    ]
    notes = []
    for name, row in report["results"].items():
        if "error" in row:
            lines.append(f"| {name} | failed | | | | |")
            notes.append(f"{name}: {row['error'].splitlines()[0]}")
            continue
        cells = []
        for what in ("cpu", "wall"):
            low, high = row[f"{what}_ratio_range"]
            cells.append(f"{row[f'{what}_seconds']:.2f}")
            cells.append(f"{row[f'{what}_ratio']:.2f} ({low:.2f} to {high:.2f})")
        lines.append(f"| {name} | {' | '.join(cells)} | {row['megabytes']:.0f} |")
    lines.append("")
    if "memory" in report:
        memory = ", ".join(f"{megabytes:.0f}" for megabytes in report["memory"])
        lines.append(f"Resident memory of {SHUFFLED} after each epoch, MB: {memory}.")
        for name, (before, after) in report["abandoned"].items():
            label = name.replace("_", " ").capitalize()
            lines.append(
                f"{label} before and after {_ABANDONED} abandoned iterators: {before}, {after}."
            )
    for name, packages in report["not_installed"].items():
        notes.append(f"{name}: not installed ({', '.join(packages)})")
    sizes = f"Parquet {report['parquet_megabytes']:.0f} MB, "
    sizes += f"records {report['tfrecord_megabytes']:.0f} MB."
    used = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    where = f"{report['machine']['cores']} cores of {report['machine']['processor']}; {used}."
    return "\n".join([*lines, *notes, sizes, where])
