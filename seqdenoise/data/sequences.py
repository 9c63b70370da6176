"""Raw events to point-in-time sequences: what was known before each impression."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqdenoise.data.clock import Moments, earlier, impression_moments
from seqdenoise.data.columns import IntArray, int64_values, ranges
from seqdenoise.data.lookup import Lookup
from seqdenoise.data.ordering import stable_order
from seqdenoise.data.sequence_rules import SequenceRules
from seqdenoise.data.sorted_log import SortedLog
from seqdenoise.errors import DataError

# Bounds the memory of one gather, and keeps list offsets and text within 32 bits.
_ENTRIES_PER_CHUNK = 2**24


class SequenceBuilder:
    """Sorts the events once; then builds the sequences of any number of impressions.

    Args:
        events: `user`, `item` (integers), `timestamp` (integers in one unit, or Arrow timestamps),
            `type` (string) and the columns named in `rules.event_fields`, in any order. Events of
            equal user and time keep the table's order.
        rules: What a sequence holds.
        histories: Optional `user`, `type`, `items` (list of integers, oldest to newest), one row a
            user and type; older than every event, without times. A null list is an empty one.
        items: `item`, unique, and the columns named in `rules.item_fields`.

    Raises:
        DataError: A column is missing, of the wrong type or has nulls, or an item or history
            occurs twice.
    """

    def __init__(
        self,
        events: pa.Table,
        rules: SequenceRules,
        *,
        histories: pa.Table | None = None,
        items: pa.Table | None = None,
    ):
        if rules.item_fields and items is None:
            raise DataError(
                f"items: expected a table with {list(rules.item_fields)}. Received: none"
            )
        self._rules = rules
        self._lookup = (
            Lookup(items, "item", rules.item_fields, place="items")
            if items is not None and rules.item_fields
            else None
        )
        self._log = SortedLog(events, rules, histories)
        self._item_rows = (
            {kind: self._lookup.rows(log.items.to_numpy()) for kind, log in self._log.types.items()}
            if self._lookup
            else {}
        )

    def build(self, impressions: pa.Table) -> pa.Table:
        """The sequences of some impressions.

        Args:
            impressions: `user`, and `timestamp`: integers in the events' unit, or timestamps where
                the events have them. Other units than the events' are compared exactly.

        Returns:
            One row an impression, in their order. For each type T the list columns that
            `SequenceRules.columns` names, all of the same length: the last `max_length` entries
            that the rules let an impression of that time see, oldest to newest. `T__item` is
            int64, fields have their columns' types, `T__timestamp` is int64 or the events'
            timestamp type, `T__age` int64 ticks of the finer of the events' and the impressions'
            unit, `T__session` int32. No list is null.

        Raises:
            DataError: A column is missing, of the wrong type, or has nulls, or a time or age
                exceeds int64 in the unit needed.
        """
        users = int64_values(impressions, "user", "impressions")
        moments = impression_moments(impressions, self._log.time_type)
        step = max(1024, _ENTRIES_PER_CHUNK // self._rules.max_length)
        return pa.concat_tables(
            self._build(users[start : start + step], moments.take(slice(start, start + step)))
            for start in range(0, max(1, len(users)), step)
        )

    def _build(self, users: IntArray, moments: Moments) -> pa.Table:
        # Searching in the order of the keys is an order of magnitude faster.
        by_user = stable_order(users)
        given_order = np.empty_like(by_user)
        given_order[by_user] = np.arange(len(by_user))
        rules, log = self._rules, self._log
        ordered = moments.take(by_user)
        first_keys, known = log.first_keys(users[by_user])
        if rules.ties == "exclude":
            end_slots = log.clock.from_time(ordered.ceiling)
        else:
            end_slots = log.clock.after_time(ordered.floor)
        # An unknown user gets an empty range of another's entries.
        end_keys = first_keys + np.where(known, end_slots, 0)
        start_keys = first_keys
        if rules.max_age is not None:
            oldest = log.clock.from_time(earlier(ordered.ceiling, rules.max_age))
            start_keys = np.minimum(first_keys + oldest, end_keys)
        sessions = None
        if log.sessions is not None:
            current = log.sessions.current(end_keys, ordered.ceiling)
            sessions = current[given_order]

        columns: dict[str, pa.Array] = {}
        for kind, entries in log.types.items():
            starts = np.searchsorted(entries.keys, start_keys)[given_order]
            ends = np.searchsorted(entries.keys, end_keys)[given_order]
            if entries.latest is not None:
                taken, lengths = entries.latest.before(starts, ends, rules.max_length)
            else:
                starts = np.maximum(starts, ends - rules.max_length)
                lengths = ends - starts
                taken = ranges(starts, lengths, entries.position_type)
            offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
            owners = np.empty(0, np.int64)
            if rules.age or sessions is not None:
                owners = np.repeat(np.arange(len(users)), lengths)
            values = self._values(kind, pa.array(taken), owners, moments, sessions)
            for name, flat in zip(rules.columns(kind), values, strict=True):
                columns[name] = pa.ListArray.from_arrays(offsets, flat)
        return pa.table(columns)

    def _values(
        self,
        kind: str,
        taken: pa.Array,
        owners: IntArray,
        moments: Moments,
        sessions: IntArray | None,
    ) -> list[pa.Array]:
        """The flat values of one type's columns, in the order of their names."""
        rules, entries = self._rules, self._log.types[kind]
        values = [_gather(entries.items, taken)]
        if self._lookup:
            rows = self._item_rows[kind][taken.to_numpy()]
            values += [self._lookup.take(field, rows) for field in rules.item_fields]
        values += [_gather(entries.fields[field], taken) for field in rules.event_fields]
        times = _gather(entries.times, taken)
        values.append(times.view(self._log.time_type))
        if rules.age:
            values.append(moments.since(times, owners))
        if sessions is not None:
            numbers = _gather(entries.sessions, taken)
            values.append(pc.subtract(pa.array(sessions[owners]), numbers).cast(pa.int32()))
        return values


def _gather(values: pa.Array, positions: pa.Array) -> pa.Array:
    return pc.take(values, positions, boundscheck=False)


def build_sequences(
    impressions: pa.Table,
    events: pa.Table,
    rules: SequenceRules,
    *,
    histories: pa.Table | None = None,
    items: pa.Table | None = None,
) -> pa.Table:
    """Builds every impression's sequences in one go.

    For more impressions than fit in memory, make a `SequenceBuilder` and feed it parts.

    Args:
        impressions: As in `SequenceBuilder.build`.
        events: As in `SequenceBuilder`.
        rules: What a sequence holds.
        histories: As in `SequenceBuilder`.
        items: As in `SequenceBuilder`.

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
        >>> rules = SequenceRules(types=("click",), max_length=5)
        >>> build_sequences(impressions, events, rules).to_pydict()
        {'click__item': [[10, 11], []], 'click__timestamp': [[5, 7], []]}
    """
    return SequenceBuilder(events, rules, histories=histories, items=items).build(impressions)
