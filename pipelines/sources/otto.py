"""OTTO (clicks, carts and orders of a web shop's sessions) as a log folder.

Normann, Hamann and Fietze, "OTTO - Multi-Objective Recommender System" (2022): `train.jsonl` or
`otto-recsys-train.jsonl`, a line a session, `{"session": 0, "events": [{"aid": 1, "ts": 2, "type":
"clicks"}]}`, times in milliseconds. A session is a browser's activity over up to four weeks, so it
stands for the user. The published test file is not read: its sessions are cut at random moments.

The log does not say what was shown. So the task is conversion, not click: every click is an
impression, and its labels say whether the same session puts the same article into the cart
(`is_cart`) or orders it (`is_order`) later, within a horizon. Labels look at strictly later events
and sequences at strictly earlier ones; what happens at the click's own millisecond is in neither.
Clicks whose horizon reaches past the end of the log are left out, since nobody knows their labels;
they stay events. Several clicks on one article before a cart all count as converted.
"""

import datetime
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from pipelines.sources.conversions import (
    DAY,
    EVENTS,
    KEYS,
    distinct,
    followed,
    milliseconds,
    write_judged,
)
from pipelines.sources.streams import GrowingTable
from seqdenoise.data.atomic import atomic_folder
from seqdenoise.errors import DataError

_logger = logging.getLogger(__name__)

FILES = ("train.jsonl", "otto-recsys-train.jsonl")
# Published name -> sequence type.
TYPES = {"clicks": "click", "carts": "cart", "orders": "order"}

_BLOCK_BYTES = 16 << 20
_HOUR_MS = 3_600_000
_EVENT = pa.struct([("aid", pa.int64()), ("ts", pa.int64()), ("type", pa.string())])
_SESSION = pa.schema([("session", pa.int64()), ("events", pa.list_(_EVENT))])
_IMPRESSIONS = pa.schema(
    [
        *KEYS,
        ("timestamp", pa.int64()),
        ("is_cart", pa.int8()),
        ("is_order", pa.int8()),
        ("hour", pa.int64()),
    ]
)


def import_otto(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    horizon: datetime.timedelta = DAY,
) -> dict[str, int]:
    """Turns the OTTO sessions into a log folder, a block of lines at a time.

    Besides a block, memory holds 8 bytes a session, to see that none comes twice. Events equal in
    session, article, time and type count once.

    Args:
        source: The `.jsonl` file, or its folder.
        folder: The log folder to write; replaced whole if it exists.
        horizon: How long after a click a cart or an order counts.

    Returns:
        `events`, `impressions`, `impressions_cut` (clicks whose horizon the log's end cuts),
        `sessions` and `duplicates` (events dropped).

    Raises:
        DataError: The file is missing, or a line is no such session; nothing is written.

    Example:
        >>> import_otto("otto", "build/otto/log")  # doctest: +SKIP
    """
    path = _file(Path(source))
    window = milliseconds(horizon)
    sessions: list[np.ndarray] = []
    num_raw, last = 0, -1
    with atomic_folder(folder) as aside:
        uncut = aside / "uncut.parquet"
        with (
            GrowingTable(aside / "events.parquet", EVENTS) as events,
            GrowingTable(uncut, _IMPRESSIONS) as shown,
        ):
            for table in _blocks(path):
                sessions.append(table["session"].to_numpy())
                raw = _flat(table)
                num_raw += len(raw)
                if not len(raw):
                    continue
                rows = distinct(raw, ["user", "timestamp", "item", "type"])
                last = max(last, pc.max(rows["timestamp"]).as_py())
                events.add(rows)
                shown.add(_impressions(rows, window))
        _refuse_repeats(path, np.concatenate(sessions))
        try:
            counts = write_judged(uncut, aside / "impressions.parquet", last=last, horizon=window)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        uncut.unlink()
    result = {
        "events": events.num_rows,
        **counts,
        "sessions": sum(map(len, sessions)),
        "duplicates": num_raw - events.num_rows,
    }
    _logger.info("otto: %s", ", ".join(f"{value} {name}" for name, value in result.items()))
    return result


def _file(source: Path) -> Path:
    if source.is_file():
        return source
    for name in FILES:
        if (source / name).is_file():
            return source / name
    raise DataError(
        f"{source}: expected a .jsonl file, or a folder with {' or '.join(FILES)}. "
        f"Received: {'neither of them' if source.is_dir() else 'no such file or folder'}"
    )


