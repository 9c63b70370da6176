"""The first stage: a part of one table, its rows ordered by user bucket."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import RunConfig
from pipelines.log_folder import empty_part, read_slices
from pipelines.preparation.plan import LogPart
from pipelines.splits import OUTSIDE, SPLITS, split_bounds, split_codes
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.user_hash import user_buckets


def partition(
    config: RunConfig, part: LogPart, num_buckets: int, counts: dict[str, Any]
) -> Iterator[list[pa.Table]]:
    """Reads a part of the log and deals its rows to buckets, a chunk at a time.

    Args:
        config: The run.
        part: Which row groups.
        num_buckets: How many buckets there are.
        counts: Is filled, and complete after the last chunk: of events and histories with the rows
            of each of their `types`, of impressions with those `read`, `selected` by
            `prepare.where`, in the `splits` and `outside` of them, and with the `first` and `last`
            selected time.

    Yields:
        At least once the rows of each bucket, in log order, as `read_slices` gives them: of events
        and histories only the run's sequence types, `type` being the position there (int16); of the
        impressions only those in a split, with the column `split`, the position in `SPLITS`.

    Raises:
        DataError: As `read_slices`.
    """
    if part.table in ("events", "histories"):
        counts["types"] = {}
    elif part.table == "impressions":
        counts |= {"read": 0, "selected": 0, "outside": 0, "splits": [0] * len(SPLITS)}
    with ParquetSource(list(part.files)) as source:
        empty = empty_part(config, part.table, source)
        tables, waiting, dealt = [_counted(config, part, 0, empty, counts)], 0, False
        for index in range(part.first, part.end):
            for num_read, rows in read_slices(config, part.table, source, index, part.most_rows):
                if waiting and waiting + num_read > part.most_rows:
                    yield _dealt(tables, num_buckets)
                    tables, waiting, dealt = tables[:1], 0, True
                tables.append(_counted(config, part, num_read, rows, counts))
                waiting += num_read
        if waiting or not dealt:
            yield _dealt(tables, num_buckets)


def _counted(
    config: RunConfig, part: LogPart, num_read: int, rows: pa.Table, counts: dict[str, Any]
) -> pa.Table:
    if part.table == "impressions":
        return _in_splits(config, rows, num_read, counts)
    return _of_types(config, rows, counts) if "type" in rows.column_names else rows


def _dealt(tables: list[pa.Table], num_buckets: int) -> list[pa.Table]:
    whole = pa.concat_tables(tables, promote_options="permissive")
    if num_buckets == 1:
        return [whole]
    buckets = user_buckets(whole["user"].to_numpy(), num_buckets)
    small = buckets.astype(np.uint16) if num_buckets < 2**16 else buckets  # radix sort for these
    ordered = whole.take(pa.array(np.argsort(small, kind="stable")))
    sizes = np.bincount(buckets, minlength=num_buckets)
    starts = np.cumsum(sizes) - sizes
    return [
        ordered.slice(start, size)
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]


def _of_types(config: RunConfig, rows: pa.Table, counts: dict[str, Any]) -> pa.Table:
    names = config.prepare.sequence_types
    codes = pc.index_in(rows["type"], value_set=pa.array(names, pa.string()))
    found = Counter(counts["types"])
    known = np.bincount(codes.drop_null().to_numpy(), minlength=len(names))
    found.update({name: count for name, count in zip(names, known.tolist(), strict=True) if count})
    if codes.null_count:
        for entry in pc.value_counts(rows["type"].filter(codes.is_null())).to_pylist():
            found[entry["values"]] += entry["counts"]
        rows, codes = rows.filter(codes.is_valid()), codes.drop_null()
    counts["types"] = dict(found)
    kinds = codes.cast(pa.int16())
    return rows.set_column(rows.schema.get_field_index("type"), "type", kinds)


def _in_splits(
    config: RunConfig, rows: pa.Table, num_read: int, counts: dict[str, Any]
) -> pa.Table:
    times = rows["timestamp"].to_numpy()
    codes = split_codes(times, split_bounds(config.prepare.split, config.log.time_unit))
    in_splits = np.bincount(codes[codes != OUTSIDE], minlength=len(SPLITS))
    counts["read"] += num_read
    counts["selected"] += len(rows)
    counts["outside"] += len(rows) - int(in_splits.sum())
    counts["splits"] = (in_splits + counts["splits"]).tolist()
    if len(times):
        counts["first"] = min(counts.get("first", int(times[0])), int(times.min()))
        counts["last"] = max(counts.get("last", int(times[0])), int(times.max()))
    rows = rows.append_column("split", pa.array(codes))
    return rows.filter(pa.array(codes != OUTSIDE))


def write_chunk(path: Path, buckets: Sequence[pa.Table]) -> None:
    """Writes what `partition` yielded: an Arrow file with one record batch a bucket.

    Args:
        path: The file.
        buckets: The rows of each bucket.
    """
    schema = buckets[0].schema
    # Not compressed: of integers that halves the bytes and takes a tenth of the job's time.
    with pa.ipc.new_file(path, schema) as writer:
        for rows in buckets:
            # Of text that exceeds a batch, 2 GB of it, there would be several.
            (batch,) = rows.combine_chunks().to_batches() or [
                pa.RecordBatch.from_pylist([], schema)
            ]
            writer.write_batch(batch)


def read_bucket(paths: Sequence[Path], bucket: int) -> pa.Table:
    """One bucket's rows out of all chunks of a table, in the order of `paths`."""
    tables = []
    for path in paths:
        with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
            tables.append(pa.Table.from_batches([reader.get_batch(bucket)]))
    return pa.concat_tables(tables, promote_options="permissive")
