"""KuaiRand-Pure (short-video impressions with several kinds of feedback) as a log folder.

Gao et al., "KuaiRand: An Unbiased Sequential Recommendation Dataset with Randomly Exposed Videos",
CIKM 2022. Two layouts are read:

- the subset: `log_standard_4_25_to_5_08_pure.parquet`, `user_history_to_4_24_pure.parquet`,
  `user_features_pure.csv`, `video_features_basic_pure.csv`;
- the official files: `log_standard_4_08_to_4_21_pure.csv`, `log_standard_4_22_to_5_08_pure.csv`
  and the same two feature files, also inside a `data` folder. Earlier days are events there instead
  of a history.

`log_random_4_22_to_5_08_pure.csv` is not read. Its rows were put before users at random: as
impressions they follow another exposure policy, and as events they say nothing of what the
recommender thought of the user.
"""

import datetime
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.sources.columns import Kind, read_csv, read_parquet
from seqdenoise.data.atomic import atomic_folder
from seqdenoise.errors import DataError

logger = logging.getLogger(__name__)

SUBSET_LOG = "log_standard_4_25_to_5_08_pure.parquet"
SUBSET_HISTORY = "user_history_to_4_24_pure.parquet"
OFFICIAL_LOGS = ("log_standard_4_08_to_4_21_pure.csv", "log_standard_4_22_to_5_08_pure.csv")
USER_FEATURES = "user_features_pure.csv"
VIDEO_FEATURES = "video_features_basic_pure.csv"

FIRST_IMPRESSION_DATE = datetime.date(2022, 4, 25)
_CHINA_OFFSET_MS = 8 * 3_600_000  # no daylight saving time there since 1991
_HOUR_MS = 3_600_000
_UNKNOWN_FLAG = -124

# Sequence type -> the log's flag; None: every row is such an event.
EVENT_FLAGS = {
    "exposure": None,
    "long_view": "long_view",
    "like": "is_like",
    "click": "is_click",
    "comment": "is_comment",
    "follow": "is_follow",
    "forward": "is_forward",
}
HISTORY_COLUMNS = {"exposure": "watch_seq", "long_view": "long_watch_seq", "like": "like_seq"}

# All published columns, since a duplicate is a row equal in every one of them.
_LOG: dict[str, Kind] = {
    "user_id": "int",
    "video_id": "int",
    "date": "int",
    "hourmin": "int",
    "time_ms": "int",
    "is_click": "flag",
    "is_like": "flag",
    "is_follow": "flag",
    "is_comment": "flag",
    "is_forward": "flag",
    "is_hate": "flag",
    "long_view": "flag",
    "play_time_ms": "int",
    "duration_ms": "int",
    "profile_stay_time": "int",
    "comment_stay_time": "int",
    "is_profile_enter": "flag",
    "is_rand": "flag",
    "tab": "int",
}
_HISTORY: dict[str, Kind] = {
    "user_id": "int",
    "history_len": "int",
    "last_time_ms": "int",
    **dict.fromkeys(HISTORY_COLUMNS.values(), "ids"),
}
_USER_FLAGS = ("is_lowactive_period", "is_live_streamer", "is_video_author")
_USERS: dict[str, Kind] = {
    "user_id": "int",
    "user_active_degree": "string",
    **dict.fromkeys(_USER_FLAGS, "nullable_int"),
    "follow_user_num": "nullable_int",
    "follow_user_num_range": "string",
    "fans_user_num": "nullable_int",
    "fans_user_num_range": "string",
    "friend_user_num": "nullable_int",
    "friend_user_num_range": "string",
    "register_days": "nullable_int",
    "register_days_range": "string",
    **{f"onehot_feat{i}": "nullable_int" for i in range(18)},
}
_VIDEOS: dict[str, Kind] = {
    "video_id": "int",
    "author_id": "nullable_int",
    "music_id": "nullable_int",
    "tag": "first_id",
    "video_type": "string",
    "upload_type": "string",
    "upload_dt": "date",
    "video_duration": "float",
}


@dataclass(frozen=True)
class _Source:
    """The raw tables, columns as published."""

    log: pd.DataFrame
    history: pa.Table | None
    users: pa.Table
    videos: pa.Table


