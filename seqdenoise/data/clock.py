"""Times as exact integers: columns of any unit, and the keys that sort users' entries by time."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqdenoise.data.columns import IntArray, column_of, int64_values, refuse_nulls
from seqdenoise.errors import DataError

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_KEY_LIMIT = 2**63 - 1


def time_values(table: pa.Table, name: str, place: str) -> tuple[IntArray, pa.DataType]:
    """The ticks of a time column without nulls, and what a tick is.

    Args:
        table: Where to look.
        name: The column: integers, or Arrow timestamps of any unit, with a zone or without.
        place: What error messages call the table.

    Returns:
        int64 `[rows]`, and the timestamp type, or int64 for integers.

    Raises:
        DataError: The column is missing, of another type, has nulls or exceeds int64.

    Example:
        >>> moments = pa.array([1, 2], pa.timestamp("ms", "UTC"))
        >>> time_values(pa.table({"timestamp": moments}), "timestamp", "events")
        (array([1, 2]), TimestampType(timestamp[ms, tz=UTC]))
    """
    column = column_of(table, name, place)
    kind = column.type
    if pa.types.is_integer(kind):
        return int64_values(table, name, place), pa.int64()
    if not pa.types.is_timestamp(kind):
        raise DataError(
            f"{place}, column `{name}`: expected integers or timestamps. Received: {kind}"
        )
    refuse_nulls(column, name, place)
    ticks = pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    return ticks.combine_chunks().to_numpy(zero_copy_only=False), kind


@dataclass(frozen=True)
class Moments:
    """Impression times beside event times of perhaps another unit, compared exactly.

    An event lies before an impression where `event < ceiling`, at or before it where
    `event <= floor`: the impression rounded to whole event ticks, up and down.

    Attributes:
        floor: int64 `[impressions]`, event ticks.
        ceiling: int64 `[impressions]`, event ticks.
        exact: int64 `[impressions]`, ticks of the finer of both units.
        per_event_tick: How many of these an event tick has.
    """

    floor: IntArray
    ceiling: IntArray
    exact: IntArray
    per_event_tick: int

    def take(self, rows: IntArray | slice) -> "Moments":
        """Those of some impressions."""
        return Moments(self.floor[rows], self.ceiling[rows], self.exact[rows], self.per_event_tick)

    def since(self, events: pa.Array, rows: IntArray) -> pa.Array:
        """How long before the impressions some events lie.

        Args:
            events: int64 `[events]`, event ticks or null.
            rows: int64 `[events]`, which impressions.

        Returns:
            int64 `[events]`, ticks of the finer unit; null where `events` is.

        Raises:
            DataError: An age exceeds int64.
        """
        try:
            scaled = pc.multiply_checked(events, self.per_event_tick)
            return pc.subtract_checked(pa.array(self.exact[rows]), scaled)
        except pa.ArrowInvalid as error:
            raise DataError(
                "events, column `timestamp`: expected ages within int64, in ticks of the finer of "
                "the events' and the impressions' units. Received: impressions up to "
                f"{self.exact.max()} and events from {pc.min(events)}, "
                f"{self.per_event_tick} ticks each: {error}"
            ) from error


def impression_moments(impressions: pa.Table, event_kind: pa.DataType) -> Moments:
    """Reads the impressions' `timestamp`.

    Args:
        impressions: `timestamp`, integers or Arrow timestamps like the events'.
        event_kind: The events' type of time, as `time_values` gives it.

    Returns:
        The times as the events' ticks see them.

    Raises:
        DataError: The column cannot be used, is no time of the same kind (integer, with a zone,
            without one), or exceeds int64 in the events' unit.
    """
    times, kind = time_values(impressions, "timestamp", "impressions")
    stamps = pa.types.is_timestamp(kind)
    if stamps != pa.types.is_timestamp(event_kind) or (
        stamps and (kind.tz is None) != (event_kind.tz is None)
    ):
        raise DataError(
            "impressions, column `timestamp`: expected times like the events', whose type is "
            f"{event_kind} (integers, timestamps with a zone, or timestamps without). "
            f"Received: {kind}"
        )
    if not stamps or kind.unit == event_kind.unit:
        return Moments(times, times, times, 1)
    impression_rate, event_rate = _PER_SECOND[kind.unit], _PER_SECOND[event_kind.unit]
    if impression_rate > event_rate:
        factor = impression_rate // event_rate
        floor = times // factor
        return Moments(floor, floor + (times % factor > 0), times, factor)
    factor = event_rate // impression_rate
    try:
        scaled = pc.multiply_checked(pa.array(times), factor).to_numpy()
    except pa.ArrowInvalid as error:
        at = int(np.argmax((times > _INT64_MAX // factor) | (times < -(_INT64_MAX // factor))))
        raise DataError(
            f"impressions, column `timestamp`: expected times that fit the events' {event_kind}. "
            f"Received: {times[at]} {kind.unit} in row {at}"
        ) from error
    return Moments(scaled, scaled, scaled, 1)


def earlier(times: IntArray, ticks: int) -> IntArray:
    """`times - ticks` for `ticks >= 0`, at least the smallest int64.

    Example:
        >>> earlier(np.array([5, -(2**63) + 1]), 3)
        array([                   2, -9223372036854775808])
    """
    return np.maximum(times, _INT64_MIN + ticks) - ticks


class Clock:
    """Maps times to slots that keep order and equality; slot 0 lies before every time.

    A slot is the distance from the first event, so that user rank and slot share one int64 key.
    It is counted in the largest unit that divides all distances: many nanoseconds are whole
    milliseconds. Where even that does not fit, a slot is the time's rank.

    Args:
        times: int64 `[events]`, all events' times.
        num_users: How many users share the key.

    Attributes:
        num_slots: How many slots a user has.

    Raises:
        DataError: Not even ranks fit one key.
    """

    def __init__(self, times: IntArray, num_users: int):
        # Python integers: the span of int64 times may not fit int64.
        self._low = int(times.min()) if len(times) else 0
        self._high = int(times.max()) if len(times) else 0
        self._unit = 1
        self._ranked: IntArray | None = None
        # Slot 0 for histories, one slot for every time, one for what is after the last event.
        self.num_slots = self._high - self._low + 3
        if num_users * self.num_slots > _KEY_LIMIT and self._high - self._low <= _INT64_MAX:
            self._unit = int(np.gcd.reduce(times - self._low))
            self.num_slots = (self._high - self._low) // self._unit + 3
        if num_users * self.num_slots > _KEY_LIMIT:
            self._ranked = np.unique(times)
            self.num_slots = len(self._ranked) + 2
        if num_users * self.num_slots > _KEY_LIMIT:
            raise DataError(
                "events: expected users times distinct timestamps below 2**63, to share one sort "
                f"key. Received: {num_users} users, {self.num_slots - 2} timestamps; "
                "build the sequences for a part of the users at a time"
            )

    def from_time(self, times: IntArray) -> IntArray:
        """For each time, int64, the first slot of events at or after it; at least 1."""
        if self._ranked is not None:
            return np.searchsorted(self._ranked, times, side="left") + 1
        distances = np.clip(times, self._low, self._high)
        distances -= self._low  # in place, like all of this: the events' times are many
        if self._unit > 1:
            distances = -(-distances // self._unit)
        distances += 1
        distances += times > self._high
        return distances

    def after_time(self, times: IntArray) -> IntArray:
        """For each time, int64, the first slot of events after it; at least 1."""
        if self._ranked is not None:
            return np.searchsorted(self._ranked, times, side="right") + 1
        distances = np.clip(times, self._low, self._high) - self._low
        if self._unit > 1:
            distances //= self._unit
        return distances + 1 + (times >= self._low)
