"""The leakage audit: prepared sequences against the raw log, by other means than the builder's.

The builder sorts and searches composite keys; the audit joins as of a time and compares rows.
"""

import logging
from contextlib import ExitStack
from itertools import chain, pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_integer

from pipelines.auditing.findings import AuditReport, Findings
from pipelines.auditing.raw_log import FieldCodes, RawType, current_sessions, raw_entries
from pipelines.auditing.rows import BoolArray, check_rows
from pipelines.config import ConfigError, RunConfig
from pipelines.log_folder import Log, read_log
from pipelines.splits import SPLITS
from seqdenoise.data.columns import is_list
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.sequence_rules import SequenceRules
from seqdenoise.data.user_hash import user_fraction
from seqdenoise.errors import DataError

# About what an audit holds in memory unless it is told a sample.
EVENTS_AUDITED = 5_000_000

_KEYS = ["user", "item", "timestamp"]

_logger = logging.getLogger(__name__)


def audit(config: RunConfig, sample: float | None = None) -> AuditReport:
    """Checks prepared sequences against the raw log, for all users or a sample of them.

    For each impression and type: every event lies strictly before the impression (with `ties:
    include` not after it); every entry is in that user's raw log with its event fields, no more
    often than there; entries run oldest to newest, histories first; the type's columns agree in
    length, at most `max_length`; ages and sessions are right; and the sequence is the last
    `max_length` of the entries that the rules let count, none left out. Besides, impressions are
    the raw log's and the splits do not overlap in time. Equal times may stand in any order.

    Args:
        config: The run whose `prepared_folder` is checked.
        sample: The share of the users to audit, in (0, 1]; by default such that about
            `EVENTS_AUDITED` raw events are. Memory is that of the sample, and of one row group.

    Returns:
        What was checked and what is wrong. Wrong sequences do not raise.

    Raises:
        ConfigError: `sample` is out of range.
        DataError: A raw or prepared file cannot be read, or lacks a column.
    """
    if sample is None:
        sample = _affordable_sample(config)
    if not 0 < sample <= 1:
        raise ConfigError(f"sample: expected above 0 and at most 1. Received: {sample}")
    rules = config.prepare.rules()
    log = read_log(config, sample=sample)
    fields = FieldCodes(log.events, rules.event_fields)
    columns = list(chain.from_iterable(rules.columns(kind) for kind in rules.types))
    found = Findings()
    with ExitStack() as stack:
        sources = {
            split: stack.enter_context(ParquetSource(config.prepared_folder / f"{split}.parquet"))
            for split in SPLITS
        }
        for source in sources.values():
            _check_columns(source, rules, fields)
        impressions = _sampled_impressions(found, sources, sample)
        _check_impressions(found, impressions, log)
        entries, sessions = raw_entries(log, config, fields)
        shown = impressions[["user", "time", "position"]]
        current = None
        if rules.session_gap is not None:
            current = current_sessions(shown, sessions, rules)
        raw = {
            kind: RawType(entries.pop(kind), shown, rules, rules.event_fields)
            for kind in rules.types
        }
        start = 0
        for split, source in sources.items():
            offset = 0
            for index in range(source.num_row_groups):
                table = source.read_row_group(index, ["user", "timestamp", *columns])
                rows = np.flatnonzero(_in_sample(table, sample))
                numbers = rows + offset
                offset += len(table)
                table = table.take(pa.array(rows))
                position = start + np.arange(len(rows))
                start += len(rows)
                for kind in rules.types:
                    check_rows(
                        found,
                        split,
                        table,
                        numbers,
                        kind,
                        raw[kind],
                        position,
                        current,
                        rules,
                        fields,
                    )
            _logger.info("audited %s", split)
    return AuditReport(
        sample=sample,
        rows=len(impressions),
        events_checked=found.events,
        history_entries_checked=found.histories,
        num_violations=found.count,
        violations=found.violations,
    )


def _affordable_sample(config: RunConfig) -> float:
    with ParquetSource(config.log_table("events")) as events:
        return min(1.0, EVENTS_AUDITED / max(1, events.num_rows))


def _in_sample(table: pa.Table, sample: float) -> BoolArray:
    if sample == 1:
        return np.ones(len(table), np.bool_)
    return user_fraction(table["user"].cast(pa.int64()).to_numpy()) < sample


def _check_columns(source: ParquetSource, rules: SequenceRules, fields: FieldCodes) -> None:
    source.require(_KEYS)
    for kind in rules.types:
        numbers = {f"{kind}__{name}" for name in ("item", "timestamp", "age", "session")}
        values = {f"{kind}__{name}": fields.type_of(name) for name in fields.names}
        for name in rules.columns(kind):
            source.require([name])
            actual = source.schema.field(name).type
            if not is_list(actual) or (name in numbers and not is_integer(actual.value_type)):
                what = "lists of integers" if name in numbers else "lists"
                raise DataError(
                    f"{source.path}, column `{name}`: expected {what}. Received: {actual}"
                )
            if actual.value_type != values.get(name, actual.value_type):
                raise DataError(
                    f"{source.path}, column `{name}`: expected lists of {values[name]}, as in the "
                    f"raw events. Received: {actual}"
                )


def _sampled_impressions(
    found: Findings, sources: dict[str, ParquetSource], sample: float
) -> pd.DataFrame:
    """The keys of the sample's rows: `user`, `item`, `time`, `split`, `row` and `position`.

    The times of the splits are compared on the way, over all rows.
    """
    parts, spans = [], {}
    for split, source in sources.items():
        offset, times = 0, []
        for index in range(source.num_row_groups):
            table = source.read_row_group(index, _KEYS)
            for name in _KEYS:
                kind, nulls = table.schema.field(name).type, table[name].null_count
                if not is_integer(kind) or nulls:
                    raise DataError(
                        f"{source.place(index)}, column `{name}`: expected integers without "
                        f"nulls. Received: {kind}, {nulls} nulls"
                    )
            table = table.cast(pa.schema([(name, pa.int64()) for name in _KEYS]))
            if len(table):
                times += pc.min_max(table["timestamp"]).as_py().values()
            rows = np.flatnonzero(_in_sample(table, sample))
            frame = table.take(pa.array(rows)).to_pandas()
            parts.append(frame.assign(split=split, row=rows + offset))
            offset += len(table)
        if times:
            spans[split] = (min(times), max(times))
    for earlier, later in pairwise(SPLITS):
        if earlier not in spans or later not in spans:
            found.add(later, np.array([-1]), "", f"{earlier} or {later} has no rows")
        elif spans[earlier][1] >= spans[later][0]:
            found.add(later, np.array([-1]), "", f"starts before {earlier} has ended")
    frame = pd.concat(parts, ignore_index=True).rename(columns={"timestamp": "time"})
    return frame.assign(position=np.arange(len(frame)))


def _check_impressions(found: Findings, impressions: pd.DataFrame, log: Log) -> None:
    raw = log.impressions.select(_KEYS).to_pandas().drop_duplicates()
    raw = raw.rename(columns={"timestamp": "time"}).assign(known=True)
    merged = impressions.merge(raw, on=["user", "item", "time"], how="left")
    for split, of_split in merged[merged["known"].isna()].groupby("split"):
        what = "an impression that the raw log has not"
        found.add(str(split), of_split["row"].to_numpy(), "", what)
