"""Ways from prepared rows to batches of tensors, each as its own documentation advises.

Every contender reads `rows.parquet` (or the same rows as records) and yields batches: a tensor or
an array for each scalar column, and `[B, 50]` for each list column, its last 50 entries from the
left on and zeros behind them. `pyarrow, decoding alone` yields Arrow tables and is the measure.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.bench_rows import (
    FIELDS,
    GROUP_ROWS,
    LISTS,
    MAX_LENGTH,
    PARQUET,
    SCALARS,
    TFRECORD,
    TYPES,
)

Batch: TypeAlias = Mapping[str, Any] | pa.Table
# Makes a new iterator over all rows with each call, one call an epoch.
Epoch: TypeAlias = Callable[[], Iterator[Batch]]

# What a shuffled contender permutes together: eight row groups, as ours does by default.
_POOL_ROWS = 8 * GROUP_ROWS


@dataclass(frozen=True)
class Contender:
    """One way to read batches.

    Attributes:
        name: As reports call it.
        open: From the folder of the rows and the batch size to its epochs.
        shuffled: Whether the rows come in random order.
        packages: What it needs besides our own dependencies.
        tensorflow: Whether it makes tensors.
    """

    name: str
    open: Callable[[Path, int], Epoch]
    shuffled: bool = False
    packages: tuple[str, ...] = ()
    tensorflow: bool = True

    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.packages if find_spec(name) is None]


def _decode(folder: Path, batch_size: int) -> Epoch:
    def epoch() -> Iterator[Batch]:
        with pq.ParquetFile(folder / PARQUET) as file:
            for index in range(file.num_row_groups):
                yield file.read_row_group(index, columns=[*SCALARS, *LISTS])

    return epoch


def _options(batch_size: int, seed: int | None) -> dict[str, Any]:
    return {
        "columns": SCALARS,
        "sequences": dict.fromkeys(TYPES, FIELDS),
        "batch_size": batch_size,
        "max_length": MAX_LENGTH,
        "shuffle_seed": seed,
    }


def _ours(seed: int | None) -> Callable[[Path, int], Epoch]:
    def open_dataset(folder: Path, batch_size: int) -> Epoch:
        from seqdenoise.data.parquet import parquet_dataset

        return parquet_dataset(folder / PARQUET, **_options(batch_size, seed)).__iter__

    return open_dataset


def _our_arrays(folder: Path, batch_size: int) -> Epoch:
    from seqdenoise.data.batches import BatchReader
    from seqdenoise.data.files import ParquetSource
    from seqdenoise.data.options import ReadOptions

    with ParquetSource(folder / PARQUET) as source:
        reader = BatchReader(source, ReadOptions(**_options(batch_size, 1)))

    def epoch() -> Iterator[Batch]:
        for pool in reader.pools(0):
            for index in range(pool.num_batches):
                yield reader.batch(pool, index)

    return epoch


def _tfrecord(shuffled: bool) -> Callable[[Path, int], Epoch]:
    def open_dataset(folder: Path, batch_size: int) -> Epoch:
        import tensorflow as tf

        features: dict[str, Any] = {
            name: tf.io.FixedLenFeature([], tf.float32 if name == "price" else tf.int64)
            for name in SCALARS
        }
        features |= {
            name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in LISTS
        }

        def parse(records: tf.Tensor) -> dict[str, tf.Tensor]:
            batch = tf.io.parse_example(records, features)
            dense = {name: batch[name].to_tensor(shape=[None, MAX_LENGTH]) for name in LISTS}
            return {**batch, **dense}

        dataset = tf.data.TFRecordDataset(str(folder / TFRECORD), buffer_size=1 << 20)
        if shuffled:
            dataset = dataset.shuffle(_POOL_ROWS, seed=1)
        return dataset.batch(batch_size).map(parse).prefetch(2).__iter__

    return open_dataset


def pad(values: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Lists `offsets[i]` to `offsets[i + 1]` of `values` as `[lists, MAX_LENGTH]`."""
    lengths = np.minimum(np.diff(offsets), MAX_LENGTH)
    real = np.arange(MAX_LENGTH) < lengths[:, None]
    dense = np.zeros(real.shape, values.dtype)
    places = np.arange(MAX_LENGTH) + (offsets[1:] - lengths)[:, None]
    dense[real] = values[places[real]]
    return dense


