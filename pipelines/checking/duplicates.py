"""Rows that repeat the key of an earlier row, found over many files by hashes of the keys."""

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from seqdenoise.data.columns import decoded, is_string
from seqdenoise.data.mixing import finalise64

Hashes = npt.NDArray[np.uint64]


def key_hashes(table: pa.Table, keys: list[str]) -> tuple[Hashes, npt.NDArray[np.bool_]]:
    """A 64-bit hash of each row's key.

    Args:
        table: Has the key columns: integers, strings or timestamps.
        keys: Their names.

    Returns:
        uint64 `[rows]`, and whether the key is whole: without nulls.

    Example:
        >>> table = pa.table({"user": [1, 1, 2], "type": ["a", "a", None]})
        >>> hashes, whole = key_hashes(table, ["user", "type"])
        >>> bool(hashes[0] == hashes[1]), whole.tolist()
        (True, [True, True, False])
    """
    state = np.full(len(table), 0x9E3779B97F4A7C15, np.uint64)
    whole = np.full(len(table), True)
    for name in keys:
        column = decoded(table[name])
        whole &= column.is_valid().to_numpy(zero_copy_only=False)
        state = finalise64(state ^ _values(column)) + np.uint64(0x9E3779B97F4A7C15)
    return state, whole


def _values(column: pa.Array) -> Hashes:
    if is_string(column.type):
        texts = column.dictionary_encode()
        known = pd.util.hash_array(np.array(texts.dictionary.to_pylist(), dtype=object))
        codes = texts.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return known[codes] if len(known) else np.zeros(len(column), np.uint64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)


class RepeatedKeys:
    """Finds repeated keys in two passes: first `add` all hashes, then `repeats` in the same order.

    Memory is 8 bytes a row, and 9 more for each key that repeats. Two different
    keys share a hash, and the later one is taken for a repeat, with a chance of about
    `rows**2 / 2**65`: 3e-6 for ten million rows, 0.03 for a thousand million.

    Example:
        >>> repeated = RepeatedKeys()
        >>> repeated.add(np.array([5, 6], np.uint64))
        >>> repeated.add(np.array([5], np.uint64))
        >>> repeated.found()
        1
        >>> repeated.repeats(np.array([5, 6], np.uint64))
        array([], dtype=int64)
        >>> repeated.repeats(np.array([5], np.uint64))
        array([0])
    """

    def __init__(self) -> None:
        self._parts: list[Hashes] = []
        self._twice = np.empty(0, np.uint64)
        self._seen = np.empty(0, np.bool_)

    def add(self, hashes: Hashes) -> None:
        """Adds the hashes of some rows."""
        self._parts.append(hashes)

    def found(self) -> int:
        """Ends the first pass; how many keys repeat."""
        hashes = np.empty(sum(map(len, self._parts)), np.uint64)
        end = 0
        # Each part is let go once it is copied, or there would be 16 bytes a row.
        self._parts.reverse()
        while self._parts:
            part = self._parts.pop()
            hashes[end : end + len(part)] = part
            end += len(part)
        hashes.sort()
        self._twice = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        self._seen = np.zeros(len(self._twice), np.bool_)
        return len(self._twice)

    def repeats(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """The rows, of those whose hashes are given next, that repeat an earlier row's key."""
        if not len(self._twice):
            return np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(self._twice, hashes), len(self._twice) - 1)
        candidates = np.flatnonzero(self._twice[at] == hashes)
        which = at[candidates]
        _, first = np.unique(which, return_index=True)
        new = np.zeros(len(candidates), np.bool_)
        new[first] = ~self._seen[which[first]]
        self._seen[which] = True
        return candidates[~new]
