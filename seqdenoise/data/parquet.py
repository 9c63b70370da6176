"""Prepared parquet files to shuffled batches of dense tensors, in bounded memory."""

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seqdenoise.data.files import ParquetSource
from seqdenoise.data.row_groups import RowGroupDecoder, Rows, concatenate
from seqdenoise.data.vocabulary import Vocabulary, VocabularyCounter
from seqdenoise.errors import DataError

Path = str | os.PathLike[str]
Batch = dict[str, npt.NDArray[Any]]


def read_batches(
    path: Path,
    *,
    columns: Sequence[str],
    sequences: Mapping[str, Sequence[str]],
    batch_size: int,
    max_length: int,
    encoders: Mapping[str, Vocabulary] | None = None,
    fill: Mapping[str, float] | None = None,
    shuffle_seed: int | None = None,
    epoch: int = 0,
    pool_row_groups: int = 8,
) -> Iterator[Batch]:
    """Yields every row once, in batches; all but the last are full.

    With a seed, the row groups come in a random order, and rows are permuted within a pool of
    `pool_row_groups` of them; what does not fill a batch joins the next pool. Memory is that of two
    pools. The order depends on seed and epoch alone. Without a seed it is the file's.

    Args:
        path: A parquet file.
        columns: Scalar columns.
        sequences: For each type T the fields F of its list columns `T__F`, for instance
            `{"click": ["item"]}` for `click__item`.
        batch_size: B.
        max_length: L; longer lists keep their last L entries, the most recent ones.
        encoders: Vocabularies by column name (`click__item` for a list column). Other columns pass
            as numbers: integers and booleans int64, floats float32.
        fill: By column name without vocabulary, what nulls and NaN read as; without it they are
            refused. A float fill turns an integer column into float32.
        shuffle_seed: At least 0; None for the file's order.
        epoch: At least 0; another order for each.
        pool_row_groups: How many row groups are permuted together.

    Yields:
        Each scalar column `[B]`; each `T__F` `[B, L]`, oldest to newest, zeros (`Vocabulary.PAD`)
        on the right; `T__length` int32 `[B]`, the number of real entries. Masks come from the
        length: a zero may be a real number. Null lists read as empty ones.

    Raises:
        DataError: The file is missing, empty or damaged, or a column is missing, of the wrong type,
            null or NaN without a fill, or a type's lists differ in length; names the place.
    """
    decoder = RowGroupDecoder(
        columns=columns,
        sequences=sequences,
        encoders=encoders or {},
        fill=fill or {},
        max_length=max_length,
    )
    _check_sizes(batch_size, pool_row_groups)
    return _batches(path, decoder, batch_size, shuffle_seed, epoch, pool_row_groups)


def _check_sizes(batch_size: int, pool_row_groups: int) -> None:
    if batch_size < 1 or pool_row_groups < 1:
        raise ValueError(
            "expected batch_size >= 1 and pool_row_groups >= 1. "
            f"Received: {batch_size}, {pool_row_groups}"
        )


def _batches(
    path: Path,
    decoder: RowGroupDecoder,
    batch_size: int,
    shuffle_seed: int | None,
    epoch: int,
    pool_row_groups: int,
) -> Iterator[Batch]:
    random = None if shuffle_seed is None else np.random.default_rng([shuffle_seed, epoch])
    # A plain generator: closing or dropping it closes the file, and there is no thread to leak.
    with ParquetSource(path) as source:
        decoder.check(source)
        groups = np.arange(source.num_row_groups)
        if random is not None:
            groups = random.permutation(groups)
        left: list[Rows] = []
        for start in range(0, len(groups), pool_row_groups):
            chosen = groups[start : start + pool_row_groups]
            pool = concatenate([*left, *(decoder.read(source, int(index)) for index in chosen)])
            order = np.arange(pool.num_rows)
            if random is not None:
                order = random.permutation(order)
            last = start + pool_row_groups >= len(groups)
            full = pool.num_rows - (0 if last else pool.num_rows % batch_size)
            for first in range(0, full, batch_size):
                yield pool.padded(order[first : min(first + batch_size, full)], decoder.max_length)
            left = [pool.take(order[full:])]


