"""What one bucket says of the training data, in a form that adds up over buckets."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import RunConfig
from pipelines.splits import split_bounds
from seqdenoise.data.columns import IntArray, flatten_lists, string_codes
from seqdenoise.data.shared_rate import KeyArray, count_pairs, list_keys

ITEMS, KEYS = "items.arrow", "keys.arrow"

ITEM_COUNTS = pa.schema([("type", pa.int16()), ("item", pa.int64()), ("count", pa.int64())])
KEY_COUNTS = pa.schema(
    [("type", pa.int16()), ("high", pa.uint64()), ("low", pa.uint64()), ("count", pa.int64())]
)


class BucketStatistics:
    """Counts the items of training's events, and pairs of training rows.

    Args:
        config: The run.
    """

    def __init__(self, config: RunConfig):
        self._types = config.prepare.sequence_types
        # The end of training: nothing later is looked at.
        self._until = split_bounds(config.prepare.split, config.log.time_unit)["valid_from"]
        self._items = ITEM_COUNTS.empty_table()
        self._rows: dict[str, list[tuple[IntArray, KeyArray]]] = {kind: [] for kind in self._types}

    def add_items(self, events: pa.Table, histories: pa.Table | None) -> None:
        """Counts the items of events before training's end, and of histories, by type."""
        early = events.filter(pc.less(events["timestamp"], self._until))
        codes = string_codes(early, "type", self._types, "events")
        items = early["item"].to_numpy()
        for code in range(len(self._types)):
            self._add(code, items[codes == code])
        if histories is not None:
            past_codes = string_codes(histories, "type", self._types, "histories")
            for code in range(len(self._types)):
                lists = histories["items"].filter(pa.array(past_codes == code))
                self._add(code, flatten_lists(lists)[0].cast(pa.int64()).to_numpy())

    def _add(self, code: int, items: IntArray) -> None:
        distinct, counts = np.unique(items, return_counts=True)
        columns = [np.full(len(distinct), code, np.int16), distinct, counts.astype(np.int64)]
        added = pa.table(columns, schema=ITEM_COUNTS)
        self._items = pa.concat_tables([self._items, added])

    def add_rows(self, rows: pa.Table) -> None:
        """Takes in prepared training rows.

        Rows with an empty sequence are left out because the loss leaves them out.
        """
        users = rows["user"].to_numpy()
        for kind, taken in self._rows.items():
            keys, lengths = list_keys(rows[f"{kind}__item"], kind)
            taken.append((users[lengths > 0], keys[lengths > 0]))

    def save(self, folder: Path, *, num_ranges: int) -> dict[str, Any]:
        """Writes `items.arrow` and `keys.arrow`.

        Args:
            folder: Where to.
            num_ranges: `keys.arrow` has so many record batches, each with one range of the keys,
                the same in every bucket: to be added up range by range.

        Returns:
            By type the numbers of `rows`, and of pairs `of_user` and `of_both`.
        """
        pairs, tables = {}, [KEY_COUNTS.empty_table()]
        for code, (kind, taken) in enumerate(self._rows.items()):
            users = np.concatenate([np.empty(0, np.int64), *(users for users, _ in taken)])
            keys = np.concatenate([np.empty((0, 2), np.uint64), *(keys for _, keys in taken)])
            counted = count_pairs(users, keys)
            pairs[kind] = {
                "rows": counted.rows,
                "of_user": counted.of_user,
                "of_both": counted.of_both,
            }
            code_column = np.full(len(counted.counts), code, np.int16)
            columns = [code_column, counted.keys[:, 0], counted.keys[:, 1], counted.counts]
            tables.append(pa.table(columns, schema=KEY_COUNTS))
        whole = pa.concat_tables(tables)
        high = whole["high"].to_numpy() >> np.uint64(32)
        ranges = ((high * np.uint64(num_ranges)) >> np.uint64(32)).astype(np.int64)
        ordered = whole.take(pa.array(np.argsort(ranges, kind="stable"))).combine_chunks()
        _write(folder / ITEMS, self._items, [len(self._items)])
        _write(folder / KEYS, ordered, np.bincount(ranges, minlength=num_ranges).tolist())
        return pairs


def _write(path: Path, table: pa.Table, sizes: list[int]) -> None:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    start = 0
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        for size in sizes:
            rows = table.slice(start, size).combine_chunks()
            empty = pa.RecordBatch.from_pylist([], table.schema)
            writer.write_batch((rows.to_batches() or [empty])[0])
            start += size
