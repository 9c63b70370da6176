"""The raw log as the audit sees it: data frames, and what each impression may see by as-of joins.

Nothing here is shared with the sequence builder, which sorts and searches composite keys.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import RunConfig
from pipelines.log_folder import Log
from seqdenoise.data.columns import IntArray, flatten_lists, string_codes
from seqdenoise.data.sequence_rules import SequenceRules

_INT64_MIN = -(2**63)


def back(times: IntArray, ticks: int) -> IntArray:
    """`times - ticks`, or the first of all times where that would lie before it."""
    return times.clip(min=_INT64_MIN + ticks) - ticks


class FieldCodes:
    """The values of the event fields as numbers that compare: equal where the values are.

    Args:
        events: The raw events.
        names: The event fields.
    """

    def __init__(self, events: pa.Table, names: tuple[str, ...]):
        self.names = names
        self._known = {name: _known_values(events[name]) for name in names}

    def type_of(self, name: str) -> pa.DataType:
        """The Arrow type of a field's values."""
        return self._known[name].type

    def codes(self, name: str, values: pa.Array | pa.ChunkedArray) -> IntArray:
        """int64 `[values]`; null has a code of its own, and -1 is no value of the log."""
        found = pc.index_in(values, value_set=self._known[name])
        return found.fill_null(-1).cast(pa.int64()).to_numpy()

    def null_code(self, name: str) -> int:
        """The code of null."""
        return int(self.codes(name, pa.nulls(1, self.type_of(name)))[0])


def _known_values(column: pa.ChunkedArray) -> pa.Array:
    values = pc.unique(column)
    return values if values.null_count else pa.concat_arrays([values, pa.nulls(1, values.type)])


def raw_entries(
    log: Log, config: RunConfig, fields: FieldCodes
) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """The entries of each sequence type, and all of its events' sessions.

    Args:
        log: The raw tables.
        config: The run.
        fields: The codes of the event fields.

    Returns:
        For each type a frame of `user`, `item`, `time`, `timed` (False for histories), `session`
        where the run wants it, and a column a field; histories first, then the log's order. And
        `user`, `time`, `session` of the events of all types, by user and time.
    """
    rules = config.prepare.rules()
    codes = string_codes(log.events, "type", rules.types, config.log_table("events"))
    events = log.events.select(["user", "item", "timestamp"]).to_pandas()
    events.columns = pd.Index(["user", "item", "time"])
    events["timed"] = True
    for name in fields.names:
        events[name] = fields.codes(name, log.events[name])
    events, codes = events[codes >= 0], codes[codes >= 0]
    sessions = pd.DataFrame({"user": [], "time": [], "session": []}, dtype=np.int64)
    if rules.session_gap is not None:
        sessions = _sessions(events, rules.session_gap)
        events["session"] = sessions["session"]
    past, past_codes = _past_entries(log, config, fields)
    result = {}
    for code, kind in enumerate(rules.types):
        of_kind = events[codes == code]
        if rules.deduplicate == "exact":
            of_kind = of_kind.drop_duplicates(["user", "item", "time"])
        result[kind] = pd.concat([past[past_codes == code], of_kind], ignore_index=True)
    return result, sessions


def _sessions(events: pd.DataFrame, gap: int) -> pd.DataFrame:
    """Numbers sessions in the order of users and times; a user's follow one another."""
    ordered = events[["user", "time"]].sort_values(["user", "time"], kind="stable")
    users, times = ordered["user"].to_numpy(), ordered["time"].to_numpy()
    cut = (users[1:] != users[:-1]) | (times[:-1] < back(times[1:], gap))
    ordered["session"] = np.concatenate([[0], np.cumsum(cut)])[: len(ordered)]
    return ordered


def _past_entries(log: Log, config: RunConfig, fields: FieldCodes) -> tuple[pd.DataFrame, IntArray]:
    rules = config.prepare.rules()
    if log.histories is None:
        users, items, codes = (np.empty(0, np.int64) for _ in range(3))
    else:
        flat, lengths = flatten_lists(log.histories["items"])
        users = np.repeat(log.histories["user"].to_numpy(), lengths)
        items = flat.cast(pa.int64()).to_numpy(zero_copy_only=False)
        place = config.log_table("histories")
        codes = np.repeat(string_codes(log.histories, "type", rules.types, place), lengths)
    columns = {"user": users, "item": items, "time": np.int64(0), "timed": False}
    columns |= {name: np.int64(fields.null_code(name)) for name in fields.names}
    if rules.session_gap is not None:
        columns["session"] = np.int64(0)
    return pd.DataFrame(columns), codes.astype(np.int64)


