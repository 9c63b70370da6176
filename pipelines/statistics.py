"""What the plug-in needs to know of the training data: `statistics.json`."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import RunConfig
from pipelines.log_folder import Log
from seqdenoise.data.columns import IntArray, decoded, flatten_lists, string_codes
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.lookup import Lookup
from seqdenoise.data.mutual_information import mutual_information
from seqdenoise.data.shared_rate import list_keys, shared_rates


def training_statistics(
    config: RunConfig, log: Log, *, until: int, train: Path
) -> dict[str, dict[str, Any]]:
    """What training rows say about each sequence type; nothing later is looked at.

    Args:
        config: The run.
        log: Its raw tables.
        until: Where training ends, in ticks: `prepare.split.valid_from`.
        train: The prepared training rows.

    Returns:
        For each sequence type `mutual_information`, from field to field in nats over `item` and
        `prepare.item_fields`: of the type's events before `until` and its history entries, each
        event once; and `tau_plus`, the `shared_rates` over the training rows whose sequence of that
        type, as prepared, is not empty. Rows with an empty sequence are left out because the loss
        leaves them out.

    Raises:
        DataError: The prepared rows cannot be read.
    """
    types, fields = config.prepare.sequence_types, config.prepare.item_fields
    codes = string_codes(log.events, "type", types, str(log.folder / "events.parquet"))
    codes[log.events["timestamp"].to_numpy() >= until] = -1
    event_items = log.events["item"].to_numpy()
    lookup = None
    if log.items is not None:
        lookup = Lookup(log.items, "item", fields, place=str(log.folder / "items.parquet"))
    statistics = {}
    for code, kind in enumerate(types):
        items = np.concatenate([event_items[codes == code], _history_items(log.histories, kind)])
        # Fields go with the item, so each item is looked at once, with its number of events.
        distinct, counts = np.unique(items, return_counts=True)
        columns: dict[str, Any] = {"item": distinct}
        if lookup is not None:
            rows = lookup.rows(distinct)
            columns |= {field: lookup.take(field, rows) for field in fields}
        statistics[kind] = {
            "mutual_information": mutual_information(columns, counts=counts),
            "tau_plus": _tau_plus(train, kind),
        }
    return statistics


def _history_items(histories: pa.Table | None, kind: str) -> IntArray:
    if histories is None:
        return np.empty(0, np.int64)
    of_kind = histories.filter(pc.equal(decoded(histories["type"]), kind))
    return flatten_lists(of_kind["items"])[0].to_numpy().astype(np.int64)


def _tau_plus(train: Path, kind: str) -> dict[str, float]:
    users, keys = [], []
    with ParquetSource(train) as source:
        for index in range(source.num_row_groups):
            rows = source.read_row_group(index, ["user", f"{kind}__item"])
            of_group, lengths = list_keys(rows[f"{kind}__item"], str(train))
            keys.append(of_group[lengths > 0])
            users.append(rows["user"].to_numpy()[lengths > 0])
    return shared_rates(np.concatenate(users), np.concatenate(keys))
