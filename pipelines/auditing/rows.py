"""The checks of one sequence type in some prepared rows."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.auditing.expected import expected_entries
from pipelines.auditing.findings import Findings
from pipelines.auditing.raw_log import FieldCodes, RawType, back
from seqdenoise.data.columns import IntArray, flatten_lists, ranges
from seqdenoise.data.sequence_rules import SequenceRules

BoolArray = npt.NDArray[np.bool_]
_Report = Callable[[IntArray, str], None]


class _Lists:
    """One type's lists in some rows, flat."""

    def __init__(self, table: pa.Table, kind: str, rules: SequenceRules, fields: FieldCodes):
        self.null_lists = np.zeros(len(table), np.bool_)
        self.unequal = np.zeros(len(table), np.bool_)
        flat, self.lengths = flatten_lists(table[f"{kind}__item"])
        for name in rules.columns(kind):
            column = table[name]
            self.null_lists |= column.is_null().to_numpy()
            lengths = pc.list_value_length(column).fill_null(0).to_numpy()
            self.unequal |= lengths != self.lengths
        self.comparable = not self.unequal.any()
        self.owners = np.repeat(np.arange(len(table)), self.lengths)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.null_items = flat.is_null().to_numpy(zero_copy_only=False)
        self.items = flat.fill_null(0).to_numpy(zero_copy_only=False)
        times, _ = flatten_lists(table[f"{kind}__timestamp"])
        self.timed = times.is_valid().to_numpy(zero_copy_only=False)
        self.times = times.fill_null(0).to_numpy(zero_copy_only=False)
        self.fields = {
            name: fields.codes(name, flatten_lists(table[f"{kind}__{name}"])[0])
            for name in fields.names
        }
        self.users = table["user"].to_numpy()
        self.shown = table["timestamp"].to_numpy()

    def rows(self, wrong: BoolArray) -> IntArray:
        """The rows that own a wrong entry."""
        return np.unique(self.owners[wrong])


def check_rows(
    found: Findings,
    split: str,
    table: pa.Table,
    numbers: IntArray,
    kind: str,
    raw: RawType,
    position: IntArray,
    current: IntArray | None,
    rules: SequenceRules,
    fields: FieldCodes,
) -> None:
    """Checks one type in some rows of a split.

    Args:
        found: Where findings go.
        split: The split's name.
        table: `user`, `timestamp` and the type's columns.
        numbers: int64 `[rows]`, the rows' numbers in the split.
        kind: The type.
        raw: The type's raw log.
        position: int64 `[rows]`, the rows' numbers among all impressions audited.
        current: int64 `[impressions]`, the session at each impression; None where not asked for.
        rules: The run's rules.
        fields: The codes of the event fields.
    """
    lists = _Lists(table, kind, rules, fields)

    def report(rows: IntArray, what: str) -> None:
        found.add(split, numbers[rows], kind, what)

    report(np.flatnonzero(lists.null_lists), "a list is null")
    report(np.flatnonzero(lists.unequal), "the type's columns have lists of unequal length")
    report(np.flatnonzero(lists.lengths > rules.max_length), "longer than max_length")
    if not lists.comparable:
        return  # entries of different columns do not line up in these rows
    found.events += int(lists.timed.sum())
    found.histories += int((~lists.timed).sum())
    report(lists.rows(lists.null_items), "an item is null")
    _check_times(lists, rules, report)
    _check_repeats(lists, rules, report)
    if rules.age:
        ages, known = _numbers(table, f"{kind}__age")
        wrong = (known != lists.timed) | (ages != _distances(lists))
        report(lists.rows(wrong), "a wrong age")
    sessions = None
    if current is not None:
        sessions = (*_numbers(table, f"{kind}__session"), current[position])
    _compare(lists, raw, position, sessions, rules, report)


def _numbers(table: pa.Table, name: str) -> tuple[IntArray, BoolArray]:
    flat, _ = flatten_lists(table[name])
    values = flat.cast(pa.int64()).fill_null(0).to_numpy()
    return values, flat.is_valid().to_numpy(zero_copy_only=False)


def _distances(lists: _Lists) -> IntArray:
    return np.where(lists.timed, lists.shown[lists.owners] - lists.times, 0)


