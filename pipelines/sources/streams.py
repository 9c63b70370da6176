"""Large text files read block by block as typed columns, and tables written as they grow.

Every defect is named by file, column and line; the header is line 1.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines.sources.columns import Kind
from seqdenoise.errors import DataError

_BLOCK_BYTES = 16 << 20
_BLOCK_LINES = 200_000
ROW_GROUP_ROWS = 1 << 18

_ARROW_TYPES = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}
_EXPECTED = {"int": "an integer", "float": "a number", "string": "a string"}


def csv_blocks(
    path: Path, kinds: Mapping[str, Kind], *, optional: Sequence[str] = ()
) -> Iterator[tuple[int, pa.Table]]:
    """Reads the named columns of a CSV file with a header line, in bounded memory.

    Args:
        path: The file, UTF-8; one row a line.
        kinds: What each wanted column holds: `int`, `float` or `string`. Others are ignored.
        optional: Columns of `kinds` in which an empty value reads as null; elsewhere it is an
            error.

    Yields:
        The line of the block's first row, and the block: the columns in the order of `kinds`.

    Raises:
        DataError: The file is missing, broken or without rows, or a column is missing or holds
            something else.
    """
    try:
        with path.open("rb") as file:
            header = next(csv.reader([file.readline().decode("utf-8-sig")]), [])
        repeated = [name for name in kinds if header.count(name) != 1]
        if repeated:
            raise DataError(
                f"{path}: expected one column {', '.join(f'`{name}`' for name in repeated)}. "
                f"Received: {', '.join(header) or 'an empty file'}"
            )
        reader = pacsv.open_csv(
            path,
            # One thread: only then does an error of the parser say in which row.
            read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
            # An empty line is a row, or the line numbers would be wrong after it.
            parse_options=pacsv.ParseOptions(ignore_empty_lines=False),
            convert_options=pacsv.ConvertOptions(
                # As strings: a typed read would name the place of a bad value by column number.
                column_types={name: pa.string() for name in kinds},
                include_columns=list(kinds),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        line = 2
        for batch in reader:
            if batch.num_rows:
                yield line, _typed(path, line, pa.Table.from_batches([batch]), kinds, optional)
            line += batch.num_rows
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: expected a readable CSV file. Received: {error}") from error
    if line == 2:
        raise DataError(f"{path}: expected at least one row. Received: none")


def separated_blocks(
    path: Path, separator: str, kinds: Mapping[str, Kind], *, encoding: str = "utf-8"
) -> Iterator[tuple[int, pa.Table]]:
    """Reads a file of `separator`-separated values without header or quotes, in bounded memory.

    Args:
        path: The file.
        separator: One or more characters.
        kinds: All columns in their order, as in `csv_blocks`.
        encoding: Of the file.

    Yields:
        The line of the block's first row, and the block.

    Raises:
        DataError: As for `csv_blocks`.
    """
    line = 1
    try:
        with path.open(encoding=encoding) as lines:
            while block := list(islice(lines, _BLOCK_LINES)):
                rows = [text.rstrip("\n").split(separator) for text in block]
                for offset, row in enumerate(rows):
                    if len(row) != len(kinds):
                        raise DataError(
                            f"{path}, line {line + offset}: expected {len(kinds)} values, "
                            f"{', '.join(kinds)}, separated by {separator!r}. "
                            f"Received: {block[offset].strip()[:200]!r}"
                        )
                columns = zip(*rows, strict=True)
                strings = pa.table(
                    {n: pa.array(c, pa.string()) for n, c in zip(kinds, columns, strict=True)}
                )
                yield line, _typed(path, line, strings, kinds, ())
                line += len(block)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a readable text file. Received: {error}") from error
    if line == 1:
        raise DataError(f"{path}: expected at least one row. Received: none")


def _typed(
    path: Path,
    line: int,
    strings: pa.Table,
    kinds: Mapping[str, Kind],
    optional: Sequence[str],
) -> pa.Table:
    columns = {}
    for name, kind in kinds.items():
        column = strings[name].combine_chunks()
        place = f"column `{name}`: expected {_EXPECTED[kind]}"
        if name not in optional and column.null_count:
            row = pc.index(column.is_null(), True).as_py()
            raise DataError(f"{path}, line {line + row}, {place}. Received: no value")
        try:
            columns[name] = column.cast(_ARROW_TYPES[kind])
        except pa.ArrowInvalid as error:
            row = _first_bad(column, _ARROW_TYPES[kind])
            raise DataError(
                f"{path}, line {line + row}, {place}. Received: {column[row].as_py()!r}"
            ) from error
    return pa.table(columns)


def _first_bad(column: pa.Array, kind: pa.DataType) -> int:
    """The first row that cannot be cast, where one cannot; by halving."""
    start, stop = 0, len(column)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            column.slice(start, middle - start).cast(kind)
            start = middle
        except pa.ArrowInvalid:
            stop = middle
    return start


class GrowingTable:
    """A parquet file written a row group at a time, as rows come in.

    Args:
        path: The file; it exists, with all columns, even where no row came.
        schema: Of the file.

    Attributes:
        num_rows: Rows added so far.
    """

    def __init__(self, path: Path, schema: pa.Schema):
        self.num_rows = 0
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")
        self._waiting: list[pa.Table] = []
        self._num_waiting = 0

    def __enter__(self) -> "GrowingTable":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None and self._num_waiting:
                self._write(pa.concat_tables(self._waiting))
        finally:
            self._writer.close()

    def add(self, table: pa.Table) -> None:
        """Adds rows; their columns in the order of the schema."""
        self.num_rows += len(table)
        self._waiting.append(table.cast(self._schema))
        self._num_waiting += len(table)
        if self._num_waiting < ROW_GROUP_ROWS:
            return
        # Only whole row groups: small ones would cost every reader dearly.
        waiting = pa.concat_tables(self._waiting)
        whole = len(waiting) - len(waiting) % ROW_GROUP_ROWS
        self._write(waiting.slice(0, whole))
        self._waiting = [waiting.slice(whole)] if whole < len(waiting) else []
        self._num_waiting = len(waiting) - whole

    def _write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
