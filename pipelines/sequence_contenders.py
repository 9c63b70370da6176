"""Ways from a log to sequences: `python -m pipelines.sequence_contenders NAME LOG OUTPUT`.

Every contender reads `events.parquet` and `impressions.parquet` of a bench log and writes, for each
impression, `row` and the lists `T__item` and `T__timestamp` of each type: the last 50 events
strictly before it, oldest to newest. Each does so as its own documentation advises.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.bench_log import TYPES
from seqdenoise.data.columns import ranges
from seqdenoise.data.sequence_rules import SequenceRules
from seqdenoise.data.sequences import SequenceBuilder

MAX_LENGTH = 50

_ROWS_AT_A_TIME = 100_000
_EVENT_COLUMNS = ["user", "item", "type", "timestamp"]


@dataclass(frozen=True)
class Contender:
    """One way to build sequences.

    Attributes:
        name: As reports call it.
        make: From the log's folder to the output: a file, or a folder with files at any depth.
        output: The output's name.
        packages: What it needs besides our own dependencies.
    """

    name: str
    make: Callable[[Path, Path], None]
    output: str = "rows.parquet"
    packages: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.packages if find_spec(name) is None]


def _in_memory(log: Path, output: Path) -> None:
    events = pq.read_table(log / "events.parquet", columns=_EVENT_COLUMNS)
    shown = pq.read_table(log / "impressions.parquet", columns=["user", "timestamp", "row"])
    builder = SequenceBuilder(events, SequenceRules(types=TYPES, max_length=MAX_LENGTH))
    del events
    with _Writer(output) as write:
        for start in range(0, len(shown), _ROWS_AT_A_TIME):
            part = shown.slice(start, _ROWS_AT_A_TIME)
            write(
                builder.build(part.select(["user", "timestamp"])).append_column("row", part["row"])
            )


def _prepared(log: Path, output: Path) -> None:
    from pipelines.config import RunConfig
    from pipelines.prepare import prepare

    rows = pq.ParquetFile(log / "impressions.parquet").metadata
    spans = [rows.row_group(i).column(2).statistics for i in range(rows.num_row_groups)]
    first, last = min(span.min for span in spans), max(span.max for span in spans)
    split = {
        "valid_from": first + (last - first) * 8 // 10,
        "test_from": first + (last - first) * 9 // 10,
    }
    settings = {
        "sequence_types": list(TYPES),
        "max_length": MAX_LENGTH,
        "labels": ["is_click"],
        "context_fields": ["row"],
        "split": split,
    }
    content = {
        "folder": output,
        "log": {"folder": str(log.resolve())},
        "prepare": settings,
        "model": {"label": "is_click"},
    }
    prepare(RunConfig.model_validate(content))


class _Writer:
    """Writes tables, in the way that is cheapest for lists of integers."""

    def __init__(self, path: Path):
        self._path = path
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Callable[[pa.Table], None]:
        return self._write

    def __exit__(self, *_: Any) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write(self, table: pa.Table) -> None:
        if self._writer is None:
            lists = [f"{name}.list.element" for name in table.column_names if name != "row"]
            self._writer = pq.ParquetWriter(
                self._path,
                table.schema,
                compression="zstd",
                write_statistics=["row"],
                use_dictionary=False,
                column_encoding=dict.fromkeys(lists, "DELTA_BINARY_PACKED"),
            )
        self._writer.write_table(table, row_group_size=8192)


def _pandas(log: Path, output: Path) -> None:
    import pandas as pd

    events = pd.read_parquet(log / "events.parquet", columns=_EVENT_COLUMNS)
    shown = pd.read_parquet(log / "impressions.parquet", columns=["user", "timestamp", "row"])
    found = {}
    for kind in TYPES:
        of_kind = events.loc[events["type"] == kind, ["user", "item", "timestamp"]]
        by_user = of_kind.sort_values(["user", "timestamp"], ignore_index=True)
        by_user["place"] = np.arange(1, len(by_user) + 1)
        by_user["first"] = by_user.groupby("user")["place"].transform("min") - 1
        by_time = by_user[["user", "timestamp", "first", "place"]].sort_values("timestamp")
        joined = pd.merge_asof(shown, by_time, on="timestamp", by="user", allow_exact_matches=False)
        ends = joined["place"].fillna(0).to_numpy().astype(np.int64)
        starts = joined["first"].fillna(0).to_numpy().astype(np.int64)
        found[kind] = (by_user, np.maximum(starts, ends - MAX_LENGTH), ends)
    del events
    rows = pa.array(shown["row"])
    with _Writer(output) as write:
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            part = slice(start, start + _ROWS_AT_A_TIME)
            columns = {"row": rows[part]}
            for kind, (by_user, starts, ends) in found.items():
                lengths = ends[part] - starts[part]
                taken = ranges(starts[part], lengths)
                offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
                for name in ("item", "timestamp"):
                    flat = pa.array(by_user[name].to_numpy()[taken])
                    columns[f"{kind}__{name}"] = pa.ListArray.from_arrays(offsets, flat)
            write(pa.table(columns))


def _polars(log: Path, output: Path) -> None:
    pl = import_module("polars")

    events = pl.read_parquet(log / "events.parquet", columns=_EVENT_COLUMNS)
    shown = pl.read_parquet(log / "impressions.parquet", columns=["user", "timestamp", "row"])
    found = {}
    for kind in TYPES:
        by_user = (
            events.filter(pl.col("type") == kind)
            .select("user", "item", "timestamp")
            .sort("user", "timestamp")
            .with_row_index("place", offset=1)
            .with_columns(first=pl.col("place").min().over("user") - 1)
        )
        joined = shown.join_asof(
            by_user.select("user", "timestamp", "first", "place").sort("timestamp"),
            on="timestamp",
            by="user",
            strategy="backward",
            allow_exact_matches=False,
        )
        ends = joined["place"].fill_null(0).to_numpy().astype(np.int64)
        starts = joined["first"].fill_null(0).to_numpy().astype(np.int64)
        columns = by_user.select("item", "timestamp")
        found[kind] = (columns, np.maximum(starts, ends - MAX_LENGTH), ends)
    del events
    # The lists are put together from what Polars gathers; its own ways (explode and group, or
    # slices of each user's whole list) take several times as long.
    rows = shown["row"].to_arrow()
    with _Writer(output) as write:
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            part = slice(start, start + _ROWS_AT_A_TIME)
            columns = {"row": rows[part]}
            for kind, (by_user, starts, ends) in found.items():
                lengths = ends[part] - starts[part]
                taken = pl.Series(ranges(starts[part], lengths))
                offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
                for name in ("item", "timestamp"):
                    flat = by_user[name].gather(taken).to_arrow()
                    columns[f"{kind}__{name}"] = pa.ListArray.from_arrays(offsets, flat)
            write(pa.table(columns))


def _duckdb(log: Path, output: Path) -> None:
    duckdb = import_module("duckdb")

    database = duckdb.connect()
    # The order of the output's rows is of no importance.
    database.execute("SET preserve_insertion_order = false")
    database.execute(
        f"""
        CREATE TABLE shown AS
        SELECT user, timestamp, row FROM read_parquet('{log}/impressions.parquet')
        """
    )
    columns, joins = ["shown.row"], []
    for kind in TYPES:
        database.execute(
            f"""
            CREATE TABLE of_kind AS
            SELECT user, timestamp, item,
                   row_number() OVER (PARTITION BY user ORDER BY timestamp) AS place
            FROM read_parquet('{log}/events.parquet') WHERE type = '{kind}'
            """
        )
        # Slices of each user's whole lists: to join the last events one by one and to gather them
        # to lists takes a third longer, and all types in one statement twice the memory.
        database.execute(
            """
            CREATE TABLE lists AS
            SELECT user, list(item ORDER BY timestamp) AS items,
                   list(timestamp ORDER BY timestamp) AS times
            FROM of_kind GROUP BY user
            """
        )
        last = f"[greatest(place - {MAX_LENGTH - 1}, 1):place]"
        database.execute(
            f"""
            CREATE TABLE {kind} AS
            SELECT row, items{last} AS items, times{last} AS times
            FROM (
                SELECT shown.row, shown.user, of_kind.place FROM shown
                ASOF JOIN of_kind
                ON shown.user = of_kind.user AND shown.timestamp > of_kind.timestamp
            ) found JOIN lists ON found.user = lists.user
            """
        )
        database.execute("DROP TABLE of_kind")
        database.execute("DROP TABLE lists")
        for name, values in (("item", "items"), ("timestamp", "times")):
            columns.append(f"coalesce({kind}.{values}, []::BIGINT[]) AS {kind}__{name}")
        joins.append(f"LEFT JOIN {kind} ON shown.row = {kind}.row")
    database.execute(
        f"""
        COPY (SELECT {", ".join(columns)} FROM shown {" ".join(joins)})
        TO '{output}' (FORMAT parquet, COMPRESSION zstd)
        """
    )


CONTENDERS = (
    Contender("seqdenoise, in memory", _in_memory),
    Contender("seqdenoise, prepare", _prepared, "run"),
    Contender("pandas merge_asof", _pandas),
    Contender("Polars join_asof", _polars, packages=("polars",)),
    Contender("DuckDB ASOF JOIN", _duckdb, packages=("duckdb",)),
)


if __name__ == "__main__":
    wanted, log_folder, output_path = sys.argv[1:]
    for contender in CONTENDERS:
        if contender.name == wanted:
            contender.make(Path(log_folder), Path(output_path))