def current_sessions(
    impressions: pd.DataFrame, sessions: pd.DataFrame, rules: SequenceRules
) -> IntArray:
    """The session that goes on at each impression; of no meaning where no event is before it.

    Args:
        impressions: `user`, `time`, `position` (0 to their number, in any order).
        sessions: As `raw_entries` gives them.
        rules: The run's rules, with a `session_gap`.

    Returns:
        int64 `[impressions]`, by position.
    """
    events = sessions.assign(last=sessions["time"], was=sessions["session"])
    joined = _as_of(impressions, events[["user", "time", "last", "was"]], rules.ties)
    assert rules.session_gap is not None
    over = joined["last"].to_numpy() < back(joined["time"].to_numpy(), rules.session_gap)
    current = np.zeros(len(impressions), np.int64)
    current[joined["position"].to_numpy()] = joined["was"].to_numpy() + over
    return current


def _as_of(impressions: pd.DataFrame, events: pd.DataFrame, ties: str) -> pd.DataFrame:
    """Each impression beside the user's last event before it; 0 where there is none."""
    joined = pd.merge_asof(
        impressions.sort_values("time", kind="stable"),
        # Integers stay exact only without missing values: an unmatched row finds row 0.
        events[["user", "time"]]
        .assign(row=np.arange(1, len(events) + 1))
        .sort_values("time", kind="stable"),
        on="time",
        by="user",
        allow_exact_matches=ties == "include",
    )
    rows = joined["row"].fillna(0).to_numpy().astype(np.int64)
    for name in events.columns.difference(["user", "time"]):
        joined[name] = np.concatenate([[0], events[name].to_numpy()])[rows]
    return joined


class RawType:
    """One type's raw entries, and which of them each impression may see.

    Args:
        entries: As `raw_entries` gives them.
        impressions: `user`, `time`, `position` (0 to their number, in any order).
        rules: The run's rules.
        fields: The event fields.

    Attributes:
        key: The columns that make an entry what it is.
        columns: Each column of the entries, sorted by user, histories, then time; a stable sort:
            equal times keep the log's order.
        events_from: int64 `[impressions]`, the position of the user's first event.
        low, high: int64 `[impressions]`, the range of entries known and not too old.
    """

    def __init__(
        self,
        entries: pd.DataFrame,
        impressions: pd.DataFrame,
        rules: SequenceRules,
        fields: tuple[str, ...],
    ):
        self.key = ["user", "item", "time", "timed", *fields]
        order = np.lexsort((entries["time"], entries["timed"], entries["user"]))
        self.entries = entries.iloc[order].reset_index(drop=True)
        self.columns: Mapping[str, IntArray] = {
            name: self.entries[name].to_numpy() for name in self.entries.columns
        }
        timed = self.columns["timed"].astype(np.bool_)
        users = impressions.sort_values("position")["user"]
        past = self.entries.loc[~timed, "user"].value_counts()
        first = np.searchsorted(self.columns["user"], users.to_numpy())
        self.events_from = first + past.reindex(users, fill_value=0).to_numpy()
        events = self.entries.loc[timed, ["user", "time"]]
        events = events.assign(seen=events.groupby("user").cumcount() + 1)
        self.high = self.events_from + _seen(impressions, events, rules.ties)
        self.low = first
        if rules.max_age is not None:
            oldest = back(impressions["time"].to_numpy(), rules.max_age)
            too_old = _seen(impressions.assign(time=oldest), events, "exclude")
            self.low = np.minimum(self.events_from + too_old, self.high)
        self._counts: pd.DataFrame | None = None

    @property
    def counts(self) -> pd.DataFrame:
        """How often each entry occurs in the raw log; made only where a comparison needs it."""
        if self._counts is None:
            self._counts = self.entries.groupby(self.key).size().rename("in_log").reset_index()
        return self._counts


def _seen(impressions: pd.DataFrame, events: pd.DataFrame, ties: str) -> IntArray:
    joined = _as_of(impressions, events, ties)
    seen = np.empty(len(impressions), np.int64)
    seen[joined["position"].to_numpy()] = joined["seen"].to_numpy()
    return seen
