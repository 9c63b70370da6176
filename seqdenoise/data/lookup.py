"""A side table with one row a key: the left join that items and users need."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from seqdenoise.data.columns import IntArray, column_of, decoded, int64_values
from seqdenoise.errors import DataError

# The most slots a key may cost in a table of rows.
_DENSE_SPAN = 8


class Lookup:
    """Fields by integer key; unknown keys read as null.

    Args:
        table: One row a key.
        key: The key's column, integers without nulls or duplicates.
        fields: The columns to keep.
        place: What error messages call the table.

    Raises:
        DataError: A column is missing, or a key is null or occurs twice.

    Example:
        >>> items = pa.table({"item": [7, 5], "brand": ["x", "y"]})
        >>> lookup = Lookup(items, "item", ["brand"], place="items")
        >>> lookup.take("brand", lookup.rows(np.array([5, 6]))).to_pylist()
        ['y', None]
    """

    def __init__(self, table: pa.Table, key: str, fields: Sequence[str], *, place: str):
        keys = int64_values(table, key, place)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        twice = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        if len(twice):
            rows = self._order[twice[0] : twice[0] + 2].tolist()
            raise DataError(
                f"{place}, column `{key}`: expected every {key} once. "
                f"Received: {self._keys[twice[0]]} in rows {rows[0]} and {rows[1]}"
            )
        # Dense keys, as ids mostly are, need no search: a table gives their rows.
        self._dense: IntArray | None = None
        if len(keys) and int(self._keys[-1]) - int(self._keys[0]) < _DENSE_SPAN * len(keys):
            self._dense = np.full(int(self._keys[-1]) - int(self._keys[0]) + 1, -1)
            self._dense[keys - self._keys[0]] = np.arange(len(keys))
        self._fields = {name: decoded(column_of(table, name, place)) for name in fields}

    def rows(self, keys: IntArray) -> IntArray:
        """The row of each key, -1 where it is unknown; int64, the shape of `keys`."""
        if not len(self._keys):
            return np.full(len(keys), -1)
        if self._dense is not None:
            inside = (keys >= self._keys[0]) & (keys <= self._keys[-1])
            return np.where(inside, self._dense[np.where(inside, keys - self._keys[0], 0)], -1)
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[found] == keys, self._order[found], -1)

    def take(self, field: str, rows: IntArray) -> pa.Array:
        """The values of `field` at `rows`, null where the row is -1."""
        return self._fields[field].take(pa.array(rows, mask=rows < 0))

    def type_of(self, field: str) -> pa.DataType:
        """The Arrow type of `field` as `take` returns it."""
        return self._fields[field].type
