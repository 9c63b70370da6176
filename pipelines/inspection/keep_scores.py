"""The keep score of every event of a prepared file, written as parquet in bounded memory."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.inspection.finished_run import CANDIDATE, FinishedRun
from pipelines.inspection.progress import progress
from seqdenoise.data.columns import IntArray, decoded, flatten_lists, ranges
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.parquet import data_errors
from seqdenoise.errors import DataError

logger = logging.getLogger(__name__)

_BATCH_ROWS = 1024


class RowCounts(NamedTuple):
    """What `write_keep_scores` has seen.

    Attributes:
        rows: Rows of the prepared file.
        rows_without_trusted: Those among them that have no trusted event to judge by.
        events: Events written, each once for every row whose history it is in.
    """

    rows: int
    rows_without_trusted: int
    events: int


def row_slices(source: ParquetSource, columns: Sequence[str], num_rows: int) -> Iterator[pa.Table]:
    """Columns of a file in its order, `num_rows` at a time and the rest last."""
    left = source.schema.empty_table().select(list(columns))
    for index in range(source.num_row_groups):
        left = pa.concat_tables([left, source.read_row_group(index, columns)])
        while len(left) >= num_rows:
            yield left.slice(0, num_rows)
            left = left.slice(num_rows)
    if len(left):
        yield left


class _Events(NamedTuple):
    """The events of one type in a batch, row after row; every entry `[events]`."""

    row: IntArray
    position: IntArray
    item: pa.Array
    timestamp: pa.Array | None


def _events(raw: pa.Table, kind: str, max_length: int) -> _Events:
    """The last `max_length` events of every row: those that the model sees."""
    values, lengths = flatten_lists(raw[f"{kind}__item"])
    kept = np.minimum(lengths, max_length)
    chosen = pa.array(ranges(np.cumsum(lengths) - kept, kept))
    timestamp = None
    if f"{kind}__timestamp" in raw.schema.names:
        times, _ = flatten_lists(raw[f"{kind}__timestamp"])
        timestamp = times.take(chosen)
    return _Events(
        row=np.repeat(np.arange(len(raw)), kept),
        position=ranges(np.zeros(len(raw), np.int64), kept),
        item=values.take(chosen),
        timestamp=timestamp,
    )


def _schema(source: ParquetSource, kinds: Sequence[str]) -> pa.Schema:
    lists = [source.schema.field(f"{kind}__item").type for kind in kinds]
    item = {decoded(pa.array([], kind.value_type)).type for kind in lists}
    if len(item) > 1:
        raise DataError(
            f"{source.path}: expected items of one type in the sequences {list(kinds)}. "
            f"Received: {sorted(map(str, item))}"
        )
    return pa.schema(
        {
            "row": pa.int64(),
            "user": source.schema.field("user").type,
            "timestamp": source.schema.field("timestamp").type,
            "type": pa.string(),
            "position": pa.int32(),
            "item": item.pop(),
            "event_timestamp": pa.int64(),
            "keep_score": pa.float32(),
            "has_trusted": pa.bool_(),
        }
    )


def _table(
    raw: pa.Table,
    scores: Mapping[str, npt.NDArray[np.float32]],
    has_trusted: npt.NDArray[np.bool_],
    first_row: int,
    schema: pa.Schema,
) -> pa.Table:
    """The events of one batch, by row, then type, then position."""
    parts = []
    for kind, score in scores.items():
        events = _events(raw, kind, score.shape[1])
        rows, size = pa.array(events.row), len(events.row)
        columns = {
            "row": events.row + first_row,
            "user": raw["user"].take(rows),
            "timestamp": raw["timestamp"].take(rows),
            "type": pa.array([kind] * size, pa.string()),
            "position": events.position.astype(np.int32),
            "item": events.item,
            "event_timestamp": pa.nulls(size) if events.timestamp is None else events.timestamp,
            "keep_score": score[events.row, events.position],
            "has_trusted": has_trusted[events.row],
        }
        parts.append(pa.table(columns).cast(schema))
    table = pa.concat_tables(parts)
    return table.take(pa.array(np.argsort(table["row"].to_numpy(), kind="stable")))


def _has_trusted(run: FinishedRun, batch: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    has = np.full(len(batch["user"]), CANDIDATE in run.trusted)
    for kind in run.trusted_types:
        has |= batch[f"{kind}__length"].numpy() > 0
    return has


def write_keep_scores(run: FinishedRun, prepared: Path, path: Path) -> RowCounts:
    """Writes one row for every event of a noisy type in every row's history.

    Columns: `row` (number of the row in the prepared file), `user` and `timestamp` of that row;
    `type`, `position` (0 is the oldest event that the model sees), `item` and `event_timestamp` of
    the event (null where it is not known); `keep_score` float32; `has_trusted`, whether the row has
    a trusted event to judge by: where it has none all scores are 1. Sorted by row, then type in the
    run file's order, then position.

    Args:
        run: The run whose ranker embeds the events.
        prepared: A prepared file.
        path: The parquet file to write.

    Returns:
        What was counted on the way.

    Raises:
        DataError: The prepared file is missing, damaged, or lacks a column.
    """
    kinds = run.noisy_types
    with ParquetSource(prepared) as source, data_errors():
        columns = ["user", "timestamp", *(f"{kind}__item" for kind in kinds)]
        source.require(columns)
        times = [f"{kind}__timestamp" for kind in kinds]
        columns += [name for name in times if name in source.schema.names]
        schema = _schema(source, kinds)
        batches = run.dataset(prepared, _BATCH_ROWS)
        rows = without = events = 0
        with (
            progress("keep scores", source.num_rows) as advance,
            pq.ParquetWriter(path, schema, compression="zstd") as writer,
        ):
            slices = row_slices(source, columns, _BATCH_ROWS)
            for batch, raw in zip(batches, slices, strict=True):
                judged = run.keep_scores(batch)
                scores = {kind: judged[kind].numpy() for kind in kinds}
                has_trusted = _has_trusted(run, batch)
                table = _table(raw, scores, has_trusted, rows, schema)
                if len(table):
                    writer.write_table(table, row_group_size=len(table))
                rows += len(raw)
                without += int((~has_trusted).sum())
                events += len(table)
                advance(len(raw))
    return RowCounts(rows, without, events)
