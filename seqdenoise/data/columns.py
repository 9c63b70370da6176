"""Arrow columns read as flat arrays, every surprise refused by name."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seqdenoise.errors import DataError

IntArray = npt.NDArray[np.int64]


def is_string(kind: pa.DataType) -> bool:
    """Whether values of Arrow type `kind` are text, dictionary-encoded or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether `kind` is a list, large_list or fixed_size_list."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def decoded(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One contiguous array with dictionaries resolved, since their codes differ between files.

    Args:
        column: Any flat Arrow column.

    Returns:
        The same values as one `pa.Array`; large strings become strings.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.string())
    if not isinstance(column, pa.ChunkedArray):
        return column
    # Combining copies even a single chunk.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def column_of(table: pa.Table, name: str, place: str) -> pa.ChunkedArray:
    """The column `name`, or a `DataError` that lists what `place` has instead."""
    if table.schema.names.count(name) != 1:
        raise DataError(
            f"{place}: expected one column `{name}`. Received: columns {table.schema.names}"
        )
    return table[name]


def refuse_nulls(column: pa.ChunkedArray, name: str, place: str) -> None:
    """Raises a `DataError` that names the first row where `column` is null."""
    if column.null_count:
        row = pc.index(column.is_null(), pa.scalar(True)).as_py()
        raise DataError(
            f"{place}, column `{name}`: expected no nulls. "
            f"Received: {column.null_count} nulls, the first in row {row}"
        )


def int64_values(table: pa.Table, name: str, place: str) -> IntArray:
    """The values of an integer column without nulls.

    Args:
        table: Where to look.
        name: The column; any integer type whose values fit int64.
        place: What error messages call the table.

    Returns:
        int64 `[rows]`.

    Raises:
        DataError: The column is missing, of another type, has nulls or exceeds int64.

    Example:
        >>> int64_values(pa.table({"user": pa.array([3, 1], pa.int32())}), "user", "events")
        array([3, 1])
    """
    column = column_of(table, name, place)
    if not pa.types.is_integer(column.type):
        raise DataError(f"{place}, column `{name}`: expected integers. Received: {column.type}")
    refuse_nulls(column, name, place)
    try:
        values = column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{place}, column `{name}`: expected values within int64. Received: {error}"
        ) from error
    return values.combine_chunks().to_numpy(zero_copy_only=False)


def string_codes(
    table: pa.Table, name: str, vocabulary: Sequence[str], place: str
) -> npt.NDArray[np.int32]:
    """Each row's position in `vocabulary`, -1 where it is not in there.

    Args:
        table: Where to look.
        name: A string column, dictionary-encoded or not, without nulls.
        vocabulary: The strings to look for.
        place: What error messages call the table.

    Returns:
        int32 `[rows]`.

    Raises:
        DataError: The column is missing, of another type or has nulls.
    """
    column = column_of(table, name, place)
    if not is_string(column.type):
        raise DataError(f"{place}, column `{name}`: expected strings. Received: {column.type}")
    refuse_nulls(column, name, place)
    wanted = pa.array(vocabulary, pa.string())
    codes = [np.empty(0, np.int32)]
    for chunk in column.chunks:
        # A dictionary is looked up once, not once a row.
        encoded = pa.types.is_dictionary(chunk.type)
        found = pc.index_in(decoded(chunk.dictionary if encoded else chunk), value_set=wanted)
        found = found.take(chunk.indices) if encoded else found
        codes.append(found.fill_null(-1).to_numpy(zero_copy_only=False))
    return np.concatenate(codes)


def flatten_lists(column: pa.ChunkedArray | pa.Array) -> tuple[pa.Array, IntArray]:
    """A list column as its values and the number of values of each row.

    Correct for slices, which share their parent's values, and for null lists, which may span
    values that do not count.

    Args:
        column: list, large_list or fixed_size_list; null rows read as empty lists.

    Returns:
        The values as one array (null elements kept, dictionaries resolved), and int64 `[rows]`
        lengths, whose sum is the number of values.

    Example:
        >>> flatten_lists(pa.array([[1, 2], None, [3]]).slice(1))
        (<pyarrow.lib.Int64Array object at ...>
        [
          3
        ], array([0, 1]))
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    values = [decoded(pc.list_flatten(chunk)) for chunk in chunks]
    lengths = []
    for chunk in chunks:
        counts = pc.list_value_length(chunk)
        counts = counts.fill_null(0) if counts.null_count else counts
        lengths.append(counts.to_numpy(zero_copy_only=False).astype(np.int64))
    if len(chunks) == 1:
        return values[0], lengths[0]
    empty = decoded(pa.array([], column.type.value_type))
    return pa.concat_arrays([empty, *values]), np.concatenate([np.empty(0, np.int64), *lengths])


def ranges(
    starts: IntArray, lengths: IntArray, dtype: type[np.signedinteger[Any]] = np.int64
) -> npt.NDArray[np.signedinteger[Any]]:
    """The positions `start, start + 1, ...` of every range, one range after another.

    Args:
        starts: int64 `[n]`.
        lengths: int64 `[n]`, at least 0.
        dtype: Of the result; int32 halves the memory where every position fits.

    Returns:
        `[lengths.sum()]`, of type `dtype`.

    Example:
        >>> ranges(np.array([5, 0, 9]), np.array([2, 0, 3]))
        array([ 5,  6,  9, 10, 11])
    """
    filled = np.flatnonzero(lengths)
    starts, lengths = starts[filled], lengths[filled]
    ends = np.cumsum(lengths)
    # The running sum of ones, and of jumps where ranges start: one array, passed over twice.
    positions = np.ones(int(ends[-1]) if len(ends) else 0, dtype)
    if len(ends):
        positions[0] = starts[0]
        positions[ends[:-1]] = starts[1:] - (starts[:-1] + lengths[:-1] - 1)
    return np.cumsum(positions, out=positions)
