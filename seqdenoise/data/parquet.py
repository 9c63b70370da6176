"""Prepared parquet files to shuffled batches of tensors, in bounded memory."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from seqdenoise.data.batches import Batch, BatchReader, Pool
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.locations import Location
from seqdenoise.data.options import ReadOptions
from seqdenoise.data.vocabulary import Vocabulary, VocabularyCounter
from seqdenoise.errors import DataError


def read_batches(
    location: Location, *, epoch: int = 0, first_step: int = 0, **options: Any
) -> Iterator[Batch]:
    """Yields every row once, in batches; all but the last are full.

    With a seed, the row groups come in a random order, and rows are permuted within a pool of
    `pool_row_groups` of them; what does not fill a batch joins the next pool. Memory is that of two
    pools. The order depends on seed and epoch alone. Without a seed it is the files'.

    Args:
        location: A parquet file, a folder of them, a glob, a URL, or a sequence of these, as
            `seqdenoise.data.locations.find_files` takes them.
        epoch: At least 0; another order for each.
        first_step: How many batches to leave out. They are not decoded, except for row groups that
            the first batch's pool needs.
        **options: The attributes of `seqdenoise.data.options.ReadOptions`: `columns`, `sequences`,
            `batch_size` and `max_length`, and what is optional.

    Yields:
        Each scalar column `[B]`; each `T__F` `[B, L]`, oldest to newest, zeros (`Vocabulary.PAD`)
        on the right; `T__length` int32 `[B]`, the number of real entries. Masks come from the
        length: a zero may be a real number. Null lists read as empty ones. With `ragged`, `T__F`
        has the entries of all lists one after another, and `T__row_splits` int64 `[B + 1]` says
        where each list starts and the last ends.

    Raises:
        DataError: The file is missing, empty or damaged, or a column is missing, of the wrong type,
            null or NaN without a fill, or a type's lists differ in length, or no row passes
            `where`; names the place.
        ValueError: The options contradict each other or are out of range.
    """
    chosen = ReadOptions(**options)
    _check_start(epoch, first_step)
    return _batches(location, chosen, epoch, first_step)


def _check_start(epoch: int, first_step: int) -> None:
    if epoch < 0 or first_step < 0:
        raise ValueError(
            f"expected epoch and first_step of at least 0. Received: {epoch}, {first_step}"
        )


def _batches(
    location: Location, options: ReadOptions, epoch: int, first_step: int
) -> Iterator[Batch]:
    with ParquetSource(location) as source:
        reader = BatchReader(source, options)
    for pool in reader.pools(epoch, first_step):
        for index in range(pool.num_batches):
            yield reader.batch(pool, index)


def parquet_dataset(
    location: Location, *, first_epoch: int = 0, first_step: int = 0, **options: Any
) -> tf.data.Dataset:
    """`read_batches` as a `tf.data.Dataset`.

    Each iteration over the dataset is the next epoch, hence another order under `shuffle_seed`; a
    new dataset starts at `first_epoch` again. Two iterators at once count as two epochs. The number
    of batches is known to Keras (`dataset.cardinality()`).

    To resume, give the number of batches consumed before as `first_step`, for instance from a
    `seqdenoise.data.position.ReadPosition`, and otherwise the same arguments: the remaining
    batches are identical. The first iteration then yields the rest of its epoch; its length
    differs from the later ones', so the dataset has no cardinality unless an epoch ends there.
    Under `fit`, use `dataset.repeat()` and `steps_per_epoch`.

    Args:
        location: As in `read_batches`.
        first_epoch: The epoch of the first iteration.
        first_step: How many batches of it, and of the epochs after it, were consumed before.
        **options: As in `read_batches`.

    Returns:
        A dataset of dicts as `read_batches` yields them, as tensors. With `ragged`, each `T__F` is
        a `tf.RaggedTensor` with int64 row splits, which its type's fields share, instead of values
        and `T__row_splits`.

    Raises:
        DataError: The schema is wrong, as in `read_batches`. What is found only while reading
            surfaces as TensorFlow's error; see `data_errors`.
        ValueError: As in `read_batches`.
    """
    chosen = ReadOptions(**options)
    _check_start(first_epoch, first_step)
    with ParquetSource(location) as source:
        reader = BatchReader(source, chosen)
        scalars, lists = reader.decoder.dtypes(source)
    skipped, first_step = divmod(first_step, reader.num_steps)
    return _Stream(reader, chosen, scalars, lists).dataset(first_epoch + skipped, first_step)


class _Stream:
    """Pools that a generator reads, and batches that are cut from them one by one.

    Only the pools pass through `from_generator`, as numbers: for a batch it costs twice the time of
    a plain function call. Those are called in turn and in order.
    """

    def __init__(
        self,
        reader: BatchReader,
        options: ReadOptions,
        scalars: dict[str, npt.DTypeLike],
        lists: dict[str, npt.DTypeLike],
    ):
        self._reader = reader
        self._options = options
        self._pools: dict[int, Pool | Exception] = {}
        self._numbers = itertools.count()
        dense: list[int | None] = [None] if options.ragged else [None, None]
        if not options.ragged and not options.length_buckets:
            dense = [None, options.max_length]
        self._specs = {
            name: tf.TensorSpec(dense if name in lists else [None], dtype)
            for name, dtype in (scalars | lists).items()
        }
        for kind in options.sequences:
            self._specs[f"{kind}__length"] = tf.TensorSpec([None], tf.int32)
            self._specs[f"{kind}__row_splits"] = tf.TensorSpec([None], tf.int64)
        # Ragged tensors have the row splits in them.
        splits = [f"{kind}__row_splits" for kind in options.sequences] if options.ragged else []
        self._names = [name for name in reader.names if name not in splits]

    def dataset(self, first_epoch: int, first_step: int) -> tf.data.Dataset:
        positions = itertools.chain(
            [(first_epoch, first_step)], ((epoch, 0) for epoch in itertools.count(first_epoch + 1))
        )
        number = tf.TensorSpec([], tf.int64)
        pools = tf.data.Dataset.from_generator(
            lambda: self._announce(*next(positions)), output_signature=(number, number)
        )
        # The next pool is decoded while the batches of this one are consumed.
        dataset = pools.prefetch(1).flat_map(
            lambda key, size: tf.data.Dataset.range(size).map(
                lambda index: self._tensors(key, index)
            )
        )
        if first_step == 0:
            steps = tf.data.experimental.assert_cardinality(self._reader.num_steps)
            dataset = dataset.apply(steps)
        return dataset.prefetch(2)

    def _announce(self, epoch: int, first_step: int) -> Iterator[tuple[int, int]]:
        """Yields the key and the number of batches of each pool."""
        mine: list[int] = []
        try:
            for pool in self._checked_pools(epoch, first_step):
                size = 1 if isinstance(pool, Exception) else pool.num_batches
                if not size:
                    continue
                key = next(self._numbers)
                self._pools[key] = pool
                mine.append(key)
                del pool
                yield key, size
            # Taken only after the last pool's batches, so that this generator outlives its pools,
            # and whatever ends an iterator early ends here with them still known.
            yield -1, 0
        finally:
            for key in mine:
                self._pools.pop(key, None)

    def _checked_pools(self, epoch: int, first_step: int) -> Iterator[Pool | Exception]:
        try:
            yield from self._reader.pools(epoch, first_step)
        except Exception as error:
            # Raised in its turn, after the batches before it.
            yield error

    def _tensors(self, key: tf.Tensor, index: tf.Tensor) -> dict[str, Any]:
        stacked = self._reader.stacked
        types = [self._specs[names[0]].dtype for names in stacked]
        parts: dict[str, Any] = {}
        for names, stack in zip(
            stacked, tf.numpy_function(self._stacks, [key, index], types), strict=True
        ):
            stack.set_shape([len(names), *self._specs[names[0]].shape])
            parts |= {name: stack[i] for i, name in enumerate(names)}
        if self._options.ragged:
            for kind in self._options.sequences:
                splits = parts[f"{kind}__row_splits"]
                for name in self._options.fields(kind):
                    parts[name] = tf.RaggedTensor.from_row_splits(
                        parts[name], splits, validate=False
                    )
        return {name: parts[name] for name in self._names}

    def _stacks(self, key: Any, index: Any) -> list[npt.NDArray[Any]]:
        pool = self._pools[int(key)]
        if isinstance(pool, Exception):
            raise pool
        if index == pool.num_batches - 1:
            del self._pools[int(key)]
        return self._reader.stacks(pool, int(index))


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
    location: Location, columns: Mapping[str, Sequence[str]], *, min_count: int = 1
) -> dict[str, Vocabulary]:
    """Fits vocabularies on files, a row group at a time.

    Args:
        location: As in `read_batches`: the training rows, and only these.
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
    with ParquetSource(location) as source:
        source.require(needed)
        for index in range(source.num_row_groups):
            table = source.read_row_group(index, needed)
            for name, counter in counters.items():
                for column in columns[name]:
                    try:
                        counter.add(table[column])
                    except DataError as error:
                        raise DataError(
                            f"{source.place(index)}, column `{column}`: {error}"
                        ) from error
    return {name: counter.vocabulary(min_count=min_count) for name, counter in counters.items()}
