"""One schema for the files of a table, which were written at different times."""

from collections.abc import Sequence

import pyarrow as pa

from seqdenoise.data.columns import is_list, is_string
from seqdenoise.errors import DataError


def common_schema(schemas: Sequence[pa.Schema], names: Sequence[str]) -> pa.Schema:
    """The schema that the rows of all files fit.

    The files must have the same columns, in any order. Where their types differ, integers read as
    the wider one (signed and unsigned as int64), floats as the wider one, dictionaries as their
    values, a column of nulls as the other files' type, and lists as lists of the wider values.
    Anything else, such as integers here and floats there, is refused.

    Args:
        schemas: The files' schemas, at least one.
        names: What messages call the files.

    Returns:
        The first schema, with these types.

    Raises:
        DataError: A file has another set of columns or a type that does not fit; names both.

    Example:
        >>> first = pa.schema([("a", pa.int32())])
        >>> common_schema([first, pa.schema([("a", pa.int64())])], ["x", "y"]).field("a").type
        DataType(int64)
    """
    result = schemas[0]
    for schema, name in zip(schemas[1:], names[1:], strict=True):
        if schema.equals(result):
            continue
        if sorted(schema.names) != sorted(result.names):
            odd = sorted(set(schema.names) ^ set(result.names))
            raise DataError(
                f"{name}: expected the columns of {names[0]}: {result.names}. "
                f"Received: {schema.names}, which differ in {odd}"
            )
        fields = []
        for position, column in enumerate(result.names):
            if result.names.count(column) > 1:
                # Which one belongs to which is unknown; `require` refuses to read them.
                fields.append(result.field(position))
                continue
            old, new = result.field(column), schema.field(column)
            kind = _common(old.type, new.type)
            if kind is None:
                raise DataError(
                    f"{name}, column `{column}`: expected {old.type} as in the files before it, "
                    f"the first of which is {names[0]}. Received: {new.type}"
                )
            fields.append(pa.field(column, kind, old.nullable or new.nullable, old.metadata))
        result = pa.schema(fields, result.metadata)
    return result


def _common(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if a == b:
        return a
    if pa.types.is_dictionary(a) or pa.types.is_dictionary(b):
        values = (t.value_type if pa.types.is_dictionary(t) else t for t in (a, b))
        return _common(*values)
    if pa.types.is_null(a) or pa.types.is_null(b):
        return b if pa.types.is_null(a) else a
    if is_list(a) and is_list(b):
        inner = _common(a.value_type, b.value_type)
        large = pa.types.is_large_list(a) or pa.types.is_large_list(b)
        return None if inner is None else (pa.large_list if large else pa.list_)(inner)
    if is_string(a) and is_string(b):
        return pa.large_string()
    if pa.types.is_integer(a) and pa.types.is_integer(b):
        if pa.types.is_signed_integer(a) != pa.types.is_signed_integer(b):
            return pa.int64()
        return a if a.bit_width > b.bit_width else b
    if pa.types.is_floating(a) and pa.types.is_floating(b):
        return a if a.bit_width > b.bit_width else b
    return None
