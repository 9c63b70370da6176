"""One row group decoded to flat NumPy arrays, ready to be pooled, permuted and padded."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqdenoise.data.columns import IntArray, decoded, flatten_lists, is_list, ranges
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.filters import RowFilter
from seqdenoise.data.memory import Recycler
from seqdenoise.data.options import ReadOptions
from seqdenoise.errors import DataError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Lists:
    """The lists of one sequence type: row i of every field is `[starts[i], +lengths[i])`."""

    starts: IntArray
    lengths: IntArray
    fields: dict[str, Array]


@dataclass(frozen=True)
class Rows:
    """Some rows: scalar columns `[rows]`, and per sequence type its lists by column name."""

    num_rows: int
    scalars: dict[str, Array]
    lists: dict[str, Lists]

    def take(self, rows: IntArray) -> "Rows":
        """The given rows, copied, so that nothing else is kept alive."""
        lists = {}
        for kind, old in self.lists.items():
            lengths = old.lengths[rows]
            values = ranges(old.starts[rows], lengths)
            fields = {name: flat[values] for name, flat in old.fields.items()}
            lists[kind] = Lists(np.cumsum(lengths) - lengths, lengths, fields)
        scalars = {name: values[rows] for name, values in self.scalars.items()}
        return Rows(len(rows), scalars, lists)

    def slice(self, start: int, stop: int) -> "Rows":
        """Rows `start` to `stop`, as views."""
        if (start, stop) == (0, self.num_rows):
            return self
        lists = {
            kind: Lists(old.starts[start:stop], old.lengths[start:stop], old.fields)
            for kind, old in self.lists.items()
        }
        scalars = {name: values[start:stop] for name, values in self.scalars.items()}
        return Rows(stop - start, scalars, lists)


class RowsBuilder:
    """Rows put together part by part, so that a part's memory is free before the next is read.

    Args:
        num_rows: How many rows there will be.
        recycler: Where the memory comes from.
    """

    def __init__(self, num_rows: int, recycler: Recycler):
        self._num_rows = num_rows
        self._recycler = recycler
        self._rows_so_far = 0
        self._columns: dict[str, Array] = {}
        self._filled: dict[str, int] = {}
        self._lists: dict[str, list[Lists]] = {}
        self._names: dict[str, list[str]] = {}

    def add(self, part: Rows) -> None:
        """Adds rows behind those before."""
        if not part.num_rows:
            return
        new = dict(part.scalars)
        for kind, lists in part.lists.items():
            new |= lists.fields
            self._names[kind] = list(lists.fields)
            base = self._filled.get(next(iter(lists.fields)), 0)
            self._lists.setdefault(kind, []).append(Lists(lists.starts + base, lists.lengths, {}))
        ends = {name: self._filled.get(name, 0) + len(values) for name, values in new.items()}
        self._rows_so_far += part.num_rows
        if any(
            name not in self._columns or end > len(self._columns[name])
            for name, end in ends.items()
        ):
            self._grow(new, ends)
        for name, values in new.items():
            self._columns[name][self._filled.get(name, 0) : ends[name]] = values
        self._filled = ends

    def _grow(self, new: dict[str, Array], ends: dict[str, int]) -> None:
        # If the rest is like the rows so far it fits, with a fifth to spare.
        shapes = [
            ((max(end, end * self._num_rows * 6 // (self._rows_so_far * 5)),), new[name].dtype)
            for name, end in ends.items()
        ]
        larger = dict(zip(ends, self._recycler.arrays(shapes), strict=True))
        for name, filled in self._filled.items():
            larger[name][:filled] = self._columns[name][:filled]
        self._columns = larger

    def rows(self) -> Rows:
        """All rows."""
        columns = {name: self._columns[name][:end] for name, end in self._filled.items()}
        lists = {}
        for kind, parts in self._lists.items():
            starts = np.concatenate([part.starts for part in parts])
            lengths = np.concatenate([part.lengths for part in parts])
            fields = {name: columns.pop(name) for name in self._names[kind]}
            lists[kind] = Lists(starts, lengths, fields)
        return Rows(self._rows_so_far, columns, lists)


class RowGroupDecoder:
    """Which columns to read and how each becomes numbers.

    Args:
        options: As `ReadOptions` says.
        source: The files, whose schema is checked.

    Raises:
        DataError: The files lack a column, or a column is of the wrong type.
        ValueError: The condition on rows is none.
    """

    def __init__(self, options: ReadOptions, source: ParquetSource):
        self._columns = list(options.columns)
        self._sequences = {kind: options.fields(kind) for kind in options.sequences}
        self._encoders = dict(options.encoders)
        self._fill = dict(options.fill)
        self._weight = options.weight
        self._max_length = options.max_length
        self._names = options.names
        source.require(self._names)
        self._check(source)
        self.filter = None if options.where is None else RowFilter(source, options.where)
        extra = [] if self.filter is None else self.filter.columns
        self._read = list(dict.fromkeys([*self._names, *extra]))

    def _check(self, source: ParquetSource) -> None:
        for name in self._names:
            kind = source.schema.field(name).type
            if (name not in self._columns) != is_list(kind):
                expected = "one value a row" if name in self._columns else "lists"
                raise DataError(
                    f"{source.path}, column `{name}`: expected {expected}. Received: {kind}"
                )
            if is_list(kind):
                kind = kind.value_type
            encoder = self._encoders.get(name)
            if encoder is not None:
                expected = encoder.expects(kind)
                if expected:
                    raise DataError(
                        f"{source.path}, column `{name}`: expected {expected}. Received: {kind}"
                    )
            elif _dtype(kind) is None:
                raise DataError(
                    f"{source.path}, column `{name}`: expected numbers, or a vocabulary for it. "
                    f"Received: {kind}"
                )

    def dtypes(self, source: ParquetSource) -> tuple[dict[str, Any], dict[str, Any]]:
        """The NumPy types of the scalar columns and of the list columns, by column name."""
        result = {}
        for name in self._names:
            kind = source.schema.field(name).type
            kind = kind.value_type if is_list(kind) else kind
            result[name] = np.int32 if name in self._encoders else self._dtype(name, kind)
        scalars = {name: result.pop(name) for name in self._columns}
        return scalars, result

    def _dtype(self, name: str, kind: pa.DataType) -> Any:
        # An integer column whose missing values read as, say, a mean is a column of floats.
        if isinstance(self._fill.get(name), float) or name == self._weight:
            return np.float32
        return _dtype(kind)

    def read(self, source: ParquetSource, index: int) -> Rows:
        """Reads and decodes one row group.

        Raises:
            DataError: A page is damaged, a type's lists differ in length, or a value cannot be
                read as its column should; names file, row group and column.
        """
        table = source.read_row_group(index, self._read)
        place = source.place(index)
        if self.filter is not None:
            table = self.filter.apply(table, place)
            place += ", rows that pass `where`"
        scalars = {name: self._numbers(decoded(table[name]), name, place) for name in self._columns}
        if self._weight is not None:
            _refuse_negative(scalars[self._weight], f"{place}, column `{self._weight}`")
        lists = {}
        for kind, columns in self._sequences.items():
            flat = {}
            reference, lengths = "", np.empty(0, np.int64)
            for column in columns:
                values, column_lengths = flatten_lists(table[column])
                if not reference:
                    reference, lengths = column, column_lengths
                elif not np.array_equal(column_lengths, lengths):
                    row = int(np.flatnonzero(column_lengths != lengths)[0])
                    raise DataError(
                        f"{place}, column `{column}`: expected lists as long as `{reference}`'s. "
                        f"Received: {column_lengths[row]} entries where that has {lengths[row]}, "
                        f"in row {row}"
                    )
                flat[column] = self._numbers(values, column, place)
            lists[kind] = _most_recent(lengths, flat, self._max_length)
        return Rows(len(table), scalars, lists)

    def _numbers(self, values: pa.Array, name: str, place: str) -> Array:
        place = f"{place}, column `{name}`"
        if name in self._encoders:
            try:
                return self._encoders[name].encode(values)
            except DataError as error:
                raise DataError(f"{place}: {error}") from error
        dtype = self._dtype(name, values.type)
        fill = self._fill.get(name)
        if dtype is np.float32 and not pa.types.is_floating(values.type):
            values = values.cast(pa.float64(), safe=False)
        if values.null_count:
            if fill is None:
                raise DataError(
                    f"{place}: expected no nulls, or a fill for them. "
                    f"Received: {values.null_count} nulls"
                )
            # Filled in Arrow: with a null left, int64 would pass through float64.
            values = values.fill_null(pa.scalar(fill).cast(values.type))
        with np.errstate(over="ignore"):
            array = values.to_numpy(zero_copy_only=False)
            numbers = array.astype(dtype, copy=False)
        if dtype is np.int64:
            if array.dtype == np.uint64 and (array > np.uint64(2**63 - 1)).any():
                raise DataError(f"{place}: expected values within int64. Received: {array.max()}")
            return numbers
        if fill is not None:
            numbers = np.where(np.isnan(numbers), np.float32(fill), numbers)
        finite = np.isfinite(numbers)
        if not finite.all():
            raise DataError(
                f"{place}: expected values finite in float32, or a fill for NaN. "
                f"Received: {array[np.argmin(finite)]}"
            )
        return numbers


def _dtype(kind: pa.DataType) -> Any:
    """int64 or float32, as columns of this type are read without a vocabulary; None for others."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return np.int64
    return np.float32 if pa.types.is_floating(kind) else None


def _refuse_negative(weights: Array, place: str) -> None:
    negative = weights < 0
    if negative.any():
        row = int(np.argmax(negative))
        raise DataError(
            f"{place}: expected weights of at least 0. Received: {weights[row]} in row {row}"
        )


def _most_recent(lengths: IntArray, flat: dict[str, Array], max_length: int) -> Lists:
    kept = np.minimum(lengths, max_length)
    starts = np.cumsum(lengths) - kept
    # Older entries are only copied away where they would fill most of the pool's memory.
    if 2 * kept.sum() < lengths.sum():
        values = ranges(starts, kept)
        flat = {name: array[values] for name, array in flat.items()}
        starts = np.cumsum(kept) - kept
    return Lists(starts, kept, flat)
