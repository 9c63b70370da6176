"""Pools of decoded rows, in the planned order, and the batches cut from them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqdenoise.data.columns import IntArray
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.memory import Recycler
from seqdenoise.data.options import ReadOptions
from seqdenoise.data.plan import PlannedPool, ReadingPlan
from seqdenoise.data.row_groups import RowGroupDecoder, Rows, RowsBuilder
from seqdenoise.errors import DataError

Batch = dict[str, npt.NDArray[Any]]
# By column, its flat values and where a batch's go.
_Fields = dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]


@dataclass(frozen=True)
class Pool:
    """Decoded rows, and the batches to cut from them.

    Attributes:
        rows: The rows, not yet permuted.
        order: int64 `[rows]`, which row comes when.
        bounds: Where in `order` the batches begin and end; one more than there are batches.
    """

    rows: Rows
    order: IntArray
    bounds: list[int]

    @property
    def num_batches(self) -> int:
        """How many batches there are."""
        return len(self.bounds) - 1

    def rows_of(self, batch: int) -> IntArray:
        """The rows of a batch."""
        return self.order[self.bounds[batch] : self.bounds[batch + 1]]


class BatchReader:
    """Everything that reads a source's batches, for as many epochs as wanted.

    Args:
        source: The files.
        options: What to read.

    Attributes:
        num_steps: Batches of an epoch.
        decoder: How columns become numbers.
        stacked: Names of the parts of a batch that are one array in `stacks`.

    Raises:
        DataError: As `RowGroupDecoder`; or no row is left to read, or too few for the shards.
    """

    def __init__(self, source: ParquetSource, options: ReadOptions):
        self._source = source
        self._options = options
        self.decoder = RowGroupDecoder(options, source)
        if not source.num_rows:
            raise DataError(f"{source.path}: expected at least one row. Received: 0 rows")
        self._counts = np.array(source.row_group_rows, np.int64)
        self._groups = np.arange(source.num_row_groups)
        if self.decoder.filter is not None:
            self._counts = self.decoder.filter.counts(source)
            # Without the others a pool has as many rows as it should.
            self._groups = np.flatnonzero(self._counts)
            if not len(self._groups):
                raise DataError(
                    f"{source.path}: expected at least one row that passes `where`. "
                    f"Received: none of {source.num_rows} rows"
                )
        try:
            self._plan = ReadingPlan(
                self._counts[self._groups],
                batch_size=options.batch_size,
                pool_row_groups=options.pool_row_groups,
                shuffle_seed=options.shuffle_seed,
                shard=options.shard,
            )
        except DataError as error:
            raise DataError(f"{source.path}: {error}") from error
        self.num_steps = self._plan.num_steps
        forms: dict[tuple[str, str, Any], list[str]] = {}
        scalars, lists = self.decoder.dtypes(source)
        for name, dtype in scalars.items():
            forms.setdefault(("row", "", dtype), []).append(name)
        for kind in options.sequences:
            for name in options.fields(kind):
                form = ("entries", kind) if options.ragged else ("list", "")
                forms.setdefault((*form, lists[name]), []).append(name)
            forms.setdefault(("row", "", np.int32), []).append(f"{kind}__length")
            if options.ragged:
                forms.setdefault(("splits", "", np.int64), []).append(f"{kind}__row_splits")
        self._forms, self.stacked = list(forms), list(forms.values())
        # Three, since each serves blocks of about one size.
        self._pool_memory, self._batch_memory, self._scratch = Recycler(), Recycler(), Recycler()

    def pools(self, epoch: int, first_step: int = 0) -> Iterator[Pool]:
        """The pools of an epoch that hold its batches from `first_step` on.

        A plain generator: closing or dropping it closes the file, and there is no thread to leak.
        """
        left: Rows | None = None
        with self._source.again() as source:
            for planned in self._plan.pools(epoch, first_step):
                if left is None:
                    left = self._left_over(source, planned)
                builder = RowsBuilder(len(planned.order), self._pool_memory)
                builder.add(left)
                for piece in planned.pieces:
                    part = self._read(source, piece.group)
                    builder.add(part.slice(piece.start, piece.stop))
                    del part
                rows = builder.rows()
                del builder
                bounds = [0, *planned.ends]
                left = rows.take(planned.order[bounds[-1] :])
                yield Pool(rows, planned.order, bounds[planned.first :])
                # Or the memory could not serve again while the next pool is read.
                del rows

    def _read(self, source: ParquetSource, group: int) -> Rows:
        index = int(self._groups[group])
        rows = self.decoder.read(source, index)
        if rows.num_rows != self._counts[index]:
            raise DataError(
                f"{source.place(index)}: expected {self._counts[index]} rows as before. "
                f"Received: {rows.num_rows}"
            )
        return rows

    def _left_over(self, source: ParquetSource, planned: PlannedPool) -> Rows:
        """What the pool before the first one would have left over to it."""
        if not len(planned.left):
            return Rows(0, {}, {})
        builder, places = RowsBuilder(len(planned.left), self._pool_memory), []
        for group, rows, positions in self._plan.locate(planned.left):
            builder.add(self._read(source, group).take(rows))
            places.append(positions)
        return builder.rows().take(np.argsort(np.concatenate(places)))

    @property
    def names(self) -> list[str]:
        """The parts of a batch, in order: scalars, then each type's fields and lengths."""
        result = list(self._options.columns)
        for kind in self._options.sequences:
            result += [*self._options.fields(kind), f"{kind}__length"]
            result += [f"{kind}__row_splits"] if self._options.ragged else []
        return result

    def batch(self, pool: Pool, index: int) -> Batch:
        """One batch of a pool, as `read_batches` yields it."""
        stacks = zip(self.stacked, self.stacks(pool, index), strict=True)
        parts = {
            name: array for names, stack in stacks for name, array in zip(names, stack, strict=True)
        }
        return {name: parts[name] for name in self.names}

    def stacks(self, pool: Pool, index: int) -> list[npt.NDArray[Any]]:
        """One batch, where parts of equal shape and type are one array, as `stacked` says.

        TensorFlow takes few arrays faster than many, and cuts them up without copying.
        """
        rows, chosen = pool.rows, pool.rows_of(index)
        num_rows, options = len(chosen), self._options
        lengths = {kind: lists.lengths[chosen] for kind, lists in rows.lists.items()}
        totals = {kind: int(some.sum()) for kind, some in lengths.items()}
        width = options.max_length
        if options.length_buckets:
            longest = max((int(some.max()) for some in lengths.values()), default=0)
            width = next(bucket for bucket in options.length_buckets if bucket >= longest)
        shapes = {"row": (num_rows,), "list": (num_rows, width), "splits": (num_rows + 1,)}
        stacks = self._batch_memory.arrays(
            [
                ((len(names), *shapes.get(form, (totals.get(kind, 0),))), dtype)
                for names, (form, kind, dtype) in zip(self.stacked, self._forms, strict=True)
            ]
        )
        batch = {
            name: array
            for names, stack in zip(self.stacked, stacks, strict=True)
            for name, array in zip(names, stack, strict=True)
        }
        for name, values in rows.scalars.items():
            np.take(values, chosen, out=batch[name], mode="clip")
        for kind, lists in rows.lists.items():
            batch[f"{kind}__length"][:] = lengths[kind]
            fields = {name: (flat, batch[name]) for name, flat in lists.fields.items()}
            if options.ragged:
                splits = batch[f"{kind}__row_splits"]
                splits[0] = 0
                np.cumsum(lengths[kind], out=splits[1:])
                self._gather(fields, lists.starts[chosen], lengths[kind])
            else:
                self._pad(fields, lists.starts[chosen], lengths[kind])
        return stacks

    def _gather(self, fields: _Fields, starts: IntArray, lengths: IntArray) -> None:
        """Writes the entries of all lists one after another."""
        (sources,) = self._scratch.arrays([((int(lengths.sum()),), np.int64)])
        _fill_ranges(sources, starts, lengths)
        for flat, result in fields.values():
            np.take(flat, sources, out=result, mode="clip")

    def _pad(self, fields: _Fields, starts: IntArray, lengths: IntArray) -> None:
        """Writes each list from the start of its row on, and zeros (`Vocabulary.PAD`) behind it."""
        total = int(lengths.sum())
        sources, places, *entries = self._scratch.arrays(
            [
                ((total,), np.int64),
                ((total,), np.int64),
                *(((total,), flat.dtype) for flat, _ in fields.values()),
            ]
        )
        width = next(iter(fields.values()))[1].shape[1]
        _fill_ranges(sources, starts, lengths)
        _fill_ranges(places, np.arange(len(lengths)) * width, lengths)
        for (flat, result), taken in zip(fields.values(), entries, strict=True):
            np.take(flat, sources, out=taken, mode="clip")
            result.fill(0)
            result.reshape(-1)[places] = taken


def _fill_ranges(result: IntArray, starts: IntArray, lengths: IntArray) -> None:
    """Writes the positions `start, start + 1, ...` of every range, as `columns.ranges` does."""
    if not len(result):
        return
    filled = np.flatnonzero(lengths)
    starts, lengths = starts[filled], lengths[filled]
    # A running sum of ones, and of jumps where ranges start.
    result.fill(1)
    result[0] = starts[0]
    result[np.cumsum(lengths[:-1])] = starts[1:] - (starts[:-1] + lengths[:-1] - 1)
    np.cumsum(result, out=result)
