"""How a log is cut into pieces of work that fit in memory."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import seqdenoise
from pipelines.config import RunConfig
from pipelines.log_folder import TableName
from seqdenoise.data.files import ParquetSource

# What one process holds at a time: two processes and their leader take 904 MB in `bench sequences`.
PART_ROWS = 1_000_000
BUCKET_ROWS = 1_000_000

# Changes whenever the same log and run file would give other files.
_FORMAT = 1


@dataclass(frozen=True)
class LogPart:
    """Consecutive row groups of one table.

    Attributes:
        table: Which table.
        number: Its place among the table's parts.
        files: The files that hold the row groups.
        first: The first row group, counted through `files`.
        end: One past the last.
        most_rows: Of how many rows at a time it is read: a row group may be larger than memory.
    """

    table: TableName
    number: int
    files: tuple[str, ...]
    first: int
    end: int
    most_rows: int

    @property
    def name(self) -> str:
        """A file name for what comes of it."""
        return f"{self.table}-{self.number:05d}"


@dataclass(frozen=True)
class Plan:
    """The pieces of one preparation.

    Attributes:
        parts: What the first stage deals to buckets, in log order within each table.
        num_buckets: What the second stage works through.
        fingerprint: Equal for equal run files, log files and sizes of pieces.
    """

    parts: tuple[LogPart, ...]
    num_buckets: int
    fingerprint: str


def make_plan(
    config: RunConfig,
    sources: Mapping[TableName, ParquetSource],
    *,
    part_rows: int = PART_ROWS,
    bucket_rows: int = BUCKET_ROWS,
) -> Plan:
    """Cuts a log into parts, and decides on the number of buckets.

    Args:
        config: The run.
        sources: As `open_log` opened them.
        part_rows: Rows of a part, at most, but for a row group that is larger, which is read in
            slices of so many.
        bucket_rows: Events, or impressions, of a bucket, on average and at most.

    Returns:
        The plan.
    """
    parts = [part for name in sources for part in _parts(name, sources[name], part_rows)]
    most = max(sources[name].num_rows for name in ("events", "impressions"))
    num_buckets = max(1, -(-most // bucket_rows))
    described = {
        "format": _FORMAT,
        "version": seqdenoise.__version__,
        "prepare": config.prepare.model_dump(mode="json"),
        "time_unit": config.log.time_unit,
        "files": {name: _stamps(source) for name, source in sources.items()},
        "items": _stamp(config.log_table("items")),
        "part_rows": part_rows,
        "num_buckets": num_buckets,
    }
    digest = hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16)
    return Plan(tuple(parts), num_buckets, digest.hexdigest())


def _parts(table: TableName, source: ParquetSource, part_rows: int) -> Iterator[LogPart]:
    taken: list[int] = []
    number = rows = 0
    for index, more in enumerate(source.row_group_rows):
        if taken and rows + more > part_rows:
            yield _part(table, number, source, taken, part_rows)
            number, rows, taken = number + 1, 0, []
        taken.append(index)
        rows += more
    # A table without row groups is a part too: its columns are wanted.
    if taken or not number:
        yield _part(table, number, source, taken, part_rows)


def _part(
    table: TableName, number: int, source: ParquetSource, groups: list[int], part_rows: int
) -> LogPart:
    located = [source.part_of(index) for index in groups]
    files = tuple(dict.fromkeys(name for name, _ in located)) or (source.files[0][0],)
    # Files between the first and the last are taken whole, so only the start needs a number.
    first = located[0][1] if located else 0
    return LogPart(table, number, files, first, first + len(groups), part_rows)


def _stamps(source: ParquetSource) -> list[tuple[str, int, int]]:
    return [(name, size, _stamp(name)) for name, size in source.files]


def _stamp(name: str) -> int:
    """When a file was last written; 0 for one that is not on this machine's disks."""
    try:
        return Path(name).stat().st_mtime_ns
    except OSError:
        return 0
