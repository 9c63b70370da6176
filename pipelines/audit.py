"""The leakage audit: prepared sequences against the raw log, by other means than the builder's.

The builder searches composite keys; the audit joins as of a time and compares rows.
"""

import logging
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import RunConfig
from pipelines.log_folder import Log, read_log
from pipelines.prepare import SPLITS
from seqdenoise.data.columns import IntArray, flatten_lists, is_list, ranges, string_codes
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.sequences import sequence_columns
from seqdenoise.errors import DataError

# A broken preparation breaks every row; a report needs the first ones and the count.
MAX_RECORDED = 1000
NUM_SHOWN = 20

_ENTRY = ["user", "item", "time", "timed"]

_logger = logging.getLogger(__name__)
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Violation:
    """One thing wrong with one prepared row.

    Attributes:
        split: `train`, `valid` or `test`.
        row: The row in that file; -1 where the file as a whole is meant.
        type: The sequence type; empty where none is meant.
        what: What is wrong.
    """

    split: str
    row: int
    type: str
    what: str


@dataclass(frozen=True)
class AuditReport:
    """What was checked and what was found.

    Attributes:
        rows: Prepared impressions.
        events_checked: Sequence entries with a timestamp.
        history_entries_checked: Sequence entries without.
        num_violations: All of them.
        violations: The first `MAX_RECORDED`.
    """

    rows: int
    events_checked: int
    history_entries_checked: int
    num_violations: int
    violations: list[Violation]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return self.num_violations == 0

    def __str__(self) -> str:
        lines = [
            f"{self.rows} impressions, {self.events_checked} events and "
            f"{self.history_entries_checked} history entries checked: "
            f"{self.num_violations or 'no'} violations"
        ]
        shown = self.violations[:NUM_SHOWN]
        lines += [f"  {v.split} row {v.row}{v.type and f', {v.type}'}: {v.what}" for v in shown]
        if self.num_violations > len(shown):
            lines.append(f"  and {self.num_violations - len(shown)} more")
        return "\n".join(lines)


@dataclass
class _Findings:
    events: int = 0
    histories: int = 0
    count: int = 0
    violations: list[Violation] = field(default_factory=list)

    def add(self, split: str, rows: IntArray, kind: str, what: str) -> None:
        self.count += len(rows)
        room = MAX_RECORDED - len(self.violations)
        self.violations += [Violation(split, int(row), kind, what) for row in rows[:room]]


class _RawType:
    """One type's raw entries (histories, then events) and how many each impression may see."""

    def __init__(self, entries: pd.DataFrame, impressions: pd.DataFrame):
        # A stable sort: equal times keep the log's order.
        order = np.lexsort((entries["time"], entries["timed"], entries["user"]))
        self.entries = entries.iloc[order].reset_index(drop=True)
        self.users, self.items, self.times, self.timed = (
            self.entries[name].to_numpy() for name in _ENTRY
        )
        past = self.entries.loc[~self.timed, "user"].value_counts()
        self.num_past = _lookup(past, impressions["user"])
        events = self.entries.loc[self.timed, ["user", "time"]]
        events = events.assign(seen=events.groupby("user").cumcount() + 1)
        joined = pd.merge_asof(
            impressions.sort_values("time", kind="stable"),
            events.sort_values("time", kind="stable"),
            on="time",
            by="user",
            allow_exact_matches=False,
        )
        self.num_before = np.empty(len(impressions), np.int64)
        self.num_before[joined["position"].to_numpy()] = joined["seen"].fillna(0).to_numpy()
        self.first = np.searchsorted(self.users, impressions["user"].to_numpy())
        self._counts: pd.DataFrame | None = None

    @property
    def counts(self) -> pd.DataFrame:
        """How often each entry occurs in the raw log; made only where a comparison needs it."""
        if self._counts is None:
            self._counts = self.entries.groupby(_ENTRY).size().rename("in_log").reset_index()
        return self._counts


def _lookup(counts: "pd.Series[int]", users: "pd.Series[int]") -> IntArray:
    return np.asarray(counts.reindex(users, fill_value=0), np.int64)


def _raw_entries(log: Log, types: list[str]) -> dict[str, pd.DataFrame]:
    codes = string_codes(log.events, "type", types, str(log.folder / "events.parquet"))
    events = log.events.select(["user", "item", "timestamp"]).to_pandas()
    events.columns = pd.Index(["user", "item", "time"])
    events["timed"] = True
    histories = None
    if log.histories is not None:
        place = str(log.folder / "histories.parquet")
        items, lengths = flatten_lists(log.histories["items"])
        histories = pd.DataFrame(
            {
                "user": np.repeat(log.histories["user"].to_numpy(), lengths),
                "item": items.cast(pa.int64()).to_numpy(zero_copy_only=False),
                "time": np.int64(0),
                "timed": False,
            }
        )
        past_codes = np.repeat(string_codes(log.histories, "type", types, place), lengths)
    result = {}
    for code, kind in enumerate(types):
        parts = [] if histories is None else [histories[past_codes == code]]
        result[kind] = pd.concat([*parts, events[codes == code]], ignore_index=True)
    return result


