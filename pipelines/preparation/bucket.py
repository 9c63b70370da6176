"""The second stage: one user bucket's log to prepared rows, and what they say of training."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.config import RunConfig
from pipelines.log_folder import TableName, check_histories, check_users
from pipelines.preparation.bucket_statistics import BucketStatistics
from pipelines.splits import SPLITS
from seqdenoise.data.atomic import atomic_folder
from seqdenoise.data.lookup import Lookup
from seqdenoise.data.sequences import SequenceBuilder

ROW_GROUP_ROWS = 8192
SUMMARY = "summary.json"
# Share of different values from which on a dictionary does not pay.
_MANY = 0.25
_LOOKED_AT = 50_000


def build_bucket(
    config: RunConfig,
    tables: Mapping[TableName, pa.Table],
    items: pa.Table | None,
    folder: Path,
    *,
    num_ranges: int,
) -> None:
    """Writes one bucket's rows and statistics, whole or not at all.

    Args:
        config: The run.
        tables: The bucket's rows of each table the log has, as `read_bucket` gives them.
        items: The item table, as `read_items` gives it.
        folder: Where to write: a parquet file for each split that has rows, sorted by time, user
            and item, the files of `BucketStatistics`, and `summary.json`.
        num_ranges: As in `BucketStatistics.save`.

    Raises:
        DataError: A user, or a user and type of the histories, occurs twice, or a column is not
            what the sequence builder needs.
    """
    prepare = config.prepare
    events = _with_type_names(tables["events"], prepare.sequence_types)
    histories, users = tables.get("histories"), tables.get("users")
    if histories is not None:
        histories = _with_type_names(histories, prepare.sequence_types)
        check_histories(config, histories)
    if users is not None:
        check_users(config, users)
    builder = SequenceBuilder(events, prepare.rules(), histories=histories, items=items)
    impressions = tables["impressions"]
    shown = [
        *("user", "item", "timestamp"),
        *prepare.labels,
        *prepare.context_fields,
        *(name for name in ["weight"] if name in impressions.column_names),
    ]
    statistics = BucketStatistics(config)
    statistics.add_items(events, histories)
    summary: dict[str, Any] = {"splits": {}}
    with atomic_folder(folder) as aside:
        for code, split in enumerate(SPLITS):
            rows = impressions.filter(pc.equal(impressions["split"], code)).select(shown)
            if not len(rows):
                continue
            keys = tuple(rows[key].to_numpy() for key in ("item", "user", "timestamp"))
            rows = rows.take(pa.array(np.lexsort(keys)))
            rows = _with_side_fields(rows, config, items, users)
            counter = statistics if split == "train" else None
            summary["splits"][split] = _write_split(
                aside / f"{split}.parquet", rows, builder, config, counter
            )
        summary["pairs"] = statistics.save(aside, num_ranges=num_ranges)
        (aside / SUMMARY).write_text(json.dumps(summary), encoding="utf-8")


def _with_type_names(rows: pa.Table, types: Sequence[str]) -> pa.Table:
    """The rows with `type` as text: of a dictionary, which costs no more than the numbers."""
    codes = rows["type"].combine_chunks()
    names = pa.DictionaryArray.from_arrays(codes, pa.array(types, pa.string()))
    return rows.set_column(rows.schema.get_field_index("type"), "type", names)


def _with_side_fields(
    rows: pa.Table, config: RunConfig, items: pa.Table | None, users: pa.Table | None
) -> pa.Table:
    """Joins the candidate's item fields and the user's fields; unknown keys read as null."""
    for table, key in ((items, "item"), (users, "user")):
        if table is None:
            continue
        fields = [name for name in table.column_names if name != key]
        lookup = Lookup(table, key, fields, place=config.log_table(f"{key}s"))
        found = lookup.rows(rows[key].to_numpy())
        for field in fields:
            rows = rows.append_column(field, lookup.take(field, found))
    return rows


def _row_groups(table: pa.Table, builder: SequenceBuilder) -> Iterator[tuple[pa.Table, pa.Table]]:
    for start in range(0, len(table), ROW_GROUP_ROWS):
        part = table.slice(start, ROW_GROUP_ROWS)
        yield part, builder.build(part.select(["user", "timestamp"]))


def _write_split(
    path: Path,
    table: pa.Table,
    builder: SequenceBuilder,
    config: RunConfig,
    statistics: BucketStatistics | None,
) -> dict[str, Any]:
    """Writes one split a row group at a time and returns the counts of it."""
    prepare = config.prepare
    lengths = {kind: np.zeros(prepare.max_length + 1, np.int64) for kind in prepare.sequence_types}
    writer = None
    try:
        for scalars, sequences in _row_groups(table, builder):
            columns = [*scalars.columns, *sequences.columns]
            whole = pa.table(columns, names=[*scalars.column_names, *sequences.column_names])
            if writer is None:
                writer = _writer(path, whole, scalars.column_names)
            writer.write_table(whole, row_group_size=ROW_GROUP_ROWS)
            for kind, counts in lengths.items():
                of_kind = pc.list_value_length(sequences[f"{kind}__item"]).to_numpy()
                counts += np.bincount(of_kind, minlength=len(counts))
            if statistics is not None:
                statistics.add_rows(whole)
    finally:
        if writer is not None:
            writer.close()
    times = table["timestamp"].to_numpy()
    return {
        "rows": len(table),
        "users": pc.count_distinct(table["user"]).as_py(),
        "first_timestamp": int(times[0]),
        "last_timestamp": int(times[-1]),
        "label_sums": {name: pc.sum(table[name]).as_py() for name in prepare.labels},
        "lengths": {kind: _as_list(counts) for kind, counts in lengths.items()},
    }


def _writer(path: Path, first: pa.Table, scalars: Sequence[str]) -> pq.ParquetWriter:
    """A writer that spends its time on what a reader gains from.

    Integers of sequences are stored as differences of neighbours where a dictionary would be long:
    of many different ids (and nearly always of times) that takes half the time to write and two
    thirds to read, of few it makes larger files.
    """
    differences: list[str] = []
    others: list[str] = []
    for field in first.schema:
        if not pa.types.is_list(field.type):
            others.append(field.name)
            continue
        values = pc.list_flatten(first[field.name]).slice(0, _LOOKED_AT)
        many = pc.count_distinct(values).as_py() > len(values) * _MANY
        integers = pa.types.is_integer(field.type.value_type)
        (differences if integers and many else others).append(f"{field.name}.list.element")
    return pq.ParquetWriter(
        path,
        first.schema,
        compression="zstd",
        write_page_checksum=True,
        # Nobody filters by an event of a sequence.
        write_statistics=list(scalars),
        use_dictionary=others,
        column_encoding=dict.fromkeys(differences, "DELTA_BINARY_PACKED"),
    )


def _as_list(counts: npt.NDArray[np.int64]) -> list[int]:
    return counts.tolist()
