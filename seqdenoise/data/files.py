"""Parquet files whose every failure names the file, the row group and the column."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from seqdenoise.errors import DataError

# What pyarrow raises for files that are cut off, overwritten or no parquet at all.
_READ_ERRORS = (OSError, pa.ArrowException)


class ParquetSource:
    """An open parquet file, read one row group at a time.

    Args:
        path: The file.

    Raises:
        DataError: There is no such file, or it is empty, cut off or no parquet.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        if not self.path.is_file():
            raise DataError(f"{self.path}: expected a parquet file. Received: no such file")
        size = self.path.stat().st_size
        try:
            self._file = pq.ParquetFile(self.path, page_checksum_verification=True)
        except _READ_ERRORS as error:
            raise DataError(
                f"{self.path}: expected a whole parquet file. Received: {size} bytes, {error}"
            ) from error
        self.schema: pa.Schema = self._file.schema_arrow
        self.num_rows: int = self._file.metadata.num_rows
        self.num_row_groups: int = self._file.metadata.num_row_groups

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
        """Closes the file."""
        self._file.close()

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
        try:
            table = self._file.read_row_group(index, columns=list(columns))
        except _READ_ERRORS as error:
            raise DataError(
                f"{self.path}, row group {index}{self._broken_column(index, columns)}: "
                f"expected readable pages. Received: {error}"
            ) from error
        return table.select(list(columns))

    def _broken_column(self, index: int, columns: Sequence[str]) -> str:
        for name in columns:
            try:
                self._file.read_row_group(index, columns=[name])
            except _READ_ERRORS:
                return f", column `{name}`"
        return ""

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Reads some columns of the whole file; errors as in `read_row_group`."""
        groups = [self.read_row_group(index, columns) for index in range(self.num_row_groups)]
        empty = pa.schema([self.schema.field(name) for name in columns]).empty_table()
        return pa.concat_tables(groups) if groups else empty
