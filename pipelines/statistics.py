"""What the plug-in needs to know of the training data: `statistics.json`."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import RunConfig
from pipelines.log_folder import read_items
from pipelines.preparation.bucket_statistics import ITEM_COUNTS, ITEMS, KEYS
from pipelines.preparation.work_folder import WorkFolder
from seqdenoise.data.lookup import Lookup
from seqdenoise.data.mutual_information import mutual_information
from seqdenoise.data.shared_rate import num_pairs, rates_of_pairs


def training_statistics(config: RunConfig, work: WorkFolder) -> dict[str, dict[str, Any]]:
    """What training rows say about each sequence type; nothing later is looked at.

    Memory grows with the number of items, not with the log.

    Args:
        config: The run.
        work: With all buckets built.

    Returns:
        For each sequence type `mutual_information`, from field to field in nats over `item` and
        `prepare.item_fields`: of the type's events before training's end and its history entries,
        each event once; and `tau_plus`, the `shared_rates` over the training rows whose sequence
        of that type, as prepared, is not empty.
    """
    fields = config.prepare.item_fields
    items = read_items(config)
    lookup = None
    if items is not None:
        lookup = Lookup(items, "item", fields, place=config.log_table("items"))
    counted, rates = _item_counts(work), _tau_plus(config, work)
    statistics = {}
    for code, kind in enumerate(config.prepare.sequence_types):
        # Fields go with the item, so each item is looked at once, with its number of events.
        of_kind = counted.filter(pc.equal(counted["type"], code)).sort_by("item")
        distinct = of_kind["item"].to_numpy()
        columns: dict[str, Any] = {"item": distinct}
        if lookup is not None:
            rows = lookup.rows(distinct)
            columns |= {field: lookup.take(field, rows) for field in fields}
        counts = of_kind["count_sum"].to_numpy()
        statistics[kind] = {
            "mutual_information": mutual_information(columns, counts=counts),
            "tau_plus": rates[kind],
        }
    return statistics


def _item_counts(work: WorkFolder) -> pa.Table:
    total = ITEM_COUNTS.empty_table()
    for path in _files(work, ITEMS):
        with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
            both = pa.concat_tables([total, reader.read_all()])
        added = both.group_by(["type", "item"]).aggregate([("count", "sum")])
        total = added.select(["type", "item", "count_sum"]).rename_columns(ITEM_COUNTS.names)
    return total.rename_columns(["type", "item", "count_sum"])


def _tau_plus(config: RunConfig, work: WorkFolder) -> dict[str, dict[str, float]]:
    of_sequence: Counter[int] = Counter()
    for index in range(work.plan.num_buckets):
        parts = []
        for path in _files(work, KEYS):
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
                parts.append(pa.Table.from_batches([reader.get_batch(index)]))
        keys = (
            pa.concat_tables(parts).group_by(["type", "high", "low"]).aggregate([("count", "sum")])
        )
        for code in range(len(config.prepare.sequence_types)):
            of_kind = keys.filter(pc.equal(keys["type"], code))
            of_sequence[code] += num_pairs(of_kind["count_sum"].to_numpy())
    pairs = [summary["pairs"] for summary in work.summaries()]
    return {
        kind: rates_of_pairs(
            of_sequence=of_sequence[code],
            **{key: sum(of[kind][key] for of in pairs) for key in ("rows", "of_user", "of_both")},
        )
        for code, kind in enumerate(config.prepare.sequence_types)
    }


def _files(work: WorkFolder, name: str) -> Iterator[Path]:
    return (work.bucket_folder(index) / name for index in range(work.plan.num_buckets))
