"""Which table a schema is, and what each of its columns has to hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from pipelines.checking.findings import Findings
from pipelines.config import RunConfig
from seqdenoise.data.columns import is_list, is_string

Kind = Literal["prepared", "impressions", "events", "histories", "items", "users"]

KEYS: dict[Kind, list[str]] = {
    "prepared": ["user", "item", "timestamp"],
    "impressions": ["user", "item", "timestamp"],
    "events": ["user", "item", "type", "timestamp"],
    "histories": ["user", "type"],
    "items": ["item"],
    "users": ["user"],
}
"""The columns that name a row, which must not repeat."""

_IDS = ("user", "item")


@dataclass(frozen=True)
class Layout:
    """What there is to check in a file; only columns that can be read.

    Attributes:
        kind: Which table it is.
        keys: Of `KEYS`, those that are there.
        scalars: Columns of one value a row, keys included.
        lists: For each sequence type T the columns `T__field`; `items` of histories under ``.
        labels: Columns that must be 0 or 1.
        maybe_labels: Columns that look like labels, without a run file that says so.
        sizes: What ids of a column have to be below.
        max_length: Of lists, where known.
        late_from: 0 where an event at the impression's own moment is in the future, 1 where it may
            be in the lists (`prepare.ties: include`).
    """

    kind: Kind
    keys: list[str]
    scalars: list[str]
    lists: dict[str, list[str]]
    labels: list[str]
    maybe_labels: list[str]
    sizes: Mapping[str, int] = field(default_factory=dict)
    max_length: int | None = None
    late_from: int = 0

    def is_id(self, column: str) -> bool:
        """Whether the column holds ids of users or items, or of a vocabulary of known size."""
        return column in _IDS or column in self.sizes or self.is_item(column)

    def is_item(self, column: str) -> bool:
        """Whether the column holds item ids."""
        return column == "item" or column.endswith("__item") or column == "items"


def kind_of(schema: pa.Schema, file: str, config: RunConfig | None = None) -> Kind | None:
    """Which table it is, by its sequences, its name in a log folder, or else its columns.

    Args:
        schema: Of the file.
        file: Its name; `events.parquet` may also be the folder that it is in.
        config: Names the sequence types.

    Returns:
        The table; None where it looks like none of them.
    """
    if _sequence_types(schema, config):
        return "prepared"
    parts = file.replace("\\", "/").split("/")[-2:]
    for kind in ("events", "impressions", "histories", "items", "users"):
        if f"{kind}.parquet" in parts:
            return kind
    names = set(schema.names)
    if "timestamp" in names:
        return "events" if "type" in names else "impressions"
    if {"type", "items"} <= names:
        return "histories"
    if "item" in names:
        return "items"
    return "users" if "user" in names else None


def _sequence_types(schema: pa.Schema, config: RunConfig | None) -> dict[str, list[str]]:
    """The list columns `T__field` by their type T, and what else is named like them."""
    types: dict[str, list[str]] = {}
    for name in schema.names:
        kind, _, column = name.partition("__")
        if kind and column and column != "length":
            types.setdefault(kind, []).append(name)
    known = [] if config is None else config.prepare.sequence_types
    return {
        kind: names
        for kind, names in types.items()
        if kind in known or any(_is_list_column(schema, name) for name in names)
    }


def _is_list_column(schema: pa.Schema, name: str) -> bool:
    return any(is_list(schema.field(index).type) for index in schema.get_all_field_indices(name))


def layout_of(
    schema: pa.Schema,
    file: str,
    kind: Kind,
    findings: Findings,
    *,
    config: RunConfig | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Layout:
    """What to check in a file of this table; what its schema lacks or has wrong is a finding.

    Args:
        schema: Of the file.
        file: What findings call it.
        kind: Which table it is.
        findings: Where defects of the schema go.
        config: Which columns are needed, and which are labels.
        sizes: For columns of ids of a vocabulary, what they have to be below.

    Returns:
        The columns that can be read.
    """
    sequences = _sequence_types(schema, config) if kind == "prepared" else {}
    needed, labels = _needed(kind, config)
    missing = [name for name in needed if name not in schema.names]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        what = f"expected {listed} ({kind} table). Received: {', '.join(schema.names)}"
        findings.file("missing_column", file, what)
    lists: dict[str, list[str]] = {each: [] for each in sequences}
    if kind == "histories":
        lists[""] = []
    in_lists = {name: of for of, names in sequences.items() for name in names}
    if kind == "histories":
        in_lists["items"] = ""
    scalars = []
    for name in dict.fromkeys(schema.names):
        indices = schema.get_all_field_indices(name)
        if len(indices) > 1:
            what = f"expected every column once. Received: {len(indices)} of this name"
            findings.file("repeated_column", file, what, column=name)
            continue
        arrow_type = schema.field(indices[0]).type
        problem = _type_problem(name, arrow_type, in_list=name in in_lists)
        if problem:
            serious = name in needed or name in in_lists
            code = "wrong_type" if serious else "unused_type"
            what = f"expected {problem}. Received: {arrow_type}"
            findings.file(code, file, what, column=name)
        elif name in in_lists:
            lists[in_lists[name]].append(name)
        else:
            scalars.append(name)
    has_labels = kind in ("prepared", "impressions") and config is None
    return Layout(
        kind=kind,
        keys=[name for name in KEYS[kind] if name in scalars],
        scalars=scalars,
        lists={each: names for each, names in lists.items() if names},
        labels=[name for name in labels if name in scalars],
        maybe_labels=[n for n in scalars if has_labels and n.startswith(("is_", "label"))],
        sizes=sizes or {},
        max_length=config.prepare.max_length if config and kind == "prepared" else None,
        late_from=1 if config and config.prepare.ties == "include" else 0,
    )


def _needed(kind: Kind, config: RunConfig | None) -> tuple[list[str], list[str]]:
    """The columns that must be there, and which of them are labels."""
    needed = [*KEYS[kind], *(["items"] if kind == "histories" else [])]
    if config is None:
        return needed, []
    prepare = config.prepare
    labels = prepare.labels if kind in ("prepared", "impressions") else []
    needed += labels
    if kind in ("prepared", "impressions"):
        needed += prepare.context_fields
    if kind in ("prepared", "items"):
        needed += prepare.item_fields
    if kind in ("prepared", "users"):
        needed += prepare.user_fields
    if kind == "events":
        needed += prepare.event_fields
    if kind == "prepared":
        rules = prepare.rules()
        needed += [name for each in rules.types for name in rules.columns(each)]
    return list(dict.fromkeys(needed)), labels


def _type_problem(name: str, kind: pa.DataType, *, in_list: bool) -> str:
    """What the column should hold instead; empty where it may hold this."""
    if in_list:
        if not is_list(kind):
            return "lists"
        kind = kind.value_type
    elif is_list(kind):
        return "one value a row"
    if name in _IDS or name == "items":
        return "" if pa.types.is_integer(kind) else "integers"
    if name.endswith("__item"):
        return "" if pa.types.is_integer(kind) or is_string(kind) else "integers or strings"
    if name == "timestamp" or name.endswith("__timestamp"):
        is_time = pa.types.is_integer(kind) or pa.types.is_timestamp(kind)
        return "" if is_time else "integers or timestamps"
    if name == "type":
        return "" if is_string(kind) else "strings"
    if name == "weight":
        return "" if _is_number(kind) else "numbers"
    readable = _is_number(kind) or is_string(kind) or pa.types.is_boolean(kind)
    readable |= pa.types.is_timestamp(kind) or pa.types.is_null(kind)
    return "" if readable else "integers, floats, booleans or strings"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
