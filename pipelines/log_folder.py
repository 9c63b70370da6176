"""The raw tables of a log folder, opened and checked before any work starts, read in parts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import RunConfig
from pipelines.run_sections import PrepareConfig, TimeUnit
from seqdenoise.data.columns import (
    decoded,
    flatten_lists,
    int64_values,
    is_list,
    is_string,
    refuse_nulls,
)
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.locations import exists
from seqdenoise.data.user_hash import user_fraction
from seqdenoise.errors import DataError

_SLICE_ROWS = 2**20

TableName = Literal["events", "impressions", "histories", "users"]
"""The tables whose rows belong to a user."""


@dataclass(frozen=True)
class _Kind:
    what: str
    accepts: Callable[[pa.DataType], bool]


def _is_feature(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_integer(kind) or types.is_boolean(kind) or _is_float(kind) or is_string(kind)


def _is_float(kind: pa.DataType) -> bool:
    return pa.types.is_float32(kind) or pa.types.is_float64(kind)


_INTEGER = _Kind("integers", pa.types.is_integer)
_TIME = _Kind(
    "integers or timestamps",
    lambda kind: pa.types.is_integer(kind) or pa.types.is_timestamp(kind),
)
_STRING = _Kind("strings", is_string)
_LABEL = _Kind(
    "integers (0 or 1)", lambda kind: pa.types.is_integer(kind) or pa.types.is_boolean(kind)
)
_NUMBER = _Kind("numbers", lambda kind: pa.types.is_integer(kind) or _is_float(kind))
_FEATURE = _Kind("integers, floats or strings", _is_feature)
_SELECTOR = _Kind(
    "integers or strings",
    lambda kind: _is_feature(kind) and not _is_float(kind),
)
_LISTS = _Kind(
    "lists of integers", lambda kind: is_list(kind) and pa.types.is_integer(kind.value_type)
)

# A column and what it must hold, then the run-file key that asks for it.
_Wanted = Sequence[tuple[str, _Kind, str]]

_KEYS: _Wanted = [("user", _INTEGER, ""), ("item", _INTEGER, ""), ("timestamp", _TIME, "")]


def _event_columns(prepare: PrepareConfig) -> _Wanted:
    fields = [(name, _FEATURE, "prepare.event_fields") for name in prepare.event_fields]
    return [*_KEYS, ("type", _STRING, ""), *fields]


def _impression_columns(prepare: PrepareConfig, names: Sequence[str]) -> _Wanted:
    wanted = [
        *_KEYS,
        *((name, _LABEL, "prepare.labels") for name in prepare.labels),
        *((name, _FEATURE, "prepare.context_fields") for name in prepare.context_fields),
        *((name, _SELECTOR, "prepare.where") for name in prepare.where),
    ]
    return [*wanted, ("weight", _NUMBER, "")] if "weight" in names else wanted


_HISTORY_COLUMNS: _Wanted = [("user", _INTEGER, ""), ("type", _STRING, ""), ("items", _LISTS, "")]


def _side_columns(key: str, fields: Sequence[str], wanted_by: str) -> _Wanted:
    return [(key, _INTEGER, ""), *((name, _FEATURE, wanted_by) for name in fields)]


def _columns(prepare: PrepareConfig, table: TableName, source: ParquetSource) -> _Wanted:
    if table == "events":
        return _event_columns(prepare)
    if table == "impressions":
        return _impression_columns(prepare, source.schema.names)
    if table == "histories":
        return _HISTORY_COLUMNS
    return _side_columns("user", prepare.user_fields, "prepare.user_fields")


def _check(source: ParquetSource, wanted: _Wanted) -> None:
    for name, kind, wanted_by in wanted:
        source.require([name], wanted_by)
        actual = source.schema.field(name).type
        if not kind.accepts(actual):
            raise DataError(
                f"{source.path}, column `{name}`: expected {kind.what}. Received: {actual}"
            )


def _not_empty(source: ParquetSource) -> None:
    if not source.num_rows:
        raise DataError(f"{source.path}: expected at least one row. Received: 0 rows")


@contextmanager
def open_log(config: RunConfig) -> Iterator[dict[TableName, ParquetSource]]:
    """Opens the tables that a run needs, after checking all files' columns and types.

    Args:
        config: The run; `log` and `prepare` are used.

    Yields:
        `events` and `impressions`, `histories` where there is such a file, `users` where the run
        wants user fields.

    Raises:
        DataError: A file is missing, empty or damaged, or a column is missing or of the wrong type;
            names the file and the column.
    """
    names: list[TableName] = ["events", "impressions"]
    if exists(config.log_table("histories")):
        names.append("histories")
    if config.prepare.user_fields:
        names.append("users")
    with ExitStack() as stack:
        sources = {
            name: stack.enter_context(ParquetSource(config.log_table(name))) for name in names
        }
        # Every schema first: a wrong column must not cost the reading of the others.
        for name, source in sources.items():
            _check(source, _columns(config.prepare, name, source))
        for name in ("events", "impressions"):
            _not_empty(sources[name])
        yield sources


def read_items(config: RunConfig) -> pa.Table | None:
    """The item table: `item` as int64 and the item fields; None where the run names none.

    Args:
        config: The run.

    Raises:
        DataError: The file cannot be read, lacks a column, or has an item twice.
    """
    if not config.prepare.item_fields:
        return None
    path = config.log_table("items")
    wanted = _side_columns("item", config.prepare.item_fields, "prepare.item_fields")
    with ParquetSource(path) as source:
        _check(source, wanted)
        table = _with_int64(source.read(_names(wanted)), ["item"], path)
    _refuse_twice(table, "item", path)
    return table


def _refuse_twice(table: pa.Table, key: str, path: str) -> None:
    keys = np.sort(table[key].to_numpy())
    twice = keys[1:][keys[1:] == keys[:-1]]
    if len(twice):
        raise DataError(f"{path}, column `{key}`: expected every {key} once. Received: {twice[0]}")


def _names(wanted: _Wanted) -> list[str]:
    return list(dict.fromkeys(name for name, _, _ in wanted))


def _with_int64(table: pa.Table, names: Sequence[str], place: str) -> pa.Table:
    for name in names:
        values = pa.array(int64_values(table, name, place))
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table


def _with_ticks(table: pa.Table, unit: TimeUnit, place: str) -> pa.Table:
    """Arrow timestamps as ticks; nothing is rounded, since `strictly before` hangs on it."""
    kind = table.schema.field("timestamp").type
    if not pa.types.is_timestamp(kind):
        return table
    refuse_nulls(table["timestamp"], "timestamp", place)
    try:
        ticks = table["timestamp"].cast(pa.timestamp(unit, kind.tz)).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{place}, column `timestamp`: expected times that are whole numbers of `{unit}` "
            f"(log.time_unit) within int64. Received: {kind}, {error}"
        ) from error
    return table.set_column(table.schema.get_field_index("timestamp"), "timestamp", ticks)


def _with_labels(table: pa.Table, labels: Sequence[str], place: str) -> pa.Table:
    for name in labels:
        refuse_nulls(table[name], name, place)
        values = decoded(table[name].cast(pa.int64())).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero((values != 0) & (values != 1))
        if len(wrong):
            raise DataError(
                f"{place}, column `{name}`: expected labels 0 or 1. "
                f"Received: {values[wrong[0]]} in row {wrong[0]}"
            )
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, pa.array(values.astype(np.int8)))
    return table


def _check_weight(table: pa.Table, place: str) -> None:
    refuse_nulls(table["weight"], "weight", place)
    values = decoded(table["weight"]).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        raise DataError(
            f"{place}, column `weight`: expected finite weights of at least 0. "
            f"Received: {values[wrong[0]]} in row {wrong[0]}"
        )


def _select(table: pa.Table, where: Mapping[str, Sequence[int | str]], place: str) -> pa.Table:
    keep = pa.array(np.ones(len(table), np.bool_))
    for name, values in where.items():
        column = decoded(table[name])
        text = pa.types.is_string(column.type)
        for value in values:
            if isinstance(value, str) != text:
                raise DataError(
                    f"{place}, column `{name}`: expected prepare.where values like the column's "
                    f"{column.type}. Received: {value!r}"
                )
        if not text:
            column = column.cast(pa.int64())
        keep = pc.and_(keep, pc.is_in(column, value_set=pa.array(values, column.type)))
    return table.filter(keep)


def _check_elements(histories: pa.Table, place: str) -> None:
    flat, _ = flatten_lists(histories["items"])
    if flat.null_count:
        raise DataError(
            f"{place}, column `items`: expected lists without null elements. "
            f"Received: {flat.null_count} nulls"
        )


def read_slices(
    config: RunConfig, table: TableName, source: ParquetSource, index: int, most_rows: int
) -> Iterator[tuple[int, pa.Table]]:
    """One row group of a table, slice by slice, checked; only the columns that the run needs.

    Args:
        config: The run.
        table: Which table `source` holds.
        source: As `open_log` opened it.
        index: The row group.
        most_rows: Rows of a slice, at most.

    Yields:
        How many rows were read, and those that `prepare.where` selects (of other tables than the
        impressions all): keys as int64, times as int64 ticks of the run's unit, labels as int8,
        dictionaries resolved.

    Raises:
        DataError: A page cannot be read, a key or label is null, or a column holds what it must
            not; names file, row group, column and row.
    """
    names = _names(_columns(config.prepare, table, source))
    first = 0
    for rows in source.read_slices(index, names, most_rows):
        place = source.place(index) + (f" from row {first} on" if first else "")
        yield len(rows), _typed(config, table, rows, place)
        first += len(rows)


def empty_part(config: RunConfig, table: TableName, source: ParquetSource) -> pa.Table:
    """What `read_slices` yields, without rows: for a table that has no row group."""
    names = _names(_columns(config.prepare, table, source))
    return _typed(config, table, source.schema.empty_table().select(names), source.path)


def _typed(config: RunConfig, table: TableName, part: pa.Table, place: str) -> pa.Table:
    prepare = config.prepare
    if table in ("events", "impressions"):
        part = _with_ticks(part, config.log.time_unit, place)
        part = _with_int64(part, ["user", "item", "timestamp"], place)
    else:
        part = _with_int64(part, ["user"], place)
    if table == "impressions":
        part = _with_labels(part, prepare.labels, place)
        if "weight" in part.column_names:
            _check_weight(part, place)
        part = _select(part, prepare.where, place)
    if table in ("events", "histories"):
        refuse_nulls(part["type"], "type", place)
    if table == "histories":
        _check_elements(part, place)
    return pa.table(
        {name: part[name] if name == "items" else decoded(part[name]) for name in part.column_names}
    )


def check_types(config: RunConfig, found: set[str]) -> None:
    """Raises a `DataError` where a sequence type is none of those found in the log."""
    types = config.prepare.sequence_types
    unknown = [kind for kind in types if kind not in found]
    if unknown:
        raise DataError(
            f"{config.log_table('events')}, column `type`: expected the sequence types "
            f"{list(types)} (prepare.sequence_types), here or in histories.parquet. "
            f"Received: {sorted(found)}, without {unknown}"
        )


def check_selected(config: RunConfig, selected: int, rows: int) -> None:
    """Raises a `DataError` where `prepare.where` selects none of the impressions."""
    if not selected:
        raise DataError(
            f"{config.log_table('impressions')}: expected rows that match prepare.where "
            f"{config.prepare.where}. Received: none of {rows} rows"
        )


def check_histories(config: RunConfig, histories: pa.Table) -> None:
    """Raises a `DataError` where a user and type have two rows."""
    # Dictionaries cannot be sorted.
    keys = pa.table({"user": histories["user"], "type": decoded(histories["type"])})
    keys = keys.group_by(["user", "type"]).aggregate([([], "count_all")])
    twice = keys.filter(pc.field("count_all") > 1).sort_by(
        [("user", "ascending"), ("type", "ascending")]
    )
    if len(twice):
        raise DataError(
            f"{config.log_table('histories')}: expected one row a user and type. Received: "
            f"user {twice['user'][0]}, type {twice['type'][0].as_py()!r} in "
            f"{twice['count_all'][0]} rows"
        )


def check_users(config: RunConfig, users: pa.Table) -> None:
    """Raises a `DataError` where a user has two rows."""
    _refuse_twice(users, "user", config.log_table("users"))


@dataclass(frozen=True)
class Log:
    """The tables a run needs, in memory; each as `read_slices` gives it.

    Attributes:
        events: `user`, `item`, `type`, `timestamp`, event fields.
        impressions: `user`, `item`, `timestamp`, labels, context fields, `weight` where the file
            has it; rows as selected by `prepare.where`.
        histories: `user`, `type`, `items`, or None.
        items: `item` and the item fields, or None where none is named.
        users: `user` and the user fields, or None where none is named.
    """

    events: pa.Table
    impressions: pa.Table
    histories: pa.Table | None
    items: pa.Table | None
    users: pa.Table | None


def read_log(config: RunConfig, *, sample: float = 1.0) -> Log:
    """Reads the log of all users, or of a sample of them.

    Args:
        config: The run; `log` and `prepare` are used.
        sample: The share of the users to read, in (0, 1], chosen by `user_fraction`. Memory is that
            of the sample, and of one row group. With less than 1 the tables may be empty.

    Returns:
        The checked tables.

    Raises:
        DataError: As `open_log` and `read_slices`; or an item, user or history occurs twice, a
            sequence type is nowhere, or `prepare.where` selects nothing.
    """
    tables: dict[str, pa.Table] = {}
    with open_log(config) as sources:
        num_impressions = sources["impressions"].num_rows
        items = read_items(config)
        for name, source in sources.items():
            parts = []
            for index in range(source.num_row_groups):
                for _, part in read_slices(config, name, source, index, _SLICE_ROWS):
                    if sample < 1:
                        kept = user_fraction(part["user"].to_numpy()) < sample
                        part = part.filter(pa.array(kept))
                    parts.append(part)
            parts.append(empty_part(config, name, source))
            tables[name] = pa.concat_tables(parts, promote_options="permissive")
    if "histories" in tables:
        check_histories(config, tables["histories"])
    if "users" in tables:
        check_users(config, tables["users"])
    if sample == 1:
        found = [tables[name]["type"] for name in ("events", "histories") if name in tables]
        types = {kind for column in found for kind in pc.unique(column).to_pylist()}
        check_types(config, types)
        check_selected(config, len(tables["impressions"]), num_impressions)
    return Log(
        events=tables["events"],
        impressions=tables["impressions"],
        histories=tables.get("histories"),
        items=items,
        users=tables.get("users"),
    )