def import_kuairand(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    impressions_from: datetime.date = FIRST_IMPRESSION_DATE,
) -> dict[str, int]:
    """Turns KuaiRand-Pure into a log folder.

    Rows of the log equal in all columns count once. Every row is an `exposure` event at its
    `time_ms`, and an event of each type whose flag it sets. Histories (subset only) hold
    `exposure`, `long_view` and `like`; the other types grow from the log alone. A history that does
    not end before its user's first row in the log is left out, with the user's `history_len`:
    without times, nobody could say which of its entries the impressions may see.

    Impressions carry the labels `is_click`, `long_view`, `is_like` and only what is known before
    the impression: `tab`, `duration_ms` (0 where unknown; the same in every row of a video) and
    `hour`. The hour is that of `time_ms` in China, not of `hourmin`: `hourmin` says when the row
    was reported, up to hours after the impression, and later for watched videos than for skipped
    ones.

    Args:
        source: Folder of either layout, or its parent where the files are in `data`.
        folder: The log folder to write; replaced whole if it exists.
        impressions_from: Rows whose published `date` is earlier are events but no impressions.
            `date` follows `hourmin`: the first hour of a day begins about an hour early.

    Returns:
        Rows by table name, `duplicates` (rows dropped) and `histories_left_out` (users).

    Raises:
        DataError: A file or column is missing, broken, empty or of another type; nothing is
            written.
    """
    raw = _read(Path(source))
    log = raw.log.drop_duplicates(ignore_index=True)
    duplicates = len(raw.log) - len(log)
    logger.info(
        "kuairand: %d of %d log rows are exact duplicates, dropped", duplicates, len(raw.log)
    )
    if log["is_rand"].any():
        raise DataError(
            f"{source}, column `is_rand`: expected 0 in a standard log. "
            f"Received: {int(log['is_rand'].sum())} rows with 1"
        )
    shown = log[log["date"] >= int(impressions_from.strftime("%Y%m%d"))]
    if shown.empty:
        raise DataError(
            f"{source}, column `date`: expected rows from {impressions_from} on. "
            f"Received: none, the last is {log['date'].max()}"
        )
    tables = {"events": _events(log), "impressions": _impressions(shown)}
    left_out = np.empty(0, dtype=np.int64)
    if raw.history is not None:
        left_out = _late_histories(raw.history, log)
        tables["histories"] = _histories(raw.history, left_out)
    tables["items"] = _items(raw.videos)
    tables["users"] = _users(raw.users, raw.history, left_out)
    with atomic_folder(folder) as aside:
        for name, table in tables.items():
            pq.write_table(table, aside / f"{name}.parquet", compression="zstd")
    counts = {name: table.num_rows for name, table in tables.items()}
    for name, rows in counts.items():
        logger.info("kuairand: %s.parquet has %d rows", name, rows)
    if len(left_out):
        logger.info("kuairand: %d histories overlap the log, left out", len(left_out))
    return {**counts, "duplicates": duplicates, "histories_left_out": len(left_out)}


def _read(source: Path) -> _Source:
    logs = (SUBSET_LOG, *OFFICIAL_LOGS)
    for home in (source, source / "data"):
        if any((home / name).exists() for name in logs):
            break
    else:
        raise DataError(
            f"{source}: expected {SUBSET_LOG}, or {' and '.join(OFFICIAL_LOGS)}, there or in its "
            f"folder `data`. Received: {'none of them' if source.is_dir() else 'no such folder'}"
        )
    history = None
    if (home / SUBSET_LOG).exists():
        log = read_parquet(home / SUBSET_LOG, _LOG)
        history = _unique(home / SUBSET_HISTORY, read_parquet(home / SUBSET_HISTORY, _HISTORY))
    else:
        log = pa.concat_tables([read_csv(home / name, _LOG) for name in OFFICIAL_LOGS])
    return _Source(
        log=log.to_pandas(),
        history=history,
        users=_unique(home / USER_FEATURES, read_csv(home / USER_FEATURES, _USERS)),
        videos=_unique(home / VIDEO_FEATURES, read_csv(home / VIDEO_FEATURES, _VIDEOS)),
    )