def _check_times(lists: _Lists, rules: SequenceRules, report: _Report) -> None:
    shown = lists.shown[lists.owners]
    if rules.ties == "exclude":
        late = lists.timed & (lists.times >= shown)
        report(lists.rows(late), "an event at or after the impression")
    else:
        report(lists.rows(lists.timed & (lists.times > shown)), "an event after the impression")
    same_row = lists.owners[1:] == lists.owners[:-1]
    backwards = (lists.timed[:-1] & ~lists.timed[1:]) | (
        lists.timed[:-1] & lists.timed[1:] & (lists.times[1:] < lists.times[:-1])
    )
    report(np.unique(lists.owners[1:][same_row & backwards]), "not oldest to newest")
    if rules.max_age is not None:
        old = ~lists.timed | (lists.times < back(shown, rules.max_age))
        report(lists.rows(old), "an entry older than max_age, or of unknown age")


def _check_repeats(lists: _Lists, rules: SequenceRules, report: _Report) -> None:
    columns = {"row": lists.owners, "item": lists.items, "time": lists.times, "timed": lists.timed}
    entries = pd.DataFrame(columns)
    if rules.deduplicate == "exact":
        twice = lists.timed & entries.duplicated().to_numpy()
    elif rules.deduplicate == "item":
        twice = entries.duplicated(["row", "item"]).to_numpy()
    elif rules.deduplicate == "consecutive":
        twice = np.zeros(len(entries), np.bool_)
        twice[1:] = (lists.owners[1:] == lists.owners[:-1]) & (lists.items[1:] == lists.items[:-1])
    else:
        return
    report(lists.rows(twice), "an entry that deduplicate rules out")


def _compare(
    lists: _Lists,
    raw: RawType,
    position: IntArray,
    sessions: tuple[IntArray, BoolArray, IntArray] | None,
    rules: SequenceRules,
    report: _Report,
) -> None:
    """Compares the rows with the raw log; `sessions`: entries', whether known, impressions'."""
    first_times = np.full(len(position), np.iinfo(np.int64).min)
    full = np.flatnonzero(lists.lengths >= rules.max_length)
    oldest = lists.starts[full]
    first_times[full] = np.where(lists.timed[oldest], lists.times[oldest], first_times[full])
    theirs, expected = expected_entries(raw, position, first_times, rules)

    incomplete = lists.lengths != expected
    report(np.flatnonzero(incomplete), "not as many entries as the raw log has before it")
    # Rows of the right length are compared with the end of the user's log, entry by entry.
    whole = np.flatnonzero(~incomplete)
    theirs = theirs[ranges((np.cumsum(expected) - expected)[whole], expected[whole])]
    ours = ranges(lists.starts[whole], expected[whole])
    owners = lists.owners[ours]
    there = {name: values[theirs] for name, values in raw.columns.items()}
    timed = there["timed"].astype(np.bool_)
    other = lists.items[ours] != there["item"]
    for name, values in lists.fields.items():
        other |= values[ours] != there[name]
    other_time = (lists.times[ours] != there["time"]) | (lists.timed[ours] != timed)
    other_past = other & ~timed
    report(np.unique(owners[other_time | other_past]), "not the last entries before the impression")
    # Others at equal times may be ties in another order; only these need the slow check.
    doubtful = np.union1d(np.unique(owners[other | other_time]), np.flatnonzero(incomplete))
    report(_not_in_log(lists, doubtful, raw), "an entry that the user's raw log has not")
    if sessions is not None:
        numbers, known, current = sessions
        ago = current[owners] - there["session"]
        wrong = (known[ours] != timed) | (timed & (numbers[ours] != ago))
        report(np.unique(owners[wrong & ~other_time]), "a wrong session")


def _not_in_log(lists: _Lists, rows: IntArray, raw: RawType) -> IntArray:
    """The rows with an entry that occurs there more often than in the user's raw log."""
    entries = ranges(lists.starts[rows], lists.lengths[rows])
    if not len(entries):
        return rows[:0]
    owners = lists.owners[entries]
    columns = {"row": owners, "user": lists.users[owners], "item": lists.items[entries]}
    columns |= {"time": lists.times[entries], "timed": lists.timed[entries]}
    columns |= {name: values[entries] for name, values in lists.fields.items()}
    used = pd.DataFrame(columns).groupby(["row", *raw.key]).size().rename("used").reset_index()
    merged = used.merge(raw.counts, on=raw.key, how="left")
    wrong = merged["used"] > merged["in_log"].fillna(0)
    return np.unique(merged.loc[wrong, "row"].to_numpy())
