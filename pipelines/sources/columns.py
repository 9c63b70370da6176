"""Published CSV and parquet files read as typed columns, every defect named by file and column."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from seqdenoise.errors import DataError

Kind = Literal["int", "flag", "nullable_int", "float", "string", "date", "first_id", "ids"]
"""What a column holds; nulls are allowed unless it says otherwise.

- `int`: int64 without nulls.
- `flag`: an `int` that is 0 or 1.
- `nullable_int`: int64; a CSV may write it as `3.0`, the way pandas writes integers beside nulls.
- `float`: float64.
- `string`.
- `date`: written as `2022-04-10`, read as int64 days since 1970-01-01.
- `first_id`: comma-separated integers, of which the first is read, as int64.
- `ids`: a list of int64 without nulls inside; a null list reads as an empty one.
"""

_ARROW_TYPES = {
    "int": pa.int64(),
    "flag": pa.int64(),
    "nullable_int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "date": pa.int64(),
    "first_id": pa.int64(),
    "ids": pa.list_(pa.int64()),
}
_EXPECTED = {
    "int": "integers",
    "flag": "0 or 1",
    "nullable_int": "integers",
    "float": "numbers",
    "string": "strings",
    "date": "dates like 2022-04-10",
    "first_id": "comma-separated integers",
    "ids": "lists of integers",
}
_CSV_NULLS = ["", "nan", "NaN"]


def read_csv(path: Path, kinds: Mapping[str, Kind]) -> pa.Table:
    """Reads the named columns of a CSV file with a header line.

    Args:
        path: The file, UTF-8.
        kinds: What each wanted column holds; other columns are ignored. `ids` is not for CSV.

    Returns:
        The columns in the order of `kinds`.

    Raises:
        DataError: The file is missing, broken or without rows, or a column is missing or holds
            something else.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            header = next(csv.reader(lines), [])
        _require_columns(path, header, kinds)
        table = pacsv.read_csv(
            path,
            convert_options=pacsv.ConvertOptions(
                # As strings: a typed read would name the place of a bad value by column number.
                column_types={name: pa.string() for name in kinds},
                include_columns=list(kinds),
                null_values=_CSV_NULLS,
                strings_can_be_null=True,
            ),
        )
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: expected a readable CSV file. Received: {error}") from error
    return _typed(path, table, kinds)


def read_parquet(path: Path, kinds: Mapping[str, Kind]) -> pa.Table:
    """Reads the named columns of a parquet file; see `read_csv`.

    Args:
        path: The file.
        kinds: What each wanted column holds; other columns are ignored.

    Returns:
        The columns in the order of `kinds`.

    Raises:
        DataError: As for `read_csv`.
    """
    try:
        _require_columns(path, pq.read_schema(path).names, kinds)
        table = pq.read_table(path, columns=list(kinds))
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: expected a readable parquet file. Received: {error}") from error
    for name, kind in kinds.items():
        if not _holds(table.schema.field(name).type, kind):
            raise DataError(
                f"{path}, column `{name}`: expected {_EXPECTED[kind]}. "
                f"Received: {table.schema.field(name).type}"
            )
    return _typed(path, table, kinds)


def _require_columns(path: Path, present: list[str], kinds: Mapping[str, Kind]) -> None:
    missing = [name for name in kinds if name not in present]
    if missing:
        raise DataError(
            f"{path}: expected column{'s' if len(missing) > 1 else ''} "
            f"{', '.join(f'`{name}`' for name in missing)}. "
            f"Received: {', '.join(present) or 'an empty file'}"
        )


def _holds(arrow_type: pa.DataType, kind: Kind) -> bool:
    if kind == "ids":
        is_list = pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)
        return is_list and pa.types.is_integer(arrow_type.value_type)
    if kind == "float":
        return pa.types.is_floating(arrow_type) or pa.types.is_integer(arrow_type)
    if kind in ("string", "date", "first_id"):
        if pa.types.is_dictionary(arrow_type):
            arrow_type = arrow_type.value_type
        return pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type)
    return bool(pa.types.is_integer(arrow_type))


def _typed(path: Path, table: pa.Table, kinds: Mapping[str, Kind]) -> pa.Table:
    if table.num_rows == 0:
        raise DataError(f"{path}: expected at least one row. Received: none")
    return pa.table({name: _column(path, name, table[name], kind) for name, kind in kinds.items()})


def _column(path: Path, name: str, column: pa.ChunkedArray, kind: Kind) -> pa.ChunkedArray:
    place = f"{path}, column `{name}`: expected {_EXPECTED[kind]}"
    if kind in ("int", "flag") and column.null_count:
        first = pc.index(pc.is_null(column), True).as_py()
        raise DataError(
            f"{place} without nulls. Received: {column.null_count} null, the first in row {first}"
        )
    if kind == "nullable_int" and pa.types.is_string(column.type):
        column = pc.replace_substring_regex(column, pattern=r"\.0+$", replacement="")
    if kind == "first_id":
        column = pc.replace_substring_regex(column.cast(pa.string()), ",.*$", "")
    try:
        if kind == "date":
            column = column.cast(pa.string()).cast(pa.date32()).cast(pa.int32())
        column = column.cast(_ARROW_TYPES[kind])
    except pa.ArrowInvalid as error:
        raise DataError(f"{place}. Received: {error}") from error
    if kind == "flag" and not pc.all(pc.is_in(column, pa.array([0, 1]))).as_py():
        strange = pc.unique(column.filter(pc.invert(pc.is_in(column, pa.array([0, 1])))))
        raise DataError(f"{place}. Received: {strange.to_pylist()[:5]}")
    if kind == "ids":
        if column.null_count:
            column = pc.fill_null(column, pa.scalar([], type=column.type))
        if pc.list_flatten(column).null_count:
            raise DataError(f"{place} without nulls. Received: a null inside a list")
    return column