def parquet_dataset(
    path: Path,
    *,
    columns: Sequence[str],
    sequences: Mapping[str, Sequence[str]],
    batch_size: int,
    max_length: int,
    encoders: Mapping[str, Vocabulary] | None = None,
    fill: Mapping[str, float] | None = None,
    shuffle_seed: int | None = None,
    first_epoch: int = 0,
    pool_row_groups: int = 8,
) -> tf.data.Dataset:
    """`read_batches` as a `tf.data.Dataset` of dense batches.

    Each iteration over the dataset is the next epoch, hence another order under `shuffle_seed`; a
    new dataset starts at `first_epoch` again. Two iterators at once count as two epochs. The number
    of batches is known to Keras (`dataset.cardinality()`).

    Args:
        path: As in `read_batches`.
        columns: As in `read_batches`.
        sequences: As in `read_batches`.
        batch_size: As in `read_batches`.
        max_length: As in `read_batches`.
        encoders: As in `read_batches`.
        fill: As in `read_batches`.
        shuffle_seed: As in `read_batches`.
        first_epoch: The epoch of the first iteration.
        pool_row_groups: As in `read_batches`.

    Returns:
        A dataset of dicts as `read_batches` yields them, as tensors.

    Raises:
        DataError: The file's schema is wrong, as in `read_batches`. What is found only while
            reading surfaces as TensorFlow's error; see `data_errors`.
    """
    decoder = RowGroupDecoder(
        columns=columns,
        sequences=sequences,
        encoders=encoders or {},
        fill=fill or {},
        max_length=max_length,
    )
    _check_sizes(batch_size, pool_row_groups)
    with ParquetSource(path) as source:
        decoder.check(source)
        scalars, lists = decoder.dtypes(source)
        num_batches = -(-source.num_rows // batch_size)
    signature = {name: tf.TensorSpec([None], dtype) for name, dtype in scalars.items()}
    signature |= {name: tf.TensorSpec([None, max_length], dtype) for name, dtype in lists.items()}
    signature |= {name: tf.TensorSpec([None], tf.int32) for name in decoder.lengths()}
    epochs = itertools.count(first_epoch)

    def batches() -> Iterator[Batch]:
        return _batches(path, decoder, batch_size, shuffle_seed, next(epochs), pool_row_groups)

    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(num_batches)).prefetch(2)


_DATA_ERROR = re.compile(r"DataError: (.*)")


@contextmanager
def data_errors() -> Iterator[None]:
    """Turns a `DataError` that TensorFlow wrapped in its own error back into a `DataError`.

    Put it around what iterates over a `parquet_dataset`, for instance `fit`.
    """
    try:
        yield
    except tf.errors.OpError as error:
        found = _DATA_ERROR.search(str(error.message))
        if found is None:
            raise
        raise DataError(found.group(1).strip()) from error


def fit_vocabularies(
    path: Path, columns: Mapping[str, Sequence[str]], *, min_count: int = 1
) -> dict[str, Vocabulary]:
    """Fits vocabularies on a file, a row group at a time.

    Args:
        path: A parquet file: the training rows, and only these.
        columns: For each vocabulary the columns that share it, scalar or list, for instance
            `{"item": ["item", "click__item"]}`.
        min_count: As in `Vocabulary.fit`; an event counts once for each sequence it is in.

    Returns:
        The vocabularies, by the keys of `columns`.

    Raises:
        DataError: The file cannot be read, or a column is missing or not of integers or strings.
    """
    counters = {name: VocabularyCounter() for name in columns}
    needed = list(dict.fromkeys(itertools.chain.from_iterable(columns.values())))
    with ParquetSource(path) as source:
        source.require(needed)
        for index in range(source.num_row_groups):
            table = source.read_row_group(index, needed)
            for name, counter in counters.items():
                for column in columns[name]:
                    try:
                        counter.add(table[column])
                    except DataError as error:
                        raise DataError(
                            f"{source.path}, row group {index}, column `{column}`: {error}"
                        ) from error
    return {name: counter.vocabulary(min_count=min_count) for name, counter in counters.items()}