def _blocks(path: Path) -> Iterator[pa.Table]:
    """Sessions in blocks of whole lines, every value present and of its type."""
    line = 1
    try:
        with path.open("rb") as file:
            rest = b""
            while data := file.read(_BLOCK_BYTES):
                whole, newline, rest = (rest + data).rpartition(b"\n")
                if newline:
                    yield _parsed(path, line, whole)
                    line += whole.count(b"\n") + 1
            if rest:
                yield _parsed(path, line, rest)
                line += 1
    except OSError as error:
        raise DataError(f"{path}: expected a readable file. Received: {error}") from error
    if line == 1:
        raise DataError(f"{path}: expected at least one session. Received: an empty file")


def _parsed(path: Path, line: int, block: bytes) -> pa.Table:
    lines = block.count(b"\n") + 1
    try:
        table = pajson.read_json(
            pa.BufferReader(block),
            read_options=pajson.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pajson.ParseOptions(
                explicit_schema=_SESSION, unexpected_field_behavior="error"
            ),
        )
    except pa.ArrowInvalid as error:
        raise _defect(path, line, block, str(error)) from error
    entries = pc.list_flatten(table["events"])
    fields = pc.struct_field(entries, [1]), pc.struct_field(entries, [2])
    known = pc.is_in(fields[1], pa.array(list(TYPES)))
    nulls = sum(column.null_count for column in (*table.columns, entries))
    nulls += pc.struct_field(entries, [0]).null_count + fields[0].null_count
    late = pc.min(fields[0]).as_py() or 0
    if len(table) != lines or nulls or late < 0 or not pc.all(known, min_count=0).as_py():
        raise _defect(path, line, block, f"{len(table)} sessions in {lines} lines")
    return table


def _defect(path: Path, line: int, block: bytes, otherwise: str) -> DataError:
    """The error that names the first bad line; slow, and only for a block that has one."""
    lines = block.split(b"\n")
    for offset, text in enumerate(lines):
        problem = _problem(text)
        if problem:
            return DataError(f"{path}, line {line + offset}: {problem}")
    return DataError(
        f"{path}, lines {line} to {line + len(lines) - 1}: expected one session a line. "
        f"Received: {otherwise}"
    )


def _problem(text: bytes) -> str:
    example = '{"session": 0, "events": [{"aid": 1, "ts": 2, "type": "clicks"}]}'
    try:
        session: Any = json.loads(text)
    except ValueError:
        return f"expected JSON like {example}. Received: {text[:100].decode(errors='replace')!r}"
    if not isinstance(session, dict) or set(session) != {"session", "events"}:
        return f"expected the keys of {example}. Received: {str(session)[:100]}"
    if not _is_int64(session["session"]):
        return f"`session`: expected an integer. Received: {session['session']!r}"
    if not isinstance(session["events"], list):
        return f"`events`: expected a list. Received: {session['events']!r}"
    for number, event in enumerate(session["events"]):
        place = f"event {number}"
        if not isinstance(event, dict) or set(event) != {"aid", "ts", "type"}:
            return f"{place}: expected `aid`, `ts` and `type`. Received: {str(event)[:100]}"
        for name in ("aid", "ts"):
            if not _is_int64(event[name]):
                return f"{place}, `{name}`: expected an integer. Received: {event[name]!r}"
        if event["ts"] < 0:
            return f"{place}, `ts`: expected milliseconds since 1970. Received: {event['ts']}"
        if event["type"] not in TYPES:
            return f"{place}, `type`: expected one of {list(TYPES)}. Received: {event['type']!r}"
    return ""


def _is_int64(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _flat(table: pa.Table) -> pa.Table:
    entries = pc.list_flatten(table["events"]).combine_chunks()
    owners = pc.list_parent_indices(table["events"].combine_chunks())
    kind = pc.index_in(entries.field("type"), pa.array(list(TYPES)))
    return pa.table(
        {
            "user": table["session"].take(owners),
            "item": entries.field("aid"),
            "type": pa.array(list(TYPES.values())).take(kind),
            "timestamp": entries.field("ts"),
        }
    )


def _impressions(rows: pa.Table, window: int) -> pa.Table:
    user, item, time = (rows[name].to_numpy() for name in ("user", "item", "timestamp"))
    labels = {}
    for label in ("cart", "order"):
        outcome = pc.equal(rows["type"], label).to_numpy()
        labels[f"is_{label}"] = followed(user, item, time, outcome, window)
    columns = {"user": user, "item": item, "timestamp": time, **labels}
    shown = pa.table({**columns, "hour": time // _HOUR_MS % 24})
    return shown.filter(pc.equal(rows["type"], "click"))


def _refuse_repeats(path: Path, sessions: np.ndarray) -> None:
    first = np.full(len(sessions), True)
    order = np.argsort(sessions, kind="stable")
    first[order[1:]] = sessions[order][1:] != sessions[order][:-1]
    if not first.all():
        line = int(np.flatnonzero(~first)[0])
        raise DataError(
            f"{path}, line {line + 1}: expected every session once. "
            f"Received: session {sessions[line]} again"
        )
