"""The checks of one row group, column by column."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.checking.findings import Findings, Place
from pipelines.checking.layout import Layout
from seqdenoise.data.columns import IntArray, decoded, flatten_lists
from seqdenoise.errors import DataError

BoolArray = npt.NDArray[np.bool_]

_UNITS = ["s", "ms", "us", "ns"]
_MAX_INT64 = 2**63 - 1


def check_scalars(table: pa.Table, layout: Layout, place: Place, findings: Findings) -> None:
    """Checks the columns of one value a row.

    Args:
        table: Scalar columns of a row group.
        layout: Of its file.
        place: The row group.
        findings: Where defects go.
    """
    for name in table.column_names:
        values = decoded(table[name])
        known = values.is_valid().to_numpy(zero_copy_only=False)
        if name in layout.keys or name in layout.labels or name == "weight":
            findings.rows("null", place, name, np.flatnonzero(~known), "expected no nulls")
        else:
            findings.rows("null_feature", place, name, np.flatnonzero(~known), "nulls")
        wrong = _wrong_values(values, known, name, layout)
        if name in layout.labels or name in layout.maybe_labels:
            code = "label" if name in layout.labels else "maybe_label"
            wrong[code] = _not_a_label(values, known), "expected labels 0 or 1"
        if name == "weight":
            negative = values.to_numpy(zero_copy_only=False) < 0
            wrong["weight"] = known & negative, "expected weights of at least 0"
        for code, (mask, what) in wrong.items():
            rows = np.flatnonzero(mask)
            received = f"{what}. Received: {values[rows[0]].as_py()!r}" if len(rows) else ""
            findings.rows(code, place, name, rows, received)


def _not_a_label(values: pa.Array, known: BoolArray) -> BoolArray:
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        # Booleans are fine, and anything else is wrong wherever it is known.
        return known & (not pa.types.is_boolean(kind))
    return known & ~np.isin(values.to_numpy(zero_copy_only=False), [0, 1])


def _wrong_values(
    values: pa.Array, known: BoolArray, name: str, layout: Layout
) -> dict[str, tuple[BoolArray, str]]:
    """By code which values are wrong, in whatever column or list, and what was expected."""
    if pa.types.is_floating(values.type):
        # Not in Arrow, some versions of which cannot do it with float16.
        finite = np.isfinite(values.to_numpy(zero_copy_only=False))
        return {"not_finite": (known & ~finite, "expected finite numbers")}
    if not pa.types.is_integer(values.type):
        return {}
    wrong: dict[str, tuple[BoolArray, str]] = {}
    numbers, beyond = _int64(values)
    if beyond is not None:
        wrong["beyond_int64"] = beyond, "expected values within int64"
        known = known & ~beyond
    if layout.is_id(name):
        size = layout.sizes.get(name)
        negative = known & (numbers < 0)
        if size is None:
            wrong["negative_id"] = negative, "a negative id"
        else:
            outside = negative | (known & (numbers >= size))
            outside |= False if beyond is None else beyond
            wrong["beyond_size"] = outside, f"expected ids from 0 to {size - 1}"
        if layout.is_item(name) or size is not None:
            wrong["pad_id"] = known & (numbers == 0), "0, which is the id of padding"
    return wrong


def _int64(values: pa.Array) -> tuple[IntArray, BoolArray | None]:
    """The values, 0 where null, and where a uint64 is beyond int64."""
    values = values.fill_null(0)
    beyond = None
    if pa.types.is_uint64(values.type):
        beyond = pc.greater(values, pa.scalar(_MAX_INT64, pa.uint64()))
        beyond = beyond.to_numpy(zero_copy_only=False)
    return values.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False), beyond


@dataclass(frozen=True)
class _Elements:
    """A list column flat: the values, and the row that owns each."""

    values: pa.Array
    known: BoolArray
    owners: IntArray
    lengths: IntArray

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> "_Elements":
        values, lengths = flatten_lists(column)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        return cls(values, values.is_valid().to_numpy(zero_copy_only=False), owners, lengths)

    def rows(self, wrong: BoolArray) -> IntArray:
        return np.unique(self.owners[wrong])


def check_lists(
    table: pa.Table, kind: str, layout: Layout, place: Place, findings: Findings
) -> None:
    """Checks the list columns of one sequence type.

    Args:
        table: The type's columns, and `timestamp` where the file has it.
        kind: The type; empty for the items of histories.
        layout: Of the file.
        place: The row group.
        findings: Where defects go.
    """
    names = layout.lists[kind]
    flat = {}
    for name in names:
        nulls = table[name].is_null().to_numpy()
        what = "null lists, which read as empty ones"
        findings.rows("null_list", place, name, np.flatnonzero(nulls), what)
        flat[name] = _Elements.of(table[name])
    reference = f"{kind}__item" if f"{kind}__item" in flat else names[0]
    times = flat.get(f"{kind}__timestamp")
    for name, elements in flat.items():
        lengths, expected = elements.lengths, flat[reference].lengths
        rows = np.flatnonzero(lengths != expected)
        what = _received(rows, f"expected lists as long as `{reference}`'s", lengths, expected)
        findings.rows("length_mismatch", place, name, rows, what)
        if layout.max_length is not None:
            rows = np.flatnonzero(lengths > layout.max_length)
            what = _received(rows, f"expected at most {layout.max_length} entries", lengths)
            findings.rows("too_long", place, name, rows, what)
        _check_nulls(name, elements, times, layout, place, findings)
        for code, (mask, what) in _wrong_values(
            elements.values, elements.known, name, layout
        ).items():
            if mask.any():
                first = elements.values[int(np.argmax(mask))].as_py()
                rows = elements.rows(mask)
                findings.rows(code, place, name, rows, f"{what}. Received: {first!r}")
    if times is not None and "timestamp" in table.column_names:
        name = f"{kind}__timestamp"
        _check_times(name, times, table["timestamp"], layout, place, findings)


def _received(rows: IntArray, what: str, lengths: IntArray, other: IntArray | None = None) -> str:
    if not len(rows):
        return what
    beside = "" if other is None else f" beside {other[rows[0]]}"
    return f"{what}. Received: {lengths[rows[0]]} entries{beside}"


def _check_nulls(
    name: str,
    elements: _Elements,
    times: _Elements | None,
    layout: Layout,
    place: Place,
    findings: Findings,
) -> None:
    if elements is times:
        return  # entries of a history have no time
    nulls = ~elements.known
    if layout.is_item(name):
        rows = elements.rows(nulls)
        findings.rows("null_in_list", place, name, rows, "expected no nulls inside the lists")
        return
    if times is not None:
        if not np.array_equal(times.lengths, elements.lengths):
            return  # which is an error already, and no entry has its time beside it
        nulls &= times.known  # a history knows no more than the items
    rows = elements.rows(nulls)
    findings.rows("null_feature_in_list", place, name, rows, "nulls inside the lists")


def _check_times(
    name: str,
    times: _Elements,
    shown: pa.ChunkedArray,
    layout: Layout,
    place: Place,
    findings: Findings,
) -> None:
    if pa.types.is_timestamp(times.values.type) != pa.types.is_timestamp(shown.type):
        what = f"expected times like `timestamp`'s, {shown.type}. Received: {times.values.type}"
        findings.row_group("wrong_type", place, what, column=name)
        return
    try:
        events, moments = _same_unit(times.values, decoded(shown))
    except (pa.ArrowInvalid, DataError) as error:
        findings.row_group("wrong_type", place, str(error), column=name)
        return
    moment_known = decoded(shown).is_valid().to_numpy(zero_copy_only=False)
    moment = moments[times.owners]
    late = times.known & moment_known[times.owners] & (events >= moment + layout.late_from)
    if late.any():
        first = int(np.argmax(late))
        allowed = "at or before" if layout.late_from else "strictly before"
        what = f"expected events {allowed} the impression. Received: {times.values[first].as_py()}"
        what += f" for {shown[int(times.owners[first])].as_py()}"
        findings.rows("future", place, name, times.rows(late), what)
    if not len(events):
        return
    same_row = times.owners[1:] == times.owners[:-1]
    earlier = times.known[1:] & times.known[:-1] & (events[1:] < events[:-1])
    backwards = same_row & (earlier | (times.known[:-1] & ~times.known[1:]))
    rows = np.unique(times.owners[1:][backwards])
    findings.rows("order", place, name, rows, "expected entries oldest to newest, untimed first")


def _same_unit(events: pa.Array, moments: pa.Array) -> tuple[IntArray, IntArray]:
    """Both as integers of one unit, 0 where null."""
    if pa.types.is_timestamp(events.type):
        if (events.type.tz is None) != (moments.type.tz is None):
            raise DataError("expected times that both have a zone, or neither")
        unit = max(events.type.unit, moments.type.unit, key=_UNITS.index)
        events = events.cast(pa.timestamp(unit)).cast(pa.int64())
        moments = moments.cast(pa.timestamp(unit)).cast(pa.int64())
    return _int64(events)[0], _int64(moments)[0]
