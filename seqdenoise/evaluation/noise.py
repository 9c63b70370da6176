"""Noise events planted into the histories of prepared rows, to see what a model makes of them."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seqdenoise.data.columns import (
    IntArray,
    column_of,
    decoded,
    flatten_lists,
    int64_values,
    is_list,
    ranges,
)
from seqdenoise.data.mixing import mix64
from seqdenoise.errors import DataError

Draw = Literal["uniform", "popularity"]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Catalogue:
    """What noise is drawn from: the items that were shown in some rows.

    Attributes:
        items: int64 `[M]`, increasing.
        counts: int64 `[M]`, in how many rows each was the candidate.
        fields: By name the items' own columns, `[M]` each, as in the first row that shows the item.
    """

    items: IntArray
    counts: IntArray
    fields: Mapping[str, pa.Array]

    @classmethod
    def of_rows(cls, tables: Iterable[pa.Table], fields: Sequence[str] = ()) -> "Catalogue":
        """Counts the candidates of prepared rows, best those of training.

        Args:
            tables: Prepared rows in parts, with `item` and the columns `fields`.
            fields: The item fields that histories hold too.

        Returns:
            The catalogue.

        Raises:
            DataError: A column is missing, `item` holds no integers, or there are no rows.

        Example:
            >>> rows = pa.table({"item": [7, 5, 7], "brand": ["x", None, "x"]})
            >>> shown = Catalogue.of_rows([rows], ["brand"])
            >>> shown.items, shown.counts, shown.fields["brand"].to_pylist()
            (array([5, 7]), array([1, 2]), [None, 'x'])
        """
        items, counts = np.empty(0, np.int64), np.empty(0, np.int64)
        columns: dict[str, pa.Array] = {}
        for table in tables:
            shown = int64_values(table, "item", "rows")
            found, first, times = np.unique(shown, return_index=True, return_counts=True)
            merged, position = np.unique(np.concatenate([items, found]), return_index=True)
            for name in fields:
                new = decoded(column_of(table, name, "rows")).take(pa.array(first))
                old = columns.get(name, new.slice(0, 0))
                columns[name] = pa.concat_arrays([old, new]).take(pa.array(position))
            total = np.zeros(merged.size, np.int64)
            total[np.searchsorted(merged, items)] += counts
            total[np.searchsorted(merged, found)] += times
            items, counts = merged, total
        if not items.size:
            raise DataError("rows: expected at least one to draw noise items from. Received: none")
        return cls(items, counts, columns)

    def drawn(self, shares: Floats, draw: Draw) -> IntArray:
        """The positions in `items` that numbers from [0, 1) stand for, int64 of their shape."""
        if draw == "uniform":
            found = (shares * self.items.size).astype(np.int64)
        else:
            ends = np.cumsum(self.counts)
            found = np.searchsorted(ends, shares * ends[-1], side="right")
        return np.minimum(found, self.items.size - 1)  # a product may round up to the end


@dataclass(frozen=True)
class _Plan:
    """Which entries the new histories of one type hold, row after row.

    Attributes:
        lengths: int64 `[rows]`, new lengths.
        owners: int64 `[E]`, each entry's row.
        source: int64 `[E]`, of a real entry its position among the old entries of all rows; of a
            planted one that of the next real entry, which may be the next row's.
        planted: bool `[E]`.
        has_older: bool `[E]`, whether the row has an old entry before `source`.
        has_newer: bool `[E]`, whether `source` is the row's own.
    """

    lengths: IntArray
    owners: IntArray
    source: IntArray
    planted: Bools
    has_older: Bools
    has_newer: Bools


def plant_noise(
    rows: pa.Table,
    catalogue: Catalogue,
    *,
    types: Sequence[str],
    rate: float,
    max_length: int,
    draw: Draw = "uniform",
    seed: int = 0,
) -> tuple[pa.Table, dict[str, pa.ListArray]]:
    """Plants noise events into histories, as if the log had held them.

    A history of `n` events becomes one of `min(n / (1 - rate), max_length)`, of which the share
    `rate` is noise: whole numbers at random, so that it is the share over many rows. What no longer
    fits is the oldest. An empty history stays empty. All places in the new history are as likely.

    A planted event is of an item of the catalogue and has that item's fields. Its time lies at
    random between those of its neighbours, or the newest event's and the impression's, strictly
    before the latter unless the newest event is not; ahead of the oldest event it is the oldest's;
    beside an event of unknown time it is null. `T__age` is the time since then; `T__session` is
    that of the next event, or of the one before the first where there is none; other columns of an
    event, such as a dwell time, are null.

    Draws depend on `seed`, the row's user and timestamp, the type and the place alone: not on the
    order of the rows or how they are cut into batches, and the candidates of one page, which share
    a history, share its noise. At another time the same user gets other noise.

    Args:
        rows: Prepared rows: `user`, `timestamp` (integers) and, for each type T, the list columns
            `T__item`, `T__timestamp` and any others.
        catalogue: Where items come from. It may have an item field that a type has not.
        types: The types to plant into.
        rate: Share of noise among the events of the new histories, in [0, 1).
        max_length: The most events of a history.
        draw: `uniform` gives every item the same chance, `popularity` one in proportion to its
            count.
        seed: Of all draws, from 0.

    Returns:
        The rows with new list columns, and by type a list of booleans a row, True for an entry that
        was planted.

    Raises:
        DataError: A column is missing or of the wrong type, or lists of a type differ in length.
        ValueError: An option is out of range.

    Example:
        >>> rows = pa.table({"user": [1], "timestamp": [50], "item": [7],
        ...                  "click__item": [[3, 4, 5]], "click__timestamp": [[10, 20, 30]]})
        >>> noisy, planted = plant_noise(
        ...     rows, Catalogue.of_rows([rows]), types=["click"], rate=0.5, max_length=4)
        >>> noisy["click__item"].to_pylist(), planted["click"].to_pylist()
        ([[7, 7, 4, 5]], [[True, True, False, False]])
    """
    if not 0 <= rate < 1:
        raise ValueError(f"`rate` must be in [0, 1). Received: {rate}")
    if draw not in get_args(Draw):
        raise ValueError(f"`draw` must be one of {list(get_args(Draw))}. Received: {draw!r}")
    if max_length < 1:
        raise ValueError(f"`max_length` must be at least 1. Received: {max_length}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"`seed` must be in [0, 2**63). Received: {seed}")
    shown_at = int64_values(rows, "timestamp", "rows")
    users = int64_values(rows, "user", "rows").view(np.uint64)
    row_keys = mix64(shown_at.view(np.uint64) ^ mix64(users ^ mix64(np.full(1, seed, np.uint64))))
    masks = {}
    for kind in types:
        keys = mix64(row_keys ^ np.uint64(zlib.crc32(kind.encode())))
        old = _lists_of(rows, kind)
        plan = _plan(old[f"{kind}__item"][1], keys, rate, max_length)
        offsets = pa.array(np.concatenate([[0], np.cumsum(plan.lengths)]), pa.int32())
        values = _values(kind, old, plan, keys, catalogue, draw, shown_at)
        for name, flat in values.items():
            column = pa.ListArray.from_arrays(offsets, flat)
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        masks[kind] = pa.ListArray.from_arrays(offsets, pa.array(plan.planted))
    return rows, masks


def _lists_of(rows: pa.Table, kind: str) -> dict[str, tuple[pa.Array, IntArray]]:
    """A type's list columns, flat, each with the lengths of its rows."""
    names = [name for name in rows.column_names if name.startswith(f"{kind}__")]
    for name in (f"{kind}__item", f"{kind}__timestamp"):
        column_of(rows, name, "rows")
    flat = {}
    for name in names:
        column = rows[name]
        if not is_list(column.type):
            raise DataError(f"rows, column `{name}`: expected lists. Received: {column.type}")
        flat[name] = flatten_lists(column)
    lengths = flat[f"{kind}__item"][1]
    for name, (_, others) in flat.items():
        different = np.flatnonzero(others != lengths)
        if different.size:
            row = int(different[0])
            raise DataError(
                f"rows, column `{name}`: expected lists as long as `{kind}__item`. "
                f"Received: {others[row]} instead of {lengths[row]} entries in row {row}"
            )
    return flat


