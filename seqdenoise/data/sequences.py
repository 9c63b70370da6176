"""Raw events to point-in-time sequences: what was known strictly before each impression."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqdenoise.data.columns import (
    IntArray,
    column_of,
    flatten_lists,
    int64_values,
    is_list,
    ranges,
    string_codes,
)
from seqdenoise.data.lookup import Lookup
from seqdenoise.errors import DataError

_KEY_LIMIT = 2**63 - 1
# Bounds the memory of one gather, and keeps list offsets and text within 32 bits.
_ENTRIES_PER_CHUNK = 2**24


class _Clock:
    """Maps times to slots that keep order and equality; slot 0 lies before every time.

    A slot is the distance from the first event, so that user rank and slot share one int64 key.
    Where that does not fit (nanoseconds over years and many users), it is the time's rank.
    """

    def __init__(self, times: IntArray, num_users: int):
        # Python integers: the span of int64 times may not fit int64.
        self._low = int(times.min()) if len(times) else 0
        self._high = int(times.max()) if len(times) else 0
        self._ranked: IntArray | None = None
        # Slot 0 for histories, one slot for every time, one for impressions after the last event.
        self.num_slots = self._high - self._low + 3
        if num_users * self.num_slots > _KEY_LIMIT:
            self._ranked = np.unique(times)
            self.num_slots = len(self._ranked) + 2
        if num_users * self.num_slots > _KEY_LIMIT:
            raise DataError(
                "events: expected users times distinct timestamps below 2**63, to share one sort "
                f"key. Received: {num_users} users, {self.num_slots - 2} timestamps; "
                "build the sequences for a part of the users at a time"
            )

    def slots(self, times: IntArray) -> IntArray:
        """The slot of each time, at least 1; a time between two events' gets the later's slot."""
        if self._ranked is not None:
            return np.searchsorted(self._ranked, times, side="left") + 1
        return np.clip(times, self._low, self._high) - self._low + 1 + (times > self._high)


@dataclass(frozen=True)
class _TypeLog:
    """One type's entries, sorted by user, then histories, then time, then log order."""

    keys: IntArray
    items: IntArray
    timestamps: IntArray
    from_history: npt.NDArray[np.bool_]
    item_rows: IntArray


