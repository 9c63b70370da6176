"""What one row's history looks like once judged: the events kept and dropped, and what by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq

from pipelines.inspection.finished_run import CANDIDATE, FinishedRun
from pipelines.inspection.samples import take_rows
from pipelines.inspection.truth import UNKNOWN, Truth
from pipelines.run_sections import TimeUnit
from seqdenoise.data.files import ParquetSource


@dataclass(frozen=True)
class Event:
    """An event, or the candidate, as text to show.

    Attributes:
        item: Its item.
        fields: What the model knows of it beside the item, by name.
        moment: When, in UTC; empty where it is not known.
        keep_score: None for one that is not judged.
        truth: `REAL`, `NOISE` or `UNKNOWN`.
    """

    item: str
    fields: Mapping[str, str]
    moment: str = ""
    keep_score: float | None = None
    truth: int = UNKNOWN


@dataclass(frozen=True)
class History:
    """One row of a prepared file.

    Attributes:
        user: Whose it is.
        moment: When the candidate was shown, in UTC.
        candidate: What was shown.
        judged: Events by noisy type, oldest first.
        trusted: Events by trusted type, oldest first.
        has_trusted: Whether there was anything to judge by.
    """

    user: str
    moment: str
    candidate: Event
    judged: Mapping[str, Sequence[Event]]
    trusted: Mapping[str, Sequence[Event]]
    has_trusted: bool


def moment_text(ticks: Any, unit: TimeUnit) -> str:
    """A time stamp to the minute, in UTC; empty where it is missing.

    Example:
        >>> moment_text(1704067200000, "ms")
        '2024-01-01 00:00'
    """
    if pd.isna(ticks):
        return ""
    moment = np.datetime64(int(ticks), unit)
    return str(np.datetime_as_string(moment, unit="m")).replace("T", " ")


def _events(
    row: Mapping[str, Any], kind: str, fields: Sequence[str], unit: TimeUnit
) -> list[Event]:
    items = row[f"{kind}__item"] or []
    times = row.get(f"{kind}__timestamp") or [None] * len(items)
    return [
        Event(
            item=str(item),
            fields={name: str((row[f"{kind}__{name}"])[place]) for name in fields},
            moment=moment_text(times[place], unit),
        )
        for place, item in enumerate(items)
    ]


def _truth_of(row: Mapping[str, Any], kind: str, truth: Truth | None) -> npt.NDArray[np.int8]:
    items, times = row[f"{kind}__item"] or [], row.get(f"{kind}__timestamp")
    if truth is None or times is None:
        return np.full(len(items), np.int8(UNKNOWN))
    return truth.of(
        pd.DataFrame({"user": row["user"], "type": kind, "item": items, "timestamp": times})
    )


def judged_histories(
    run: FinishedRun,
    prepared: Path,
    keep_scores: Path,
    rows: Sequence[int],
    truth: Truth | None = None,
) -> list[History]:
    """The histories of some rows.

    Args:
        run: The run that judged.
        prepared: The prepared file.
        keep_scores: What `write_keep_scores` wrote of it.
        rows: Numbers of rows.
        truth: Which events are noise, where that is known.

    Returns:
        One entry a row, in the order of `rows`.
    """
    if not rows:
        return []
    names = ["item", *run.config.model.event_fields]
    kinds = [*run.noisy_types, *run.trusted_types]
    columns = ["user", "timestamp", *names, *(f"{k}__{name}" for k in kinds for name in names)]
    with ParquetSource(prepared) as source:
        known = source.schema.names
    columns += [name for kind in kinds if (name := f"{kind}__timestamp") in known]
    table = take_rows(prepared, rows, columns).to_pylist()
    wanted = [("row", "in", sorted(set(rows)))]
    scores = pq.read_table(keep_scores, filters=wanted).to_pandas()
    return [
        _history(run, row, scores[scores["row"] == number], truth)
        for number, row in zip(rows, table, strict=True)
    ]


def _history(
    run: FinishedRun, row: Mapping[str, Any], scores: pd.DataFrame, truth: Truth | None
) -> History:
    unit, fields = run.config.log.time_unit, run.config.model.event_fields
    judged = {}
    has_trusted = CANDIDATE in run.trusted or any(row[f"{k}__item"] for k in run.trusted_types)
    for kind in run.noisy_types:
        # Scores are of the most recent events, those that the model sees.
        of_type = scores.loc[scores["type"] == kind, "keep_score"].tolist()
        events, is_noise = _events(row, kind, fields, unit), _truth_of(row, kind, truth)
        seen = len(events) - len(of_type)
        judged[kind] = [
            replace(event, keep_score=score if has_trusted else None, truth=int(noise))
            for event, score, noise in zip(events[seen:], of_type, is_noise[seen:], strict=True)
        ]
    return History(
        user=str(row["user"]),
        moment=moment_text(row["timestamp"], unit),
        candidate=Event(str(row["item"]), {name: str(row[name]) for name in fields}),
        judged=judged,
        trusted={kind: _events(row, kind, fields, unit) for kind in run.trusted_types},
        has_trusted=has_trusted,
    )