def _shares(keys: _Keys, salt: int) -> Floats:
    """A number in [0, 1) for each key; those of another salt are independent."""
    return (mix64(mix64(keys) ^ np.uint64(salt)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _entry_keys(keys: _Keys, lengths: IntArray) -> _Keys:
    """A key for each entry of each row, by its place."""
    places = ranges(np.zeros(lengths.size, np.int64), lengths).astype(np.uint64)
    return mix64(np.repeat(keys, lengths) ^ mix64(places))


def _plan(old_lengths: IntArray, keys: _Keys, rate: float, max_length: int) -> _Plan:
    chance = _shares(keys, 1)
    # Never more real events than there are: the rounding is the same for both bounds.
    noise = np.floor(old_lengths * (rate / (1 - rate)) + chance).astype(np.int64)
    full = old_lengths + noise > max_length
    noise[full] = np.floor(max_length * rate + chance[full]).astype(np.int64)
    lengths = np.minimum(old_lengths + noise, max_length)
    kept = np.minimum(lengths - noise, old_lengths)
    noise = lengths - kept

    owners = np.repeat(np.arange(lengths.size), lengths)
    starts = np.cumsum(lengths) - lengths
    # The places of noise: the first few of a row's places in a random order.
    order = np.lexsort((_shares(_entry_keys(keys, lengths), 2), owners))
    rank = np.empty(owners.size, np.int64)
    rank[order] = np.arange(owners.size) - starts[owners]
    planted = rank < noise[owners]

    real_before = np.cumsum(~planted) - ~planted
    real_before -= (np.cumsum(kept) - kept)[owners]
    index = (old_lengths - kept)[owners] + real_before
    return _Plan(
        lengths=lengths,
        owners=owners,
        source=(np.cumsum(old_lengths) - old_lengths)[owners] + index,
        planted=planted,
        has_older=index > 0,
        has_newer=index < old_lengths[owners],
    )


def _values(
    kind: str,
    old: Mapping[str, tuple[pa.Array, IntArray]],
    plan: _Plan,
    keys: _Keys,
    catalogue: Catalogue,
    draw: Draw,
    shown_at: IntArray,
) -> dict[str, pa.Array]:
    """The flat values of one type's new columns."""
    entry_keys = _entry_keys(keys, plan.lengths)
    drawn = catalogue.drawn(_shares(entry_keys[plan.planted], 3), draw)
    times = _times(old[f"{kind}__timestamp"][0], plan, _shares(entry_keys, 4), shown_at)
    own = {"item": pa.array(catalogue.items), **catalogue.fields}
    values = {}
    for name, (flat, _) in old.items():
        field = name.removeprefix(f"{kind}__")
        if field == "timestamp":
            values[name] = times.cast(flat.type)
        elif field == "age":
            since = pc.subtract(pa.array(shown_at[plan.owners]), times)
            values[name] = _joined(flat, since.filter(pa.array(plan.planted)), plan)
        elif field == "session":
            values[name] = flat.take(_neighbour(plan))
        elif field in own:
            values[name] = _joined(flat, own[field].take(pa.array(drawn)), plan)
        else:
            values[name] = _joined(flat, pa.nulls(drawn.size, flat.type), plan)
    return values


def _joined(real: pa.Array, planted: pa.Array, plan: _Plan) -> pa.Array:
    """Real entries in their places, and the planted ones, given in their order, in theirs."""
    where = plan.source.copy()
    where[plan.planted] = len(real) + np.arange(len(planted))
    return pa.concat_arrays([real, planted.cast(real.type)]).take(pa.array(where))


def _neighbour(plan: _Plan) -> pa.Array:
    """The old entry that a new one is, follows or, at the end, comes after."""
    return pa.array(np.where(plan.has_newer, plan.source, plan.source - 1))


def _times(old: pa.Array, plan: _Plan, shares: Floats, shown_at: IntArray) -> pa.Array:
    """Times of all entries: old ones as they were, planted ones between their neighbours'."""
    number = max(len(old), 1)
    known, ticks = _ticks(old)
    newer = np.minimum(plan.source, number - 1)
    older = np.clip(plan.source - 1, 0, number - 1)
    # The last tick before the impression, unless the rules let in events of its own time.
    last = np.maximum(shown_at[plan.owners] - 1, ticks[older])
    end = np.where(plan.has_newer, ticks[newer], last)
    start = np.where(plan.has_older, ticks[older], end)
    is_known = np.where(plan.has_newer, known[newer], True)
    is_known &= np.where(plan.has_older, known[older], True)
    # Several in one gap must be in order: the larger share is the later one.
    gap = np.where(plan.planted, plan.source, -1)
    order = np.lexsort((shares, gap, plan.owners))
    place = np.lexsort((np.arange(gap.size), gap, plan.owners))
    sorted_shares = np.empty(gap.size)
    sorted_shares[place] = shares[order]
    # Ticks may be too large for floats, their differences seldom are.
    between = start + np.floor((end - start) * sorted_shares).astype(np.int64)
    between = np.minimum(between, np.maximum(start, end))
    moments = np.where(plan.planted, between, ticks[newer])
    return pa.array(moments, mask=~np.where(plan.planted, is_known, known[newer]))


def _ticks(times: pa.Array) -> tuple[Bools, npt.NDArray[Any]]:
    """Which times are known, and what they are; one of each at least, so that there is a first."""
    known = times.is_valid().to_numpy(zero_copy_only=False)
    ticks = times.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return (known, ticks) if len(ticks) else (np.zeros(1, np.bool_), np.zeros(1, np.int64))
