"""Which rows come in which batch: decided from row counts alone, before anything is decoded."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seqdenoise.data.columns import IntArray
from seqdenoise.errors import DataError


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` of a row group."""

    group: int
    start: int
    stop: int


@dataclass(frozen=True)
class PlannedPool:
    """Rows that are permuted together.

    Attributes:
        left: Numbers of the rows that the pool before left over, as `ReadingPlan.locate` reads
            them. They come first in the pool.
        pieces: The rows that come after them.
        order: int64 `[rows]`, a permutation of the pool's rows.
        ends: Where in `order` each batch ends; the rest is left over to the next pool.
        first: The first batch to yield.
    """

    left: IntArray
    pieces: list[Piece]
    order: IntArray
    ends: list[int]
    first: int


class ReadingPlan:
    """The order of rows and the bounds of batches, for each epoch.

    It depends on its arguments alone, so workers that know them agree without talking, and a
    reader finds its place again.

    Args:
        counts: int64, the rows of each row group that are read.
        batch_size: Rows of a batch.
        pool_row_groups: Row groups that are permuted together.
        shuffle_seed: None for the files' order.
        shard: Index of this worker and number of workers, each of which gets a part of the rows.

    Raises:
        DataError: There are fewer rows than shards, or batches of one row cannot come out even.
    """

    def __init__(
        self,
        counts: IntArray,
        *,
        batch_size: int,
        pool_row_groups: int,
        shuffle_seed: int | None,
        shard: tuple[int, int],
    ):
        self._counts = counts
        self._bases = np.cumsum(counts) - counts
        self._batch_size = batch_size
        # In the files' order pools change nothing; the smallest one needs the least memory.
        self._pool_size = 1 if shuffle_seed is None else pool_row_groups
        self._seed = shuffle_seed
        index, self._num_shards = shard
        total = int(counts.sum())
        self._first_row = total * index // self._num_shards
        self._stop_row = total * (index + 1) // self._num_shards
        largest = -(-total // self._num_shards)
        self.num_steps = -(-largest // batch_size)
        """Batches of an epoch, the same for every shard."""
        if total < self._num_shards:
            raise DataError(f"expected a row for each of {shard[1]} shards. Received: {total} rows")
        if batch_size == 1 and total % self._num_shards:
            raise DataError(
                f"expected rows that {self._num_shards} shards divide, or batches of more than one "
                f"row. Received: {total} rows, batch_size 1"
            )

    def pools(self, epoch: int, first_step: int = 0) -> Iterator[PlannedPool]:
        """The pools of an epoch, from the one that has batch `first_step` on."""
        random = None if self._seed is None else np.random.default_rng([self._seed, epoch])
        groups = np.arange(len(self._counts))
        if random is not None:
            groups = random.permutation(groups)
        pieces = self._pieces(groups)
        # One row short of the largest shard, this one may have a batch less: it then shares its
        # last batch out over two steps.
        rows = self._stop_row - self._first_row
        short = rows == (self.num_steps - 1) * self._batch_size
        left = np.empty(0, np.int64)
        step = 0
        for start in range(0, len(pieces), self._pool_size):
            chosen = pieces[start : start + self._pool_size]
            bases = [self._bases[piece.group] for piece in chosen]
            numbers = [
                np.arange(base + piece.start, base + piece.stop)
                for base, piece in zip(bases, chosen, strict=True)
            ]
            pool = np.concatenate([left, *numbers])
            order = np.arange(len(pool))
            if random is not None:
                order = random.permutation(order)
            ends = list(range(self._batch_size, len(pool) + 1, self._batch_size))
            full = ends[-1] if ends else 0
            if start + self._pool_size >= len(pieces):
                if full < len(pool):
                    ends.append(len(pool))
                elif short and ends:
                    ends[-1:] = [full - 1, full]
                full = len(pool)
            if step + len(ends) > first_step:
                yield PlannedPool(left, chosen, order, ends, max(first_step - step, 0))
            step += len(ends)
            left = pool[order[full:]]

    def _pieces(self, groups: IntArray) -> list[Piece]:
        """This shard's rows, where all rows in the order of `groups` are cut into equal parts."""
        counts = self._counts[groups]
        starts = np.cumsum(counts) - counts
        first = np.clip(self._first_row - starts, 0, counts)
        stop = np.clip(self._stop_row - starts, 0, counts)
        pieces = [
            Piece(*numbers)
            for numbers in zip(groups.tolist(), first.tolist(), stop.tolist(), strict=True)
        ]
        if self._num_shards == 1:
            return pieces
        return [piece for piece in pieces if piece.start < piece.stop]

    def locate(self, numbers: IntArray) -> list[tuple[int, IntArray, IntArray]]:
        """Where rows lie: for each row group its rows, and their positions in `numbers`."""
        groups = np.searchsorted(self._bases + self._counts, numbers, side="right")
        return [
            (int(group), numbers[where] - self._bases[group], where)
            for group in np.unique(groups)
            for where in (np.flatnonzero(groups == group),)
        ]
