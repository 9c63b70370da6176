"""One row group decoded to flat NumPy arrays, ready to be pooled, permuted and padded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqdenoise.data.columns import IntArray, decoded, flatten_lists, is_list, is_string, ranges
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.vocabulary import Vocabulary
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
    """Some rows: scalar columns `[rows]`, and per sequence type its lists."""

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

    def padded(self, rows: IntArray, max_length: int) -> dict[str, Array]:
        """The given rows as one dense batch.

        Args:
            rows: int64 `[B]`.
            max_length: L, at least the longest list.

        Returns:
            Each scalar column `[B]`; for each type T its fields `T__<field>` `[B, L]`, zero from
            the list's end on (0 is `Vocabulary.PAD`), and `T__length` int32 `[B]`.
        """
        batch = {name: values[rows] for name, values in self.scalars.items()}
        steps = np.arange(max_length)
        for kind, lists in self.lists.items():
            lengths = lists.lengths[rows]
            real = steps < lengths[:, None]
            values = ranges(lists.starts[rows], lengths)
            for name, flat in lists.fields.items():
                dense = np.zeros(real.shape, flat.dtype)
                dense[real] = flat[values]
                batch[f"{kind}__{name}"] = dense
            batch[f"{kind}__length"] = lengths.astype(np.int32)
        return batch


def concatenate(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one part after another."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    lists = {}
    for kind, shape in first.lists.items():
        lengths = np.concatenate([part.lists[kind].lengths for part in parts])
        fields = {
            name: np.concatenate([part.lists[kind].fields[name] for part in parts])
            for name in shape.fields
        }
        lists[kind] = Lists(np.cumsum(lengths) - lengths, lengths, fields)
    scalars = {
        name: np.concatenate([part.scalars[name] for part in parts]) for name in first.scalars
    }
    return Rows(sum(part.num_rows for part in parts), scalars, lists)


class RowGroupDecoder:
    """Which columns to read and how each becomes numbers.

    Args:
        columns: The scalar columns.
        sequences: For each type T the fields F of its list columns `T__F`.
        encoders: Vocabularies by column name; these columns become int32 ids. The others must hold
            numbers: integers and booleans become int64, floats float32.
        fill: By column name, what a null (or NaN) of a column without vocabulary reads as. Without
            it, nulls and NaN are refused. With a float fill an integer column becomes float32 too.
        max_length: Longer lists keep their last `max_length` entries.
    """

    def __init__(
        self,
        *,
        columns: Sequence[str],
        sequences: Mapping[str, Sequence[str]],
        encoders: Mapping[str, Vocabulary],
        fill: Mapping[str, float],
        max_length: int,
    ):
        self._columns = list(columns)
        self._sequences = {
            kind: {name: f"{kind}__{name}" for name in fields} for kind, fields in sequences.items()
        }
        self._encoders = dict(encoders)
        self._fill = dict(fill)
        self.max_length = max_length
        lists = [name for fields in self._sequences.values() for name in fields.values()]
        self._names = [*self._columns, *lists]
        outputs = [*self._names, *(f"{kind}__length" for kind in self._sequences)]
        if max_length < 1 or len(set(outputs)) < len(outputs):
            raise ValueError(
                "expected distinct column names and max_length >= 1. "
                f"Received: {outputs}, max_length {max_length}"
            )
        empty = sorted(kind for kind, fields in self._sequences.items() if not fields)
        stray = sorted((set(encoders) | set(fill)) - set(self._names))
        if empty or stray:
            raise ValueError(
                "expected at least one field for each sequence type, and vocabularies and fills "
                f"for columns that are read only. Received: types without fields {empty}, "
                f"vocabularies or fills without column {stray}"
            )

    def check(self, source: ParquetSource) -> None:
        """Checks a file's schema.

        Raises:
            DataError: The file has no rows, lacks a column, or a column is of the wrong type.
        """
        source.require(self._names)
        if not source.num_rows:
            raise DataError(f"{source.path}: expected at least one row. Received: 0 rows")
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
                if encoder.size > encoder.FIRST and is_string(kind) != encoder.is_text:
                    expected = "strings" if encoder.is_text else "integers"
                    raise DataError(
                        f"{source.path}, column `{name}`: expected {expected}, as in its "
                        f"vocabulary. Received: {kind}"
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
        return np.float32 if isinstance(self._fill.get(name), float) else _dtype(kind)

    def lengths(self) -> list[str]:
        """The names of the length columns."""
        return [f"{kind}__length" for kind in self._sequences]

    def read(self, source: ParquetSource, index: int) -> Rows:
        """Reads and decodes one row group.

        Raises:
            DataError: A page is damaged, a type's lists differ in length, or a value cannot be
                read as its column should; names file, row group and column.
        """
        table = source.read_row_group(index, self._names)
        place = f"{source.path}, row group {index}"
        scalars = {name: self._numbers(decoded(table[name]), name, place) for name in self._columns}
        lists = {}
        for kind, fields in self._sequences.items():
            flat = {}
            reference, lengths = "", np.empty(0, np.int64)
            for name, column in fields.items():
                values, column_lengths = flatten_lists(table[column])
                if not reference:
                    reference, lengths = column, column_lengths
                elif (column_lengths != lengths).any():
                    row = int(np.flatnonzero(column_lengths != lengths)[0])
                    raise DataError(
                        f"{place}, column `{column}`: expected lists as long as `{reference}`'s. "
                        f"Received: {column_lengths[row]} entries where that has {lengths[row]}, "
                        f"in row {row}"
                    )
                flat[name] = self._numbers(values, column, place)
            lists[kind] = _most_recent(lengths, flat, self.max_length)
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
        wrong = np.flatnonzero(~np.isfinite(numbers))
        if len(wrong):
            raise DataError(
                f"{place}: expected values finite in float32, or a fill for NaN. "
                f"Received: {array[wrong[0]]}"
            )
        return numbers


def _dtype(kind: pa.DataType) -> Any:
    """int64 or float32, as columns of this type are read without a vocabulary; None for others."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return np.int64
    return np.float32 if pa.types.is_floating(kind) else None


def _most_recent(lengths: IntArray, flat: dict[str, Array], max_length: int) -> Lists:
    kept = np.minimum(lengths, max_length)
    starts = np.cumsum(kept) - kept
    if (kept < lengths).any():
        values = ranges(np.cumsum(lengths) - kept, kept)
        flat = {name: array[values] for name, array in flat.items()}
    return Lists(starts, kept, flat)
