"""The `bench sequences` job: our sequence building beside others, in one alternating run."""

import hashlib
import logging
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.bench_log import TYPES, write_bench_log
from pipelines.bench_machine import machine, versions
from pipelines.config import ConfigError
from pipelines.json_report import write_json_report
from pipelines.process_usage import run_measured
from pipelines.sequence_contenders import CONTENDERS, Contender
from seqdenoise.data.columns import flatten_lists
from seqdenoise.data.files import ParquetSource

# The ratios' denominator, and what the others' rows are compared with.
BASELINE = "seqdenoise, in memory"

_OURS = "seqdenoise"
_ROWS_COMPARED = 20_000
_DISTRIBUTIONS = ("seqdenoise", "pyarrow", "numpy", "pandas", "polars", "duckdb")

_logger = logging.getLogger(__name__)


def bench_sequences(
    *,
    events: int = 20_000_000,
    impressions: int = 2_000_000,
    rounds: int = 3,
    folder: Path | None = None,
    output: Path | None = None,
    contenders: Sequence[Contender] = CONTENDERS,
) -> dict[str, Any]:
    """Measures every contender on the same log, each in turn within each round.

    Every turn is a process of its own, from a log in parquet to sequences in parquet; what it takes
    to start Python counts too. The first round's output is compared with `BASELINE`'s.

    Args:
        events: Events of the log, at least 1.
        impressions: Impressions of the log, at least 1.
        rounds: Turns of each contender, at least 1.
        folder: Where log and outputs are written, and removed again; by default where the system
            keeps temporary files.
        output: The JSON file of everything measured.
        contenders: Who takes part; those whose packages are missing are listed as such.

    Returns:
        `machine`, `versions`, `events`, `impressions`, `rows_compared`; `not_installed`, from
        contender to packages; and `results`, from contender to `turns` (`wall_seconds`,
        `cpu_seconds` and `peak_megabytes` of each), the medians of these under the same names, and
        `cpu_ratio` to `BASELINE` with `cpu_ratio_range` (lowest and highest of a round). A rival
        that fails, or that makes other sequences, has `error` alone.

    Raises:
        ConfigError: A number is out of range.
        RuntimeError: A contender of ours failed.
    """
    if min(events, impressions, rounds) < 1:
        raise ConfigError(
            "expected at least one event, impression and round. "
            f"Received: {events}, {impressions}, {rounds}"
        )
    present = [one for one in contenders if not one.missing()]
    rows: dict[str, dict[str, Any]] = {one.name: {"turns": []} for one in present}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        log, made = Path(name) / "log", Path(name) / "made"
        _logger.info("bench: writing %d events and %d impressions", events, impressions)
        write_bench_log(log, events=events, impressions=impressions)
        step = max(1, impressions // _ROWS_COMPARED)
        digests: dict[str, str] = {}
        for index in range(rounds):
            for one in present:
                if "error" in rows[one.name]:
                    continue
                _logger.info("bench: round %d of %d, %s", index + 1, rounds, one.name)
                try:
                    rows[one.name]["turns"].append(_turn(one, log, made))
                    if index == 0:
                        digests[one.name] = output_digest(made, step)
                        _compare(one.name, digests)
                except RuntimeError as error:
                    if one.name.startswith(_OURS):
                        raise
                    _logger.warning("bench: %s: %s", one.name, error)
                    rows[one.name] = {"error": str(error)}
    _summarise(rows)
    report = {
        "machine": machine(),
        "versions": versions(_DISTRIBUTIONS),
        "events": events,
        "impressions": impressions,
        "rounds": rounds,
        "rows_compared": -(-impressions // step),
        "not_installed": {one.name: one.missing() for one in contenders if one.missing()},
        "results": rows,
    }
    write_json_report(report, output)
    return report


def _turn(contender: Contender, log: Path, made: Path) -> dict[str, float]:
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    command = [sys.executable, "-m", "pipelines.sequence_contenders"]
    used = run_measured(
        [*command, contender.name, str(log), str(made / contender.output)],
        # TensorFlow would cost our own, and only them, 600 MB.
        {"SEQDENOISE_DATA_ONLY": "1"},
        Path(__file__).parents[1],
    )
    return vars(used)


def output_digest(made: Path, step: int) -> str:
    """A hash of every `step`-th impression's sequences, whatever the order and types of the rows.

    Args:
        made: A folder of parquet files, at any depth, with `row` and each type's lists.
        step: Rows with a number that `step` divides count.

    Returns:
        The hash as hexadecimal digits.

    Raises:
        RuntimeError: There are no rows at all.
    """
    names = ["row", *(f"{kind}__{name}" for kind in TYPES for name in ("item", "timestamp"))]
    # A split of prepared rows is a folder, under a name like a file's.
    files = sorted(str(path) for path in made.rglob("*.parquet") if path.is_file())
    parts = []
    for file in files:
        with ParquetSource(file) as source:
            for index in range(source.num_row_groups):
                table = source.read_row_group(index, names)
                chosen = np.flatnonzero(table["row"].to_numpy() % step == 0)
                parts.append(table.take(pa.array(chosen)))
    if not parts:
        raise RuntimeError(f"{made}: expected rows in parquet files. Received: files {files}")
    table = pa.concat_tables(parts, promote_options="permissive")
    table = table.take(pc.sort_indices(table["row"]))
    digest = hashlib.sha256(table["row"].cast(pa.int64()).to_numpy().tobytes())
    for name in names[1:]:
        flat, lengths = flatten_lists(table[name])
        digest.update(lengths.tobytes())
        digest.update(flat.cast(pa.int64()).to_numpy().tobytes())
    return digest.hexdigest()


def _compare(name: str, digests: Mapping[str, str]) -> None:
    expected = digests.get(BASELINE, digests[name])
    if digests[name] != expected:
        raise RuntimeError(
            f"{name}: expected the sequences of {BASELINE}, {expected[:12]}. "
            f"Received: others, {digests[name][:12]}"
        )


def _summarise(rows: Mapping[str, dict[str, Any]]) -> None:
    def turns(row: Mapping[str, Any], what: str) -> np.ndarray:
        return np.array([turn[what] for turn in row["turns"]])

    for row in rows.values():
        if "error" in row:
            continue
        for what in ("wall_seconds", "cpu_seconds", "peak_megabytes"):
            row[what] = float(np.median(turns(row, what)))
        ratios = turns(row, "cpu_seconds") / turns(rows[BASELINE], "cpu_seconds")
        row["cpu_ratio"] = row["cpu_seconds"] / float(
            np.median(turns(rows[BASELINE], "cpu_seconds"))
        )
        row["cpu_ratio_range"] = [float(ratios.min()), float(ratios.max())]


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report as a Markdown table, and a line about what it was measured on."""
    lines = [
        f"| {report['events']:,} events, {report['impressions']:,} impressions | CPU, s | ratio "
        "(range) | wall, s | peak memory, MB |",
        "| :--- | ---: | ---: | ---: | ---: |",
    ]
    notes = []
    for name, row in report["results"].items():
        if "error" in row:
            lines.append(f"| {name} | failed | | | |")
            notes.append(f"{name}: {row['error'].splitlines()[0]}")
            continue
        low, high = row["cpu_ratio_range"]
        lines.append(
            f"| {name} | {row['cpu_seconds']:.1f} | {row['cpu_ratio']:.2f} ({low:.2f} to "
            f"{high:.2f}) | {row['wall_seconds']:.1f} | {row['peak_megabytes']:.0f} |"
        )
    for name, packages in report["not_installed"].items():
        notes.append(f"{name}: not installed ({', '.join(packages)})")
    known = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    computer = report["machine"]
    notes.append(f"{computer['cores']} cores of {computer['processor']}; {known}.")
    return "\n".join([*lines, "", *notes])
