"""Prepared rows to measure readers on, in parquet and as TFRecords."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

PARQUET, TFRECORD = "rows.parquet", "rows.tfrecord"
TYPES = ("click", "cart", "buy")
FIELDS = ("item", "brand", "timestamp")
LISTS = tuple(f"{kind}__{field}" for kind in TYPES for field in FIELDS)
SCALARS = ("row", "user", "label", "price")
MAX_LENGTH = 50
GROUP_ROWS = 8192

_MEAN_LENGTHS = {"click": 20, "cart": 5, "buy": 2}
_LONGEST = 200


def make_rows(num_rows: int, *, first: int = 0) -> pa.Table:
    """Rows `first` and on: four scalar columns and three lists of integers for each of three types.

    Lists have a geometric number of entries, 20, 5 and 2 on average and 200 at most.
    """
    rng = np.random.default_rng([first, num_rows])
    columns: dict[str, Any] = {
        "row": np.arange(first, first + num_rows),
        "user": rng.integers(0, 1_000_000, num_rows),
        "label": rng.integers(0, 2, num_rows),
        "price": rng.random(num_rows, np.float32),
    }
    for kind, mean in _MEAN_LENGTHS.items():
        lengths = np.minimum(rng.geometric(1 / (mean + 1), num_rows) - 1, _LONGEST)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        total = int(offsets[-1])
        values = {
            "item": rng.zipf(1.2, total) % 100_000,
            "brand": rng.integers(0, 5000, total),
            "timestamp": 1_700_000_000_000 + rng.integers(0, 1_000_000_000, total),
        }
        for field in FIELDS:
            lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values[field])
            columns[f"{kind}__{field}"] = lists
    return pa.table(columns)


def write_bench_rows(folder: Path, num_rows: int, *, tfrecord: bool = True) -> None:
    """Writes `rows.parquet`, and the same rows as `rows.tfrecord`.

    The records hold only the last `MAX_LENGTH` entries of a list, for what reads them keeps the
    first.

    Args:
        folder: Where; it is created.
        num_rows: At least 1.
        tfrecord: Whether to write the records.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = list(_tables(num_rows))
    with pq.ParquetWriter(folder / PARQUET, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    if not tfrecord:
        return
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(folder / TFRECORD)) as records:
        for table in tables:
            for record in _records(table):
                records.write(record)


def _tables(num_rows: int) -> Iterator[pa.Table]:
    for first in range(0, num_rows, GROUP_ROWS):
        yield make_rows(min(GROUP_ROWS, num_rows - first), first=first)


def _records(table: pa.Table) -> Iterator[bytes]:
    import tensorflow as tf

    def feature(values: npt.NDArray[Any]) -> tf.train.Feature:
        if values.dtype == np.float32:
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    scalars = {name: table[name].to_numpy() for name in SCALARS}
    lists = {name: table[name].combine_chunks() for name in LISTS}
    offsets = {name: column.offsets.to_numpy() for name, column in lists.items()}
    flat = {name: column.values.to_numpy() for name, column in lists.items()}
    for row in range(len(table)):
        features = {name: feature(values[row : row + 1]) for name, values in scalars.items()}
        for name in LISTS:
            start, stop = offsets[name][row : row + 2]
            features[name] = feature(flat[name][max(start, stop - MAX_LENGTH) : stop])
        yield tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
