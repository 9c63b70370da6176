"""Which of several entries of one item count: first rows of a moment, or the latest known."""

from collections.abc import Iterator

import numpy as np

from seqdenoise.data.columns import IntArray, ranges
from seqdenoise.data.ordering import order_by

# Bounds the memory of one look at many windows.
_ENTRIES_PER_LOOK = 2**21


def first_of_each(keys: IntArray, items: IntArray) -> IntArray:
    """The positions of entries that are the first of their key and item, ascending.

    Args:
        keys: int64 `[entries]`, ascending.
        items: int64 `[entries]`.

    Returns:
        int64.

    Example:
        >>> first_of_each(np.array([1, 1, 1, 2]), np.array([8, 9, 8, 8]))
        array([0, 1, 3])
    """
    same = keys[1:] == keys[:-1]
    shared = np.zeros(len(keys), np.bool_)
    shared[1:] = same
    shared[:-1] |= same
    # Few keys occur twice: only these are sorted.
    doubtful = np.flatnonzero(shared)
    order = doubtful[order_by(keys[doubtful], items[doubtful])]
    again = (keys[order][1:] == keys[order][:-1]) & (items[order][1:] == items[order][:-1])
    first = np.ones(len(keys), np.bool_)
    first[order[1:][again]] = False
    return np.flatnonzero(first)


class LatestEntries:
    """Keeps of a user's entries of one item the latest before any given end.

    Entry `j` counts before end `e` unless another entry before `e` supersedes it.

    Args:
        ranks: int64 `[entries]`, the user of each entry, ascending; a user's oldest first.
        items: int64 `[entries]`.
        consecutive: Whether only the very next entry may supersede, or any later one.

    Example:
        >>> latest = LatestEntries(np.array([0, 0, 0]), np.array([8, 9, 8]), consecutive=False)
        >>> latest.before(np.array([0, 0]), np.array([2, 3]), limit=5)
        (array([0, 1, 1, 2]), array([2, 2]))
    """

    def __init__(self, ranks: IntArray, items: IntArray, *, consecutive: bool):
        count = len(items)
        order = np.arange(count) if consecutive else order_by(ranks, items)
        again = (ranks[order][1:] == ranks[order][:-1]) & (items[order][1:] == items[order][:-1])
        superseded_by = np.full(count, count)
        superseded_by[order[:-1][again]] = order[1:][again]
        # How many entries count just after each one: as many as came first of their item (or run).
        first = np.ones(count, np.int64)
        first[order[1:][again]] = 0
        self._num_counted = np.cumsum(first)
        of_user = np.flatnonzero(np.diff(ranks, prepend=-1))
        before = self._num_counted[of_user] - 1
        self._num_counted -= np.repeat(before, np.diff(of_user, append=count))
        # An entry superseded by its neighbour counts only as the very last one, which always does.
        self._lasting = np.flatnonzero(superseded_by > np.arange(1, count + 1))
        self._superseded_by = superseded_by[self._lasting]
        self._num_before = np.zeros(count + 1, np.int64)
        self._num_before[self._lasting + 1] = 1
        np.cumsum(self._num_before, out=self._num_before)

    def before(self, starts: IntArray, ends: IntArray, limit: int) -> tuple[IntArray, IntArray]:
        """The last entries that count in each range.

        Args:
            starts: int64 `[ranges]`.
            ends: int64 `[ranges]`, at least `starts`.
            limit: How many to take at most, at least 1.

        Returns:
            Their positions, ascending in each range, one range after another, and how many each
            range has; int64.
        """
        filled = ends > starts
        low = self._num_before[starts]
        high = np.where(filled, self._num_before[ends - filled], low)
        lengths = filled.astype(np.int64)
        # Those besides the last one; without this bound a search for what is not there would go
        # back to the user's first entry.
        wanted = np.zeros(len(ends), np.int64)
        wanted[filled] = np.minimum(limit, self._num_counted[ends[filled] - 1]) - 1
        found = list(self._search(low, high, ends, wanted))
        for rows, _, counts in found:
            lengths[rows] += counts
        begins = np.cumsum(lengths) - lengths
        taken = np.empty(int(lengths.sum()), np.int64)
        for rows, entries, counts in found:
            taken[ranges(begins[rows], counts)] = entries
        taken[(begins + lengths - 1)[filled]] = ends[filled] - 1
        return taken, lengths

    def _search(
        self, low: IntArray, high: IntArray, ends: IntArray, wanted: IntArray
    ) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Yields rows, what counts among the lasting entries of `[low, high)`, and how many.

        Looks at the last `wanted` first, and at twice as many where too few of them count.
        """
        windows = np.minimum(high - low, wanted)
        rows = np.flatnonzero(windows)
        while len(rows):
            again = []
            looks = np.cumsum(windows[rows]) // _ENTRIES_PER_LOOK
            for part in np.split(rows, np.flatnonzero(np.diff(looks)) + 1):
                sizes = windows[part]
                entries = ranges(high[part] - sizes, sizes)
                counted = self._superseded_by[entries] >= np.repeat(ends[part], sizes)
                totals = np.concatenate([[0], np.cumsum(counted)])
                stops = np.cumsum(sizes)
                counts = totals[stops] - totals[stops - sizes]
                done = (counts >= wanted[part]) | (sizes == (high - low)[part])
                # How many count from here on; the last `wanted` of these are taken.
                remaining = np.repeat(totals[stops], sizes) - totals[:-1]
                counted &= (remaining <= np.repeat(wanted[part], sizes)) & np.repeat(done, sizes)
                yield (
                    part[done],
                    self._lasting[entries[counted]],
                    np.minimum(counts, wanted[part])[done],
                )
                again.append(part[~done])
            rows = np.concatenate(again)
            windows[rows] = np.minimum(2 * windows[rows], (high - low)[rows])