class _Sequences:
    """One type's lists in one row group, flat."""

    def __init__(self, table: pa.Table, kind: str, fields: list[str]):
        names = sequence_columns(kind, fields)
        self.null_lists = np.zeros(len(table), np.bool_)
        self.unequal = np.zeros(len(table), np.bool_)
        flat, self.lengths = flatten_lists(table[f"{kind}__item"])
        times, time_lengths = flatten_lists(table[f"{kind}__timestamp"])
        self.unequal |= time_lengths != self.lengths
        for name in names:
            column = table[name]
            self.null_lists |= column.is_null().to_numpy()
            lengths = pc.list_value_length(column).fill_null(0).to_numpy()
            self.unequal |= lengths != self.lengths
        self.comparable = not self.unequal.any()
        self.owners = np.repeat(np.arange(len(table)), self.lengths)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.null_items = flat.is_null().to_numpy(zero_copy_only=False)
        self.items = flat.fill_null(0).to_numpy(zero_copy_only=False)
        self.timed = times.is_valid().to_numpy(zero_copy_only=False)
        self.times = times.fill_null(0).to_numpy(zero_copy_only=False)

    def rows(self, wrong: BoolArray) -> IntArray:
        """The rows that own a wrong entry."""
        return np.unique(self.owners[wrong])


def _check_row_group(
    found: _Findings,
    split: str,
    offset: int,
    table: pa.Table,
    kind: str,
    raw: _RawType,
    position: slice,
    config: RunConfig,
) -> None:
    """Checks one type in one row group; `offset` is its first row in the split's file."""
    lists = _Sequences(table, kind, config.prepare.item_fields)

    def report(rows: IntArray, what: str) -> None:
        found.add(split, rows + offset, kind, what)

    report(np.flatnonzero(lists.null_lists), "a list is null")
    report(np.flatnonzero(lists.unequal), "the type's columns have lists of unequal length")
    report(np.flatnonzero(lists.lengths > config.prepare.max_length), "longer than max_length")
    if not lists.comparable:
        return  # entries of different columns do not line up in this row group
    found.events += int(lists.timed.sum())
    found.histories += int((~lists.timed).sum())
    report(lists.rows(lists.null_items), "an item is null")

    shown = table["timestamp"].to_numpy()
    late = lists.timed & (lists.times >= shown[lists.owners])
    report(lists.rows(late), "an event at or after the impression")
    same_row = lists.owners[1:] == lists.owners[:-1]
    backwards = (lists.timed[:-1] & ~lists.timed[1:]) | (
        lists.timed[:-1] & lists.timed[1:] & (lists.times[1:] < lists.times[:-1])
    )
    report(np.unique(lists.owners[1:][same_row & backwards]), "not oldest to newest")

    available = raw.num_past[position] + raw.num_before[position]
    expected = np.minimum(available, config.prepare.max_length)
    incomplete = lists.lengths != expected
    report(np.flatnonzero(incomplete), "not as many entries as the raw log has before it")
    # Rows of the right length are compared with the end of the user's log, entry by entry.
    whole = np.flatnonzero(~incomplete)
    theirs = ranges((raw.first[position] + available - expected)[whole], expected[whole])
    ours = ranges(lists.starts[whole], expected[whole])
    owners = lists.owners[ours]
    other_item = lists.items[ours] != raw.items[theirs]
    other_time = (lists.times[ours] != raw.times[theirs]) | (lists.timed[ours] != raw.timed[theirs])
    other_past = other_item & ~raw.timed[theirs]
    report(np.unique(owners[other_time | other_past]), "not the last entries before the impression")
    # Other items at equal times may be ties in another order; only these need the slow check.
    doubtful = np.union1d(np.unique(owners[other_item | other_time]), np.flatnonzero(incomplete))
    report(_not_in_log(lists, doubtful, table, raw), "an entry that the user's raw log has not")


def _not_in_log(lists: _Sequences, rows: IntArray, table: pa.Table, raw: _RawType) -> IntArray:
    """The rows with an entry that occurs there more often than in the user's raw log."""
    entries = ranges(lists.starts[rows], lists.lengths[rows])
    owners = lists.owners[entries]
    frame = pd.DataFrame(
        {
            "row": owners,
            "user": table["user"].to_numpy()[owners],
            "item": lists.items[entries],
            "time": lists.times[entries],
            "timed": lists.timed[entries],
        }
    )
    if frame.empty:
        return rows[:0]
    used = frame.groupby(["row", *_ENTRY]).size().rename("used").reset_index()
    merged = used.merge(raw.counts, on=_ENTRY, how="left")
    wrong = merged["used"] > merged["in_log"].fillna(0)
    return np.unique(merged.loc[wrong, "row"].to_numpy())


