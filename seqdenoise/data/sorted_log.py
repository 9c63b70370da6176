"""A log sorted for point-in-time search: each type's entries by user, then by time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqdenoise.data.clock import Clock, time_values
from seqdenoise.data.columns import (
    IntArray,
    column_of,
    decoded,
    flatten_lists,
    int64_values,
    is_list,
    string_codes,
)
from seqdenoise.data.duplicates import LatestEntries, first_of_each
from seqdenoise.data.ordering import order_by, stable_order
from seqdenoise.data.sequence_rules import SequenceRules
from seqdenoise.data.sessions import Sessions
from seqdenoise.errors import DataError

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TypeLog:
    """One type's entries, sorted by user, then histories, then time, then log order.

    Attributes:
        keys: int64 `[entries]`, ascending: the user's first key plus the slot of the time.
        items: int64 `[entries]`.
        times: int64 `[entries]`, ticks; null for history entries.
        sessions: int64 `[entries]`, null for history entries; None where not asked for.
        fields: The event fields, null for history entries.
        latest: Which entries are superseded by others; None where all count.
    """

    keys: IntArray
    items: pa.Array
    times: pa.Array
    sessions: pa.Array | None
    fields: dict[str, pa.Array]
    latest: LatestEntries | None

    @property
    def position_type(self) -> type[np.signedinteger[Any]]:
        """The smallest type that holds every position."""
        return np.int32 if len(self.keys) < 2**31 else np.int64


class SortedLog:
    """Sorts events and histories.

    Args:
        events: As in `SequenceBuilder`.
        rules: As in `SequenceBuilder`.
        histories: As in `SequenceBuilder`.

    Attributes:
        time_type: The events' type of time, int64 for integers.
        clock: Slots of the events' times.
        types: The log of each type.
        sessions: Those of all types together, or None where not asked for.

    Raises:
        DataError: As in `SequenceBuilder`.
    """

    def __init__(self, events: pa.Table, rules: SequenceRules, histories: pa.Table | None):
        codes = string_codes(events, "type", rules.types, "events")
        users = int64_values(events, "user", "events")
        items = int64_values(events, "item", "events")
        times, self.time_type = time_values(events, "timestamp", "events")
        fields = {name: column_of(events, name, "events") for name in rules.event_fields}
        wanted = codes >= 0
        if not wanted.all():
            codes = codes[wanted]
            users, items, times = users[wanted], items[wanted], times[wanted]
            fields = {name: column.filter(pa.array(wanted)) for name, column in fields.items()}
        values = {name: decoded(column) for name, column in fields.items()}

        order = order_by(users, times)
        sorted_times = times[order]
        self._users, ranks = _ranked(users[order])
        del users, times  # each as large as what is made of it
        past = _histories(histories, rules.types)
        if past:
            everyone = np.unique(np.concatenate([self._users, *(of for of, _ in past.values())]))
            ranks = np.searchsorted(everyone, self._users)[ranks]
            self._users = everyone
        self.clock = Clock(sorted_times, len(self._users))
        keys = ranks
        keys *= self.clock.num_slots
        keys += self.clock.from_time(sorted_times)
        self.sessions = (
            Sessions(keys, sorted_times, rules.session_gap)
            if rules.session_gap is not None
            else None
        )

        sorted_codes = codes[order]
        self.types: dict[str, TypeLog] = {}
        for code, kind in enumerate(rules.types):
            of_kind = np.flatnonzero(sorted_codes == code)
            if rules.deduplicate == "exact":
                of_kind = of_kind[first_of_each(keys[of_kind], items[order[of_kind]])]
            rows = order[of_kind]
            past_users, past_items = past.get(kind, (rows[:0], rows[:0]))
            past_keys = np.searchsorted(self._users, past_users) * self.clock.num_slots
            merge = _Merge(past_keys, keys[of_kind])
            merged_items = items[rows] if merge.none else merge.filled(past_items, items[rows])
            latest = None
            if rules.deduplicate in ("consecutive", "item"):
                consecutive = rules.deduplicate == "consecutive"
                owners = merge.keys // self.clock.num_slots
                latest = LatestEntries(owners, merged_items, consecutive=consecutive)
            self.types[kind] = TypeLog(
                keys=merge.keys,
                items=pa.array(merged_items),
                times=merge.with_nulls(sorted_times[of_kind]),
                sessions=(
                    None
                    if self.sessions is None
                    else merge.with_nulls(self.sessions.numbers[of_kind])
                ),
                fields={
                    name: column.take(merge.with_nulls(rows)) for name, column in values.items()
                },
                latest=latest,
            )

    def first_keys(self, users: IntArray) -> tuple[IntArray, BoolArray]:
        """The key before all entries of each user, and whether the log has the user."""
        ranks = np.searchsorted(self._users, users)
        known = ranks < len(self._users)
        known[known] = self._users[ranks[known]] == users[known]
        return np.where(known, ranks, 0) * self.clock.num_slots, known


class _Merge:
    """Puts history entries among a type's events, before all events of their user."""

    def __init__(self, past_keys: IntArray, event_keys: IntArray):
        self.none = not len(past_keys)
        self._past_order = stable_order(past_keys)
        past_keys = past_keys[self._past_order]
        places = np.searchsorted(event_keys, past_keys)
        self.keys = event_keys if self.none else np.insert(event_keys, places, past_keys)
        self._from_history = np.zeros(0 if self.none else len(self.keys), np.bool_)
        self._from_history[places + np.arange(len(places))] = True

    def filled(self, past: IntArray | int, events: IntArray) -> IntArray:
        """Values of the history entries (one for all, or in their order) among the events'."""
        merged = np.empty(len(self._from_history), np.int64)
        merged[self._from_history] = past if isinstance(past, int) else past[self._past_order]
        merged[~self._from_history] = events
        return merged

    def with_nulls(self, events: IntArray) -> pa.Array:
        """The events' values, null for history entries."""
        if self.none:
            return pa.array(events)
        return pa.array(self.filled(0, events), mask=self._from_history)


def _ranked(values: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct values of a sorted array, and the rank of each value among them."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    ranks = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    return values[starts], ranks


def _histories(
    histories: pa.Table | None, types: Sequence[str]
) -> dict[str, tuple[IntArray, IntArray]]:
    """For each type, user and item of every history entry, a user's oldest to newest."""
    if histories is None:
        return {}
    place = "histories"
    lists = column_of(histories, "items", place)
    if not is_list(lists.type):
        raise DataError(f"{place}, column `items`: expected lists. Received: {lists.type}")
    flat, lengths = flatten_lists(lists)
    items = int64_values(pa.table({"items": flat}), "items", place)
    users = int64_values(histories, "user", place)
    codes = string_codes(histories, "type", types, place)
    result = {}
    for code, kind in enumerate(types):
        rows = codes == code
        unique, counts = np.unique(users[rows], return_counts=True)
        if (counts > 1).any():
            raise DataError(
                f"{place}: expected one row a user and type. Received: "
                f"user {unique[np.argmax(counts > 1)]}, type {kind!r} more than once"
            )
        result[kind] = (np.repeat(users[rows], lengths[rows]), items[np.repeat(rows, lengths)])
    return result
