"""Parquet files whose every failure names the file, the row group and the column."""

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seqdenoise.data.locations import DataFile, Location, find_files, name_of
from seqdenoise.data.schemas import common_schema
from seqdenoise.errors import DataError

# What pyarrow raises for files that are cut off, overwritten or no parquet at all.
_READ_ERRORS = (OSError, pa.ArrowException, UnicodeDecodeError)


@dataclass(frozen=True)
class _Part:
    """A file and its footer."""

    file: DataFile
    footer: pq.FileMetaData
    schema: pa.Schema


class _Open:
    """A file that is open now."""

    def __init__(self, file: DataFile, footer: pq.FileMetaData | None = None):
        self._handle = file.open()
        try:
            size = self._handle.size()
            if footer is not None and size != file.size:
                raise OSError(f"another size than before, {size} bytes instead of {file.size}")
            self.parquet = pq.ParquetFile(
                self._handle,
                metadata=footer,
                page_checksum_verification=True,
                # Far away, one large request is faster than one for each column.
                pre_buffer=not file.is_local,
            )
        except BaseException:
            self._handle.close()
            raise

    def close(self) -> None:
        self.parquet.close()
        self._handle.close()


class ParquetSource:
    """The row groups of one or many parquet files, read one at a time.

    All footers are read at once; of the files themselves one is open at a time, from its first row
    group on until another is wanted, or `close`. The row groups are numbered through all files.

    Args:
        location: A file, a folder of files (read in the order of their names; names that start
            with `_` or `.` do not count), a glob, a URL that `pyarrow.fs` or fsspec opens, or a
            sequence of these; see `seqdenoise.data.locations.find_files`.

    Attributes:
        path: What messages call the location.
        schema: The schema of all files, as `seqdenoise.data.schemas.common_schema` says.
        num_rows: Rows of all files; files without rows are fine.
        row_group_rows: Rows of each row group.
        files: Name and size in bytes of each file, in the order read.

    Raises:
        DataError: There is no such file, one is empty, cut off or no parquet, or their schemas
            do not fit together.
    """

    def __init__(self, location: Location):
        self.path = name_of(location)
        self._open: tuple[int, _Open] | None = None
        self._parts = [_read_footer(file) for file in find_files(location)]
        self.files = tuple((part.file.name, part.file.size) for part in self._parts)
        names = [name for name, _ in self.files]
        self.schema: pa.Schema = common_schema([part.schema for part in self._parts], names)
        footers = [part.footer for part in self._parts]
        self.row_group_rows: list[int] = [
            footer.row_group(index).num_rows
            for footer in footers
            for index in range(footer.num_row_groups)
        ]
        self.num_rows: int = sum(footer.num_rows for footer in footers)
        self._ends = list(itertools.accumulate(footer.num_row_groups for footer in footers))

    @property
    def num_row_groups(self) -> int:
        """Row groups of all files."""
        return len(self.row_group_rows)

    def __enter__(self) -> "ParquetSource":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes what is open; reading another row group opens its file again."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def again(self) -> "ParquetSource":
        """The same files for another reader, without reading their footers a second time."""
        other = ParquetSource.__new__(ParquetSource)
        other.__dict__ |= self.__dict__ | {"_open": None}
        return other

    def require(self, columns: Sequence[str], wanted_by: str = "") -> None:
        """Checks that every column exists, once.

        Args:
            columns: The names.
            wanted_by: What needs them, for the message.

        Raises:
            DataError: A column is missing or occurs twice.
        """
        for name in columns:
            if self.schema.names.count(name) != 1:
                reason = f" ({wanted_by})" if wanted_by else ""
                raise DataError(
                    f"{self.path}: expected one column `{name}`{reason}. "
                    f"Received: columns {self.schema.names}"
                )

    def place(self, index: int) -> str:
        """What messages call a row group: its file, and its number in there."""
        part, local = self._locate(index)
        return f"{self._parts[part].file.name}, row group {local}"

    def part_of(self, index: int) -> tuple[str, int]:
        """The location of the file that has a row group, and the row group's number in there."""
        part, local = self._locate(index)
        return self._parts[part].file.location, local

    def footer(self, index: int) -> pq.RowGroupMetaData:
        """What the footer says of a row group: its rows, and its columns' statistics."""
        part, local = self._locate(index)
        return self._parts[part].footer.row_group(local)

    def row_groups_that_may(self, expression: pc.Expression) -> list[int]:
        """The row groups that may have a row for which `expression` is true, by their footers."""
        # It takes pandas along, 40 MB that a process without conditions can do without.
        import pyarrow.dataset as ds

        result = []
        for part, end in zip(self._parts, self._ends, strict=True):
            file = ds.ParquetFileFormat().make_fragment(part.file.path, part.file.filesystem)
            first = end - part.footer.num_row_groups
            try:
                possible = [group.id for group in file.subset(expression).row_groups]
            except pa.ArrowException:
                # It fits the type common to all files, but not this file's own.
                possible = list(range(part.footer.num_row_groups))
            result += [first + group for group in possible]
        return result

    def read_row_group(self, index: int, columns: Sequence[str]) -> pa.Table:
        """Reads some columns of one row group.

        Args:
            index: The row group.
            columns: The names, in the order wanted.

        Returns:
            A table with exactly these columns.

        Raises:
            DataError: A page cannot be read, or its checksum is wrong; names the column.
        """
        part, local = self._locate(index)
        try:
            table = self._file(part).read_row_group(local, columns=list(columns))
        except _READ_ERRORS as error:
            raise DataError(
                f"{self.place(index)}{self._broken_column(part, local, columns)}: "
                f"expected readable pages. Received: {error}"
            ) from error
        if table.num_rows != self.row_group_rows[index]:
            raise DataError(
                f"{self.place(index)}: expected {self.row_group_rows[index]} rows, as its footer "
                f"says. Received: {table.num_rows}"
            )
        table = table.select(list(columns))
        return table if len(self._parts) == 1 else self._fitted(table, index)

    def read_slices(self, index: int, columns: Sequence[str], most_rows: int) -> Iterator[pa.Table]:
        """Reads some columns of one row group in slices, for row groups of any size.

        Args:
            index: The row group.
            columns: The names, in the order wanted.
            most_rows: Rows of a slice, at most.

        Yields:
            Tables as `read_row_group` returns them; none of a row group without rows.

        Raises:
            DataError: As `read_row_group`.
        """
        if self.row_group_rows[index] <= most_rows:
            yield self.read_row_group(index, columns)
            return
        part, local = self._locate(index)
        try:
            batches = self._file(part).iter_batches(
                most_rows, row_groups=[local], columns=list(columns)
            )
            for batch in batches:
                table = pa.Table.from_batches([batch]).select(list(columns))
                yield table if len(self._parts) == 1 else self._fitted(table, index)
        except _READ_ERRORS as error:
            raise DataError(
                f"{self.place(index)}{self._broken_column(part, local, columns)}: "
                f"expected readable pages. Received: {error}"
            ) from error

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Reads some columns of all rows; errors as in `read_row_group`."""
        groups = [self.read_row_group(index, columns) for index in range(self.num_row_groups)]
        return pa.concat_tables(groups) if groups else self._schema_of(columns).empty_table()

    def _locate(self, index: int) -> tuple[int, int]:
        """The file that has a row group, and the row group's number in it."""
        part = bisect.bisect_right(self._ends, index)
        return part, index - (self._ends[part - 1] if part else 0)

    def _file(self, part: int) -> pq.ParquetFile:
        if self._open is None or self._open[0] != part:
            self.close()
            self._open = (part, _Open(self._parts[part].file, self._parts[part].footer))
        return self._open[1].parquet

    def _broken_column(self, part: int, local: int, columns: Sequence[str]) -> str:
        for name in columns:
            try:
                self._file(part).read_row_group(local, columns=[name])
            except _READ_ERRORS:
                return f", column `{name}`"
        return ""

    def _schema_of(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in columns], self.schema.metadata)

    def _fitted(self, table: pa.Table, index: int) -> pa.Table:
        schema = self._schema_of(table.column_names)
        if table.schema.equals(schema):
            return table
        arrays = []
        for field, column in zip(schema, table.columns, strict=True):
            try:
                arrays.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowException as error:
                raise DataError(
                    f"{self.place(index)}, column `{field.name}`: expected {field.type}, which is "
                    f"common to all files. Received: {column.type}, {error}"
                ) from error
        return pa.table(arrays, schema=schema)


def _read_footer(file: DataFile) -> _Part:
    try:
        opened = _Open(file)
        try:
            part = _Part(file, opened.parquet.metadata, opened.parquet.schema_arrow)
        finally:
            opened.close()
    except _READ_ERRORS as error:
        raise DataError(
            f"{file.name}: expected a whole parquet file. Received: {file.size} bytes, {error}"
        ) from error
    rows = [part.footer.row_group(index).num_rows for index in range(part.footer.num_row_groups)]
    if sum(rows) != part.footer.num_rows or min(rows, default=0) < 0:
        # Arrow believes the row groups, and rows would be missing.
        raise DataError(
            f"{file.name}: expected row groups that add up to its {part.footer.num_rows} rows. "
            f"Received: {len(rows)} row groups of {rows[:5]}... rows"
        )
    return part