def _arrow_batch(table: pa.Table) -> dict[str, npt.NDArray[Any]]:
    batch = {name: table[name].to_numpy() for name in SCALARS}
    for name in LISTS:
        column = table[name].combine_chunks()
        flat = column.flatten().to_numpy()
        lengths = column.value_lengths().to_numpy()
        batch[name] = pad(flat, np.concatenate([[0], np.cumsum(lengths)]))
    return batch


def _hugging_face(folder: Path) -> Any:
    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    # Copies the rows into Arrow files of its own, once; that does not count.
    return datasets.Dataset.from_parquet(
        str(folder / PARQUET), cache_dir=str(folder / "hugging_face")
    )


def _hugging_face_arrow(folder: Path, batch_size: int) -> Epoch:
    dataset = _hugging_face(folder)

    def epoch() -> Iterator[Batch]:
        import tensorflow as tf

        shuffled = dataset.shuffle(seed=1).with_format("arrow")
        for table in shuffled.iter(batch_size=batch_size):
            yield {name: tf.constant(values) for name, values in _arrow_batch(table).items()}

    return epoch


def _hugging_face_stream(folder: Path, batch_size: int) -> Epoch:
    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    dataset = datasets.load_dataset(
        "parquet", data_files=str(folder / PARQUET), split="train", streaming=True
    )

    def epoch() -> Iterator[Batch]:
        import tensorflow as tf

        for table in dataset.with_format("arrow").iter(batch_size=batch_size):
            yield {name: tf.constant(values) for name, values in _arrow_batch(table).items()}

    return epoch


def _hugging_face_tensorflow(folder: Path, batch_size: int) -> Epoch:
    dataset = _hugging_face(folder).with_format("numpy")

    def collate(rows: list[dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
        batch = {name: np.array([row[name] for row in rows]) for name in SCALARS}
        for name in LISTS:
            lists = [row[name] for row in rows]
            offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
            batch[name] = pad(np.concatenate(lists).astype(np.int64), offsets)
        return batch

    return dataset.to_tf_dataset(
        batch_size=batch_size, shuffle=True, collate_fn=collate, prefetch=True
    ).__iter__


def _pandas(folder: Path, batch_size: int) -> Epoch:
    def epoch() -> Iterator[Batch]:
        import pandas as pd
        import tensorflow as tf

        frame = pd.read_parquet(folder / PARQUET)
        frame = frame.sample(frac=1, random_state=1)
        for start in range(0, len(frame), batch_size):
            part = frame.iloc[start : start + batch_size]
            batch = {name: tf.constant(part[name].to_numpy()) for name in SCALARS}
            for name in LISTS:
                batch[name] = tf.constant(
                    tf.keras.utils.pad_sequences(
                        part[name], MAX_LENGTH, np.int64, padding="post", truncating="pre"
                    )
                )
            yield batch

    return epoch


DECODING = "pyarrow, decoding alone"
SHUFFLED = "seqdenoise, shuffled"

CONTENDERS = (
    Contender(DECODING, _decode, tensorflow=False),
    Contender(SHUFFLED, _ours(1), shuffled=True),
    Contender("seqdenoise, shuffled, NumPy batches", _our_arrays, shuffled=True, tensorflow=False),
    Contender("seqdenoise, in file order", _ours(None)),
    Contender("TFRecord, shuffled", _tfrecord(True), shuffled=True),
    Contender("TFRecord, in file order", _tfrecord(False)),
    Contender("Hugging Face, Arrow batches, shuffled", _hugging_face_arrow, True, ("datasets",)),
    Contender("Hugging Face, streamed in file order", _hugging_face_stream, False, ("datasets",)),
    Contender(
        "Hugging Face, to_tf_dataset, shuffled", _hugging_face_tensorflow, True, ("datasets",)
    ),
    Contender("pandas objects, shuffled", _pandas, True),
)