def _check_columns(source: ParquetSource, sequences: list[str]) -> None:
    source.require(["user", "item", "timestamp", *sequences])
    for name in sequences:
        kind = source.schema.field(name).type
        numbers = name.endswith(("__item", "__timestamp"))
        if not is_list(kind) or (numbers and not pa.types.is_integer(kind.value_type)):
            what = "lists of integers" if numbers else "lists"
            raise DataError(f"{source.path}, column `{name}`: expected {what}. Received: {kind}")


def _scalars(sources: dict[str, ParquetSource]) -> pd.DataFrame:
    parts = []
    for split, source in sources.items():
        table = source.read(["user", "item", "timestamp"])
        for name in table.schema.names:
            if not pa.types.is_integer(table.schema.field(name).type) or table[name].null_count:
                raise DataError(
                    f"{source.path}, column `{name}`: expected integers without nulls. "
                    f"Received: {table.schema.field(name).type}, {table[name].null_count} nulls"
                )
        frame = table.cast(pa.schema([(name, pa.int64()) for name in table.schema.names]))
        parts.append(frame.to_pandas().assign(split=split, row=np.arange(len(table))))
    frame = pd.concat(parts, ignore_index=True).rename(columns={"timestamp": "time"})
    return frame.assign(position=np.arange(len(frame)))


def _check_splits(found: _Findings, frame: pd.DataFrame) -> None:
    times = {split: frame.loc[frame["split"] == split, "time"].to_numpy() for split in SPLITS}
    for earlier, later in pairwise(SPLITS):
        if not len(times[earlier]) or not len(times[later]):
            found.add(later, np.array([-1]), "", f"{earlier} or {later} has no rows")
        elif times[earlier].max() >= times[later].min():
            found.add(later, np.array([-1]), "", f"starts before {earlier} has ended")


def _check_impressions(found: _Findings, frame: pd.DataFrame, log: Log) -> None:
    raw = log.impressions.select(["user", "item", "timestamp"]).to_pandas().drop_duplicates()
    raw = raw.rename(columns={"timestamp": "time"}).assign(known=True)
    merged = frame.merge(raw, on=["user", "item", "time"], how="left")
    for split, of_split in merged[merged["known"].isna()].groupby("split"):
        what = "an impression that the raw log has not"
        found.add(str(split), of_split["row"].to_numpy(), "", what)


def audit(config: RunConfig) -> AuditReport:
    """Checks every prepared sequence against the raw log.

    For each impression and type: every event lies strictly before the impression; every entry is
    in that user's raw log, no more often than there; entries run oldest to newest, histories first;
    the type's columns agree in length, at most `max_length`; and the sequence is the last
    `max_length` entries, none left out. Besides, impressions are the raw log's and the splits do
    not overlap in time. Equal times may stand in any order.

    Args:
        config: The run whose `prepared_folder` is checked.

    Returns:
        What was checked and what is wrong. Wrong sequences do not raise.

    Raises:
        DataError: A raw or prepared file cannot be read, or lacks a column.
    """
    settings = config.prepare
    log = read_log(config)
    found = _Findings()
    columns = {
        kind: sequence_columns(kind, settings.item_fields) for kind in settings.sequence_types
    }
    sources: dict[str, ParquetSource] = {}
    try:
        for split in SPLITS:
            sources[split] = ParquetSource(config.prepared_folder / f"{split}.parquet")
            _check_columns(sources[split], list(chain.from_iterable(columns.values())))
        frame = _scalars(sources)
        _check_splits(found, frame)
        _check_impressions(found, frame, log)
        raw_entries = _raw_entries(log, settings.sequence_types)
        for kind in settings.sequence_types:
            raw = _RawType(raw_entries.pop(kind), frame[["user", "time", "position"]])
            base = 0
            for split, source in sources.items():
                offset = 0
                for index in range(source.num_row_groups):
                    table = source.read_row_group(index, ["user", "timestamp", *columns[kind]])
                    position = slice(base + offset, base + offset + len(table))
                    _check_row_group(found, split, offset, table, kind, raw, position, config)
                    offset += len(table)
                base += offset
            _logger.info("audited %s", kind)
    finally:
        for source in sources.values():
            source.close()
    return AuditReport(
        rows=len(frame),
        events_checked=found.events,
        history_entries_checked=found.histories,
        num_violations=found.count,
        violations=found.violations,
    )
