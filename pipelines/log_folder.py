"""The raw tables of a log folder, checked against the run file before any work starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import RunConfig
from seqdenoise.data.columns import (
    decoded,
    flatten_lists,
    int64_values,
    is_list,
    is_string,
    refuse_nulls,
)
from seqdenoise.data.files import ParquetSource
from seqdenoise.errors import DataError


@dataclass(frozen=True)
class Log:
    """The tables a run needs; only the columns it names, keys as int64, labels as int8.

    Attributes:
        folder: Where they came from.
        events: `user`, `item`, `type`, `timestamp`.
        impressions: `user`, `item`, `timestamp`, labels, context fields, `weight` where the file
            has it; rows as selected by `prepare.where`.
        histories: `user`, `type`, `items`, or None.
        items: `item` and the item fields, or None where none is named.
        users: `user` and the user fields, or None where none is named.
    """

    folder: Path
    events: pa.Table
    impressions: pa.Table
    histories: pa.Table | None
    items: pa.Table | None
    users: pa.Table | None


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

_KEYS: _Wanted = [(name, _INTEGER, "") for name in ("user", "item", "timestamp")]


def _check(source: ParquetSource, wanted: _Wanted) -> None:
    for name, kind, wanted_by in wanted:
        source.require([name], wanted_by)
        actual = source.schema.field(name).type
        if not kind.accepts(actual):
            raise DataError(
                f"{source.path}, column `{name}`: expected {kind.what}. Received: {actual}"
            )


def _read(source: ParquetSource, wanted: _Wanted) -> pa.Table:
    return source.read(list(dict.fromkeys(name for name, _, _ in wanted)))


def _not_empty(source: ParquetSource) -> None:
    if not source.num_rows:
        raise DataError(f"{source.path}: expected at least one row. Received: 0 rows")


def _with_int64(table: pa.Table, names: Sequence[str], path: Path) -> pa.Table:
    for name in names:
        values = pa.array(int64_values(table, name, str(path)))
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table


def _with_labels(table: pa.Table, labels: Sequence[str], path: Path) -> pa.Table:
    for name in labels:
        refuse_nulls(table[name], name, str(path))
        values = decoded(table[name].cast(pa.int64())).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero((values != 0) & (values != 1))
        if len(wrong):
            raise DataError(
                f"{path}, column `{name}`: expected labels 0 or 1. "
                f"Received: {values[wrong[0]]} in row {wrong[0]}"
            )
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, pa.array(values.astype(np.int8)))
    return table


def _check_weight(table: pa.Table, path: Path) -> None:
    refuse_nulls(table["weight"], "weight", str(path))
    values = decoded(table["weight"]).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(wrong):
        raise DataError(
            f"{path}, column `weight`: expected finite weights of at least 0. "
            f"Received: {values[wrong[0]]} in row {wrong[0]}"
        )


def _select(table: pa.Table, where: Mapping[str, Sequence[int | str]], path: Path) -> pa.Table:
    keep = pa.array(np.ones(len(table), np.bool_))
    for name, values in where.items():
        column = decoded(table[name])
        text = pa.types.is_string(column.type)
        for value in values:
            if isinstance(value, str) != text:
                raise DataError(
                    f"{path}, column `{name}`: expected prepare.where values like the column's "
                    f"{column.type}. Received: {value!r}"
                )
        if not text:
            column = column.cast(pa.int64())
        keep = pc.and_(keep, pc.is_in(column, value_set=pa.array(values, column.type)))
    return table.filter(keep)


def _check_types(
    types: Sequence[str], events: pa.Table, histories: pa.Table | None, folder: Path
) -> None:
    found: set[str] = set()
    for table, name in ((events, "events.parquet"), (histories, "histories.parquet")):
        if table is not None:
            refuse_nulls(table["type"], "type", str(folder / name))
            found.update(pc.unique(decoded(table["type"])).to_pylist())
    unknown = [kind for kind in types if kind not in found]
    if unknown:
        raise DataError(
            f"{folder / 'events.parquet'}, column `type`: expected the sequence types {list(types)}"
            f" (prepare.sequence_types), here or in histories.parquet. Received: {sorted(found)}, "
            f"without {unknown}"
        )


def _check_histories(histories: pa.Table, path: Path) -> None:
    flat, _ = flatten_lists(histories["items"])
    if flat.null_count:
        raise DataError(
            f"{path}, column `items`: expected lists without null elements. "
            f"Received: {flat.null_count} nulls"
        )
    keys = histories.group_by(["user", "type"]).aggregate([([], "count_all")])
    twice = keys.filter(pc.field("count_all") > 1).sort_by(
        [("user", "ascending"), ("type", "ascending")]
    )
    if len(twice):
        raise DataError(
            f"{path}: expected one row a user and type. Received: user {twice['user'][0]}, "
            f"type {twice['type'][0].as_py()!r} in {twice['count_all'][0]} rows"
        )


def _side_table(path: Path, key: str, fields: Sequence[str], wanted_by: str) -> pa.Table | None:
    if not fields:
        return None
    wanted = [(key, _INTEGER, ""), *((name, _FEATURE, wanted_by) for name in fields)]
    with ParquetSource(path) as source:
        _check(source, wanted)
        table = _with_int64(_read(source, wanted), [key], path)
    keys = np.sort(table[key].to_numpy())
    twice = keys[1:][keys[1:] == keys[:-1]]
    if len(twice):
        raise DataError(f"{path}, column `{key}`: expected every {key} once. Received: {twice[0]}")
    return table


def read_log(config: RunConfig) -> Log:
    """Reads the columns a run needs, after checking all files' columns and types.

    Args:
        config: The run; `log_folder` and `prepare` are used.

    Returns:
        The checked tables.

    Raises:
        DataError: A file is missing, empty or damaged, or a column is missing, of the wrong type,
            null where it must not be, or holds what it must not; names the file and the column.
    """
    prepare, folder = config.prepare, config.log_folder
    events_path, impressions_path = folder / "events.parquet", folder / "impressions.parquet"
    histories_path = folder / "histories.parquet"
    event_columns: _Wanted = [*_KEYS, ("type", _STRING, "")]
    history_columns: _Wanted = [
        ("user", _INTEGER, ""),
        ("type", _STRING, ""),
        ("items", _LISTS, ""),
    ]
    impression_columns: _Wanted = [
        *_KEYS,
        *((name, _LABEL, "prepare.labels") for name in prepare.labels),
        *((name, _FEATURE, "prepare.context_fields") for name in prepare.context_fields),
        *((name, _SELECTOR, "prepare.where") for name in prepare.where),
    ]
    with ParquetSource(events_path) as source, ParquetSource(impressions_path) as shown:
        # Every schema first: a wrong column must not cost the reading of the others.
        if "weight" in shown.schema.names:
            impression_columns = [*impression_columns, ("weight", _NUMBER, "")]
        _check(source, event_columns)
        _check(shown, impression_columns)
        _not_empty(source)
        _not_empty(shown)
        items = _side_table(
            folder / "items.parquet", "item", prepare.item_fields, "prepare.item_fields"
        )
        users = _side_table(
            folder / "users.parquet", "user", prepare.user_fields, "prepare.user_fields"
        )
        histories = None
        if histories_path.exists():
            with ParquetSource(histories_path) as past:
                _check(past, history_columns)
                histories = _with_int64(_read(past, history_columns), ["user"], histories_path)
                histories = histories.set_column(1, "type", decoded(histories["type"]))
                _check_histories(histories, histories_path)
        events = _read(source, event_columns)
        impressions = _read(shown, impression_columns)
    events = _with_int64(events, ["user", "item", "timestamp"], events_path)
    _check_types(prepare.sequence_types, events, histories, folder)
    impressions = _with_int64(impressions, ["user", "item", "timestamp"], impressions_path)
    impressions = _with_labels(impressions, prepare.labels, impressions_path)
    if "weight" in impressions.schema.names:
        _check_weight(impressions, impressions_path)
    selected = _select(impressions, prepare.where, impressions_path)
    if not len(selected):
        raise DataError(
            f"{impressions_path}: expected rows that match prepare.where {prepare.where}. "
            f"Received: none of {len(impressions)} rows"
        )
    return Log(folder, events, selected, histories, items, users)
