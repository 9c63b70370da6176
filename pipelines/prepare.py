"""Raw logs to one row an impression with point-in-time sequences, split by time."""

import json
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.config import ConfigError, RunConfig, SplitConfig, TimeUnit
from pipelines.log_folder import Log, read_log
from pipelines.statistics import training_statistics
from seqdenoise.data.atomic import atomic_folder
from seqdenoise.data.columns import IntArray, decoded
from seqdenoise.data.lookup import Lookup
from seqdenoise.data.sequences import SequenceBuilder, sequence_columns
from seqdenoise.errors import DataError

SPLITS = ("train", "valid", "test")
ROW_GROUP_ROWS = 8192

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

_logger = logging.getLogger(__name__)


def to_ticks(moment: datetime | int, unit: TimeUnit) -> int:
    """The first tick at or after a moment, by integer arithmetic only.

    Args:
        moment: A time stamp with a zone, or ticks already.
        unit: What a tick is.

    Returns:
        Ticks since 1970-01-01 UTC.

    Example:
        >>> to_ticks(datetime.fromisoformat("2022-05-01T00:00:00+08:00"), "ms")
        1651334400000
    """
    if isinstance(moment, int):
        return moment
    nanoseconds = (moment - _EPOCH) // timedelta(microseconds=1) * 1000
    return -(-nanoseconds // _NANOSECONDS[unit])


def split_rows(times: IntArray, split: SplitConfig, unit: TimeUnit) -> dict[str, IntArray]:
    """The rows of each split, in their order.

    Args:
        times: int64 `[rows]`, ticks.
        split: The half-open ranges.
        unit: What a tick is.

    Returns:
        For `train`, `valid` and `test` the row numbers, int64.

    Raises:
        ConfigError: The bounds are not in increasing order.
    """
    named = {
        name: to_ticks(value, unit)
        for name in ("train_from", "valid_from", "test_from", "test_until")
        if (value := getattr(split, name)) is not None
    }
    bounds = list(named.values())
    if any(later <= earlier for earlier, later in pairwise(bounds)):
        raise ConfigError(f"prepare.split: expected increasing times. Received: {named} in {unit}")
    number = np.full(len(times), 0)
    number[times >= named["valid_from"]] = 1
    number[times >= named["test_from"]] = 2
    if "train_from" in named:
        number[times < named["train_from"]] = -1
    if "test_until" in named:
        number[times >= named["test_until"]] = -1
    return {name: np.flatnonzero(number == index) for index, name in enumerate(SPLITS)}


def _check_names(config: RunConfig, impressions: pa.Table, log_folder: Path) -> None:
    prepare = config.prepare
    names = ["user", "item", "timestamp", *prepare.labels, *prepare.context_fields]
    names += [*prepare.item_fields, *prepare.user_fields]
    names += [name for name in ["weight"] if name in impressions.schema.names]
    for kind in prepare.sequence_types:
        names += [*sequence_columns(kind, prepare.item_fields), f"{kind}__length"]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"{log_folder}: expected output columns of distinct names (labels, context, item and "
            f"user fields, sequences). Received: {twice} more than once"
        )


def _side_fields(log: Log, impressions: pa.Table) -> pa.Table:
    """Joins the candidate's item fields and the user's fields; unknown keys read as null."""
    for table, key in ((log.items, "item"), (log.users, "user")):
        if table is None:
            continue
        fields = [name for name in table.schema.names if name != key]
        lookup = Lookup(table, key, fields, place=str(log.folder / f"{key}s.parquet"))
        rows = lookup.rows(impressions[key].to_numpy())
        for field in fields:
            impressions = impressions.append_column(field, lookup.take(field, rows))
    return impressions


def _row_groups(table: pa.Table, builder: SequenceBuilder) -> Iterator[tuple[pa.Table, pa.Table]]:
    for start in range(0, len(table), ROW_GROUP_ROWS):
        part = table.slice(start, ROW_GROUP_ROWS)
        yield part, builder.build(part.select(["user", "timestamp"]))