def _unique(path: Path, table: pa.Table) -> pa.Table:
    """The table, whose first column must not repeat a value."""
    name = table.column_names[0]
    distinct = pc.count_distinct(table[name]).as_py()
    if distinct != table.num_rows:
        raise DataError(
            f"{path}, column `{name}`: expected each id once. "
            f"Received: {table.num_rows} rows, {distinct} ids"
        )
    return table


def _events(log: pd.DataFrame) -> pa.Table:
    parts = []
    for code, flag in enumerate(EVENT_FLAGS.values()):
        rows = log if flag is None else log[log[flag] == 1]
        parts.append(rows[["time_ms", "user_id", "video_id"]].assign(code=code))
    # Sorted, so that the file does not depend on the row order of the source.
    events = pd.concat(parts).sort_values(["time_ms", "user_id", "video_id", "code"])
    kind = pa.DictionaryArray.from_arrays(events["code"].to_numpy(), list(EVENT_FLAGS))
    return pa.table(
        {
            "user": events["user_id"].to_numpy(),
            "item": events["video_id"].to_numpy(),
            "type": kind.cast(pa.string()),
            "timestamp": events["time_ms"].to_numpy(),
        }
    )


def _impressions(shown: pd.DataFrame) -> pa.Table:
    shown = shown.sort_values(["time_ms", "user_id", "video_id"], kind="stable")
    time_ms = shown["time_ms"].to_numpy()
    labels = {name: shown[name].to_numpy(np.int8) for name in ("is_click", "long_view", "is_like")}
    return pa.table(
        {
            "user": shown["user_id"].to_numpy(),
            "item": shown["video_id"].to_numpy(),
            "timestamp": time_ms,
            **labels,
            "tab": shown["tab"].to_numpy(),
            "hour": (time_ms + _CHINA_OFFSET_MS) // _HOUR_MS % 24,
            "duration_ms": shown["duration_ms"].to_numpy(),
        }
    )


def _late_histories(history: pa.Table, log: pd.DataFrame) -> np.ndarray:
    """Users whose history does not end before their first row in the log."""
    first = log.groupby("user_id")["time_ms"].min()
    user = history["user_id"].to_numpy()
    begins = first.reindex(user, fill_value=np.iinfo(np.int64).max).to_numpy()
    return np.asarray(user[history["last_time_ms"].to_numpy() >= begins])


def _histories(history: pa.Table, left_out: np.ndarray) -> pa.Table:
    kept = history.filter(pc.invert(pc.is_in(history["user_id"], pa.array(left_out))))
    parts = []
    for kind, column in HISTORY_COLUMNS.items():
        part = kept.filter(pc.greater(pc.list_value_length(kept[column]), 0))
        types = pa.array([kind] * part.num_rows, pa.string())
        parts.append(pa.table({"user": part["user_id"], "type": types, "items": part[column]}))
    return pa.concat_tables(parts).sort_by([("user", "ascending"), ("type", "ascending")])


def _items(videos: pa.Table) -> pa.Table:
    names = {"video_id": "item", "author_id": "author", "music_id": "music"}
    return videos.rename_columns([names.get(name, name) for name in videos.column_names])


def _users(users: pa.Table, history: pa.Table | None, left_out: np.ndarray) -> pa.Table:
    columns = {name: users[name] for name in users.column_names}
    columns["user"] = columns.pop("user_id")
    for name in _USER_FLAGS:
        unknown = pc.equal(columns[name], _UNKNOWN_FLAG)
        columns[name] = pc.if_else(unknown, pa.scalar(None, pa.int64()), columns[name])
    if history is not None:
        at = pc.index_in(users["user_id"], history["user_id"])
        # A user without a history has seen nothing yet: 0, not unknown.
        length = pc.fill_null(history["history_len"].take(at), 0)
        late = pc.is_in(users["user_id"], pa.array(left_out))
        columns["history_len"] = pc.if_else(late, pa.scalar(None, pa.int64()), length)
    return pa.table({"user": columns.pop("user"), **columns})
