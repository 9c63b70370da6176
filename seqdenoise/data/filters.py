"""Which rows to read: conditions on columns, checked against footers first."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from seqdenoise.data.columns import IntArray
from seqdenoise.data.files import ParquetSource
from seqdenoise.errors import DataError

Where: TypeAlias = pc.Expression | Mapping[str, Any]


def as_expression(where: Where, schema: pa.Schema) -> pc.Expression:
    """A condition as an Arrow expression.

    Args:
        where: An expression, or for each column what it must be: a value; a list or set of values;
            or a tuple of the least and the greatest, either of which may be None for no bound. All
            columns must agree. A null passes only where None is the value or in the list.
        schema: The types of the columns.

    Raises:
        ValueError: It is neither, or has no conditions, or a tuple has not two bounds.

    Example:
        >>> str(as_expression({"day": (3, None)}, pa.schema([("day", pa.int8())])))
        '(day >= 3)'
    """
    if isinstance(where, pc.Expression):
        return where
    if not isinstance(where, Mapping) or not where:
        raise ValueError(
            f"`where` must be an Arrow expression or map columns to values. Received: {where!r}"
        )
    conditions = [_condition(column, wanted, schema) for column, wanted in where.items()]
    result = conditions[0]
    for condition in conditions[1:]:
        result = result & condition
    return result


def _condition(column: str, wanted: Any, schema: pa.Schema) -> pc.Expression:
    field, kind = pc.field(column), schema.field(column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        field = field.cast(kind)
    if isinstance(wanted, tuple):
        if len(wanted) != 2 or wanted == (None, None):
            raise ValueError(
                f"`where` must give a tuple of the least and the greatest value for `{column}`, or "
                f"a list of values. Received: {wanted!r}"
            )
        least, greatest = wanted
        above = None if least is None else field >= pa.scalar(least)
        below = None if greatest is None else field <= pa.scalar(greatest)
        return below if above is None else above if below is None else above & below
    values = list(wanted) if isinstance(wanted, list | set | frozenset) else [wanted]
    known = [value for value in values if value is not None]
    condition = field.isin(pa.array(known, kind))
    return condition | field.is_null() if len(known) < len(values) else condition


class RowFilter:
    """A condition on the rows of a source.

    Args:
        source: The files.
        where: As in `as_expression`.

    Attributes:
        columns: The columns that the condition reads.

    Raises:
        DataError: A column is missing, or the condition does not fit the columns' types.
    """

    def __init__(self, source: ParquetSource, where: Where):
        if isinstance(where, Mapping):
            source.require(list(where), "`where`")
        empty = source.schema.empty_table()
        try:
            self._expression = as_expression(where, source.schema)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(
                f"{source.path}: expected values of the columns' types in `where`. "
                f"Received: {where}, {_in_one_line(error)}"
            ) from error
        self._passes(empty, source.path)
        # An expression does not tell its columns, but without one of them it cannot be computed.
        names = source.schema.names
        self.columns = [
            name
            for name in dict.fromkeys(names)
            if not self._works(empty.select([i for i, other in enumerate(names) if other != name]))
        ]
        if not self.columns:
            raise DataError(
                f"{source.path}: expected a condition on its columns. "
                f"Received: {_in_one_line(self._expression)}"
            )

    def _works(self, table: pa.Table) -> bool:
        try:
            self._passes(table, "")
        except DataError:
            return False
        return True

    def _passes(self, table: pa.Table, place: str) -> pa.ChunkedArray:
        columns = {"passes": self._expression}
        try:
            passes = ds.dataset(table).scanner(columns=columns, use_threads=False).to_table()[0]
        except pa.ArrowException as error:
            raise DataError(
                f"{place}: expected a condition that fits its columns. "
                f"Received: {_in_one_line(self._expression)}, {_in_one_line(error)}"
            ) from error
        if not pa.types.is_boolean(passes.type):
            raise DataError(
                f"{place}: expected a condition that is true or false for each row. "
                f"Received: {_in_one_line(self._expression)}, which is {passes.type}"
            )
        return passes

    def apply(self, table: pa.Table, place: str) -> pa.Table:
        """The rows that pass; where the condition is null, a row does not (Arrow drops it)."""
        return table.filter(self._passes(table, place))

    def counts(self, source: ParquetSource) -> IntArray:
        """How many rows of each row group pass, int64; reads the condition's columns only.

        Row groups that cannot have such a row, as their footers tell, are not read.
        """
        possible = set(source.row_groups_that_may(self._expression))
        result = np.zeros(source.num_row_groups, np.int64)
        for index in sorted(possible):
            table = source.read_row_group(index, self.columns)
            result[index] = pc.sum(self._passes(table, source.place(index))).as_py() or 0
        return result


def _in_one_line(what: object) -> str:
    return " ".join(str(what).split())
