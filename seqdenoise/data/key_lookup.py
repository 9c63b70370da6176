"""The position of values among keys, prepared once for many calls."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

Positions: TypeAlias = npt.NDArray[np.int32]

# A table of every possible key costs four bytes each, and so much more than the keys at most.
_TABLE_PER_KEY = 8
_SMALL_TABLE = 1 << 16


class IntegerLookup:
    """Positions of integers: from a table where the keys are dense, else from a hash table.

    Args:
        keys: int64 without nulls, at least one, distinct.
    """

    def __init__(self, keys: pa.Array):
        numbers = keys.to_numpy()
        self._least, greatest = int(numbers.min()), int(numbers.max())
        span = greatest - self._least + 1
        self._table: Positions | None = None
        if span <= max(_TABLE_PER_KEY * len(numbers), _SMALL_TABLE):
            # The last place stands for all that is out of range.
            self._table = np.full(span + 1, -1, np.int32)
            self._table[numbers - self._least] = np.arange(len(numbers), dtype=np.int32)
        else:
            self._index = pd.Index(numbers)

    def find(self, values: pa.Array) -> Positions:
        """int32, -1 where a value is null or no key.

        Args:
            values: int64.
        """
        nulls = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        if nulls is not None:
            values = values.fill_null(0)
        numbers: npt.NDArray[Any] = values.to_numpy()
        if self._table is None:
            found = self._index.get_indexer(numbers).astype(np.int32)
        else:
            # Below the least, the difference wraps around to beyond the end.
            places = (numbers - np.int64(self._least)).view(np.uint64)
            found = self._table[np.minimum(places, np.uint64(len(self._table) - 1)).view(np.int64)]
        if nulls is not None:
            found[nulls] = -1
        return found


class TextLookup:
    """Positions of strings.

    Args:
        keys: Strings without nulls, distinct.
    """

    def __init__(self, keys: pa.Array):
        self._keys = keys
        self._positions: dict[str, int] | None = None

    def find(self, values: pa.Array) -> Positions:
        """int32, -1 where a value is null or no key.

        Args:
            values: Strings, or a dictionary of strings.
        """
        if not pa.types.is_dictionary(values.type):
            if len(self._keys) <= len(values):
                return _with_nulls(pc.index_in(values, value_set=self._keys))
            # Arrow would hash all keys for this call; fewer are the distinct values.
            values = values.dictionary_encode()
        texts = values.dictionary.cast(pa.string())
        if len(self._keys) <= len(texts):
            found = pc.index_in(texts, value_set=self._keys)
        else:
            if self._positions is None:
                self._positions = {key: i for i, key in enumerate(self._keys.to_pylist())}
            positions = self._positions
            found = pa.array([positions.get(text, -1) for text in texts.to_pylist()], pa.int32())
        return _with_nulls(found.take(values.indices))


def _with_nulls(found: pa.Array) -> Positions:
    positions: Positions = found.fill_null(-1).to_numpy(zero_copy_only=False)
    return positions