class SequenceBuilder:
    """Sorts the events once; then builds the sequences of any number of impressions.

    Args:
        events: `user`, `item`, `timestamp` (integers in one unit), `type` (string), in any order.
            Events of equal user and time keep the table's order.
        types: The sequence types; other types' events are ignored.
        max_length: How many entries a sequence keeps, the most recent ones.
        histories: Optional `user`, `type`, `items` (list of integers, oldest to newest), one row a
            user and type; older than every event, without times. A null list is an empty one.
        items: Optional `item`, unique, and the columns named in `item_fields`.
        item_fields: Which item columns become sequences too; null for unknown items.

    Raises:
        DataError: A column is missing, of the wrong type or has nulls, an item or history occurs
            twice, or two output columns would share a name.
    """

    def __init__(
        self,
        events: pa.Table,
        *,
        types: Sequence[str],
        max_length: int,
        histories: pa.Table | None = None,
        items: pa.Table | None = None,
        item_fields: Sequence[str] = (),
    ):
        if not types or max_length < 1:
            raise ValueError(
                "expected at least one type and max_length >= 1. "
                f"Received: types {list(types)}, max_length {max_length}"
            )
        if item_fields and items is None:
            raise DataError(f"items: expected a table with {list(item_fields)}. Received: none")
        self._max_length = max_length
        self._item_fields = tuple(item_fields)
        self._lookup = (
            Lookup(items, "item", item_fields, place="items")
            if items is not None and item_fields
            else None
        )
        names = [name for kind in types for name in sequence_columns(kind, item_fields)]
        if len(set(names)) < len(names):
            raise DataError(
                "expected sequence columns of distinct names. Received: "
                f"{sorted({name for name in names if names.count(name) > 1})} more than once"
            )

        event_types = string_codes(events, "type", types, "events")
        wanted = event_types >= 0
        event_types = event_types[wanted]
        event_users = int64_values(events, "user", "events")[wanted]
        event_items = int64_values(events, "item", "events")[wanted]
        event_times = int64_values(events, "timestamp", "events")[wanted]
        past = _histories(histories, types)
        self._users = np.unique(np.concatenate([event_users, *(users for users, _ in past)]))
        self._clock = _Clock(event_times, len(self._users))
        event_keys = np.searchsorted(self._users, event_users) * self._clock.num_slots
        event_keys += self._clock.slots(event_times)

        self._logs: dict[str, _TypeLog] = {}
        for code, (kind, (past_users, past_items)) in enumerate(zip(types, past, strict=True)):
            of_kind = np.flatnonzero(event_types == code)
            past_keys = np.searchsorted(self._users, past_users) * self._clock.num_slots
            keys = np.concatenate([past_keys, event_keys[of_kind]])
            order = np.argsort(keys, kind="stable")
            sorted_items = np.concatenate([past_items, event_items[of_kind]])[order]
            no_time = np.zeros(len(past_keys), np.int64)
            self._logs[kind] = _TypeLog(
                keys=keys[order],
                items=sorted_items,
                timestamps=np.concatenate([no_time, event_times[of_kind]])[order],
                from_history=order < len(past_keys),
                item_rows=self._lookup.rows(sorted_items) if self._lookup else no_time[:0],
            )

    def build(self, impressions: pa.Table) -> pa.Table:
        """The sequences of some impressions.

        Args:
            impressions: `user` and `timestamp`, integers in the events' unit.

        Returns:
            One row an impression, in their order. For each type T the list columns `T__item`
            (int64), `T__<field>` (the field's type) and `T__timestamp` (int64, null for entries
            from a history), all of the same length: the last `max_length` entries strictly before
            the impression's timestamp, oldest to newest; ties with the impression are left out. No
            list is null.

        Raises:
            DataError: A column is missing, not of integers, or has nulls.
        """
        users = int64_values(impressions, "user", "impressions")
        times = int64_values(impressions, "timestamp", "impressions")
        step = max(1024, _ENTRIES_PER_CHUNK // self._max_length)
        return pa.concat_tables(
            self._build(users[start : start + step], times[start : start + step])
            for start in range(0, max(1, len(users)), step)
        )

    def _build(self, users: IntArray, times: IntArray) -> pa.Table:
        ranks = np.searchsorted(self._users, users)
        known = np.zeros(len(users), np.bool_)
        inside = ranks < len(self._users)
        known[inside] = self._users[ranks[inside]] == users[inside]
        # An unknown user gets an empty range, whatever its rank says.
        first_keys = np.where(known, ranks, 0) * self._clock.num_slots
        end_keys = first_keys + np.where(known, self._clock.slots(times), 0)

        columns: dict[str, pa.Array] = {}
        for kind, log in self._logs.items():
            # side="left": entries with the impression's own time stay out.
            ends = np.searchsorted(log.keys, end_keys, side="left")
            starts = np.searchsorted(log.keys, first_keys, side="left")
            starts = np.maximum(starts, ends - self._max_length)
            lengths = ends - starts
            taken = ranges(starts, lengths)
            offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
            values = [pa.array(log.items[taken])]
            if self._lookup:
                rows = log.item_rows[taken]
                values += [self._lookup.take(field, rows) for field in self._item_fields]
            values.append(pa.array(log.timestamps[taken], mask=log.from_history[taken]))
            names = sequence_columns(kind, self._item_fields)
            for name, flat in zip(names, values, strict=True):
                columns[name] = pa.ListArray.from_arrays(offsets, flat)
        return pa.table(columns)


def sequence_columns(kind: str, item_fields: Sequence[str]) -> list[str]:
    """The names of one type's columns.

    Example:
        >>> sequence_columns("click", ["brand"])
        ['click__item', 'click__brand', 'click__timestamp']
    """
    return [f"{kind}__{field}" for field in ("item", *item_fields, "timestamp")]


def _histories(histories: pa.Table | None, types: Sequence[str]) -> list[tuple[IntArray, IntArray]]:
    """For each type, user and item of every history entry, a user's oldest to newest."""
    nothing = np.empty(0, np.int64)
    if histories is None:
        return [(nothing, nothing)] * len(types)
    place = "histories"
    lists = column_of(histories, "items", place)
    if not is_list(lists.type):
        raise DataError(f"{place}, column `items`: expected lists. Received: {lists.type}")
    flat, lengths = flatten_lists(lists)
    items = int64_values(pa.table({"items": flat}), "items", place)
    users = int64_values(histories, "user", place)
    codes = string_codes(histories, "type", types, place)
    result = []
    for code, kind in enumerate(types):
        rows = codes == code
        unique, counts = np.unique(users[rows], return_counts=True)
        if (counts > 1).any():
            raise DataError(
                f"{place}: expected one row a user and type. Received: "
                f"user {unique[np.argmax(counts > 1)]}, type {kind!r} more than once"
            )
        result.append((np.repeat(users[rows], lengths[rows]), items[np.repeat(rows, lengths)]))
    return result


def build_sequences(
    impressions: pa.Table,
    events: pa.Table,
    *,
    types: Sequence[str],
    max_length: int,
    histories: pa.Table | None = None,
    items: pa.Table | None = None,
    item_fields: Sequence[str] = (),
) -> pa.Table:
    """Builds every impression's sequences in one go.

    For more impressions than fit in memory, make a `SequenceBuilder` and feed it parts.

    Args:
        impressions: As in `SequenceBuilder.build`.
        events: As in `SequenceBuilder`.
        types: As in `SequenceBuilder`.
        max_length: As in `SequenceBuilder`.
        histories: As in `SequenceBuilder`.
        items: As in `SequenceBuilder`.
        item_fields: As in `SequenceBuilder`.

    Returns:
        As `SequenceBuilder.build`.

    Raises:
        DataError: As `SequenceBuilder` and `SequenceBuilder.build`.

    Example:
        >>> events = pa.table(
        ...     {"user": [1, 1, 1], "item": [10, 11, 12], "timestamp": [5, 7, 9],
        ...      "type": ["click"] * 3}
        ... )
        >>> impressions = pa.table({"user": [1, 2], "timestamp": [9, 9]})
        >>> built = build_sequences(impressions, events, types=["click"], max_length=5)
        >>> built.to_pydict()
        {'click__item': [[10, 11], []], 'click__timestamp': [[5, 7], []]}
    """
    builder = SequenceBuilder(
        events,
        types=types,
        max_length=max_length,
        histories=histories,
        items=items,
        item_fields=item_fields,
    )
    return builder.build(impressions)