def _write_split(
    path: Path, table: pa.Table, builder: SequenceBuilder, config: RunConfig
) -> dict[str, Any]:
    """Writes one split a row group at a time and returns what `prepare.json` says of it."""
    prepare = config.prepare
    counts = {kind: np.zeros(prepare.max_length + 1, np.int64) for kind in prepare.sequence_types}
    writer = None
    try:
        for scalars, sequences in _row_groups(table, builder):
            columns = [*scalars.columns, *sequences.columns]
            whole = pa.table(columns, names=[*scalars.schema.names, *sequences.schema.names])
            if writer is None:
                writer = pq.ParquetWriter(
                    path, whole.schema, compression="zstd", write_page_checksum=True
                )
            writer.write_table(whole, row_group_size=ROW_GROUP_ROWS)
            for kind, count in counts.items():
                lengths = pc.list_value_length(sequences[f"{kind}__item"]).to_numpy()
                count += np.bincount(lengths, minlength=len(count))
    finally:
        if writer is not None:
            writer.close()
    times = table["timestamp"].to_numpy()
    return {
        "rows": len(table),
        "users": pc.count_distinct(table["user"]).as_py(),
        "first_timestamp": int(times[0]),
        "last_timestamp": int(times[-1]),
        "label_rates": {name: pc.mean(table[name]).as_py() for name in prepare.labels},
        "sequences": {kind: _length_statistics(count) for kind, count in counts.items()},
    }


def _length_statistics(count: npt.NDArray[np.int64]) -> dict[str, float]:
    rows = int(count.sum())
    return {
        "mean_length": float(count @ np.arange(len(count)) / rows),
        "median_length": int(np.searchsorted(np.cumsum(count), (rows + 1) // 2)),
        "empty_rate": float(count[0] / rows),
        "full_rate": float(count[-1] / rows),
    }


def prepare(config: RunConfig) -> None:
    """Writes `train.parquet`, `valid.parquet`, `test.parquet` and two JSON files.

    One row an impression, sorted by time, user and item: keys, labels, context fields, `weight`
    where the log has it, the candidate's item fields, user fields, and each type's sequences as
    `SequenceBuilder.build` makes them. `prepare.json` counts what was written, and
    `statistics.json` holds the `training_statistics`. Nothing is left behind where it fails.

    Args:
        config: The run.

    Raises:
        DataError: The log cannot be used, a split has no rows, or two columns share a name.
        ConfigError: The split's times are not in order.
    """
    settings = config.prepare
    log = read_log(config)
    _check_names(config, log.impressions, log.folder)
    times = log.impressions["timestamp"].to_numpy()
    rows = split_rows(times, settings.split, config.log.time_unit)
    for name, of_split in rows.items():
        if not len(of_split):
            raise DataError(
                f"{log.folder / 'impressions.parquet'}, column `timestamp`: expected impressions "
                f"for the {name} split. Received: none; all {len(times)} selected lie between "
                f"{times.min()} and {times.max()} {config.log.time_unit}"
            )
    outside = len(times) - sum(map(len, rows.values()))
    if outside:
        _logger.info("%d impressions lie outside the splits and are left out", outside)

    builder = SequenceBuilder(
        log.events,
        types=settings.sequence_types,
        max_length=settings.max_length,
        histories=log.histories,
        items=log.items,
        item_fields=settings.item_fields,
    )
    plain = ["user", "item", "timestamp", *settings.labels, *settings.context_fields]
    plain += [name for name in ["weight"] if name in log.impressions.schema.names]
    shown = pa.table({name: decoded(log.impressions[name]) for name in plain})
    summary: dict[str, Any] = {
        "time_unit": config.log.time_unit,
        "max_length": settings.max_length,
        "events": _events_per_type(log.events),
        "impressions_outside_splits": outside,
        "splits": {},
    }
    with atomic_folder(config.prepared_folder) as folder:
        for name, of_split in rows.items():
            table = shown.take(pa.array(of_split))
            keys = (table[key].to_numpy() for key in ("item", "user", "timestamp"))
            table = _side_fields(log, table.take(pa.array(np.lexsort(tuple(keys)))))
            statistics = _write_split(folder / f"{name}.parquet", table, builder, config)
            summary["splits"][name] = statistics
            _logger.info("%s: %d impressions", name, len(table))
        (folder / "prepare.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
        until = to_ticks(settings.split.valid_from, config.log.time_unit)
        learnt = training_statistics(config, log, until=until, train=folder / "train.parquet")
        (folder / "statistics.json").write_text(json.dumps(learnt, indent=2) + "\n", "utf-8")


def _events_per_type(events: pa.Table) -> dict[str, int]:
    counted = {
        entry["values"]: entry["counts"]
        for entry in pc.value_counts(decoded(events["type"])).to_pylist()
    }
    return dict(sorted(counted.items()))
