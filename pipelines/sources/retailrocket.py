"""RetailRocket (views, carts and purchases of a web shop) as a log folder.

The published files: `events.csv`, `item_properties_part1.csv`, `item_properties_part2.csv` and
`category_tree.csv`; times in milliseconds.

The log does not say what was shown. So the task is conversion: every view is an impression, and its
labels say whether the same visitor puts the same item into the cart (`is_cart`) or buys it
(`is_purchase`) later, within a horizon. Labels look at strictly later events and sequences at
strictly earlier ones; what happens at the view's own millisecond is in neither. Views whose horizon
reaches past the end of the log are left out, since nobody knows their labels; they stay events.

Items change their category over time, while a log folder knows one value an item. It is the one
last published at a moment `fields_at`, by default the first weekly snapshot, about a week after the
log begins. Views before that moment are events but no impressions, so that no row knows a value
published after it; an item without a value by then has none. A later `fields_at` knows more items
and leaves fewer impressions. The category tree carries no times and is taken to be constant. All
other properties are hashed texts and not read.
"""

import datetime
import logging
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.sources.columns import Kind
from pipelines.sources.conversions import (
    DAY,
    EVENTS,
    KEYS,
    distinct,
    followed,
    milliseconds,
    write_judged,
)
from pipelines.sources.streams import GrowingTable, csv_blocks
from seqdenoise.data.atomic import atomic_folder
from seqdenoise.data.columns import IntArray
from seqdenoise.errors import DataError

_logger = logging.getLogger(__name__)

EVENT_FILE = "events.csv"
PROPERTY_FILES = ("item_properties_part1.csv", "item_properties_part2.csv")
TREE_FILE = "category_tree.csv"
# Published name -> sequence type.
TYPES = {"view": "view", "addtocart": "cart", "transaction": "purchase"}

_HOUR_MS = 3_600_000
_EVENT_KINDS: dict[str, Kind] = {
    "timestamp": "int",
    "visitorid": "int",
    "event": "string",
    "itemid": "int",
    "transactionid": "int",
}
_PROPERTY_KINDS: dict[str, Kind] = {
    "timestamp": "int",
    "itemid": "int",
    "property": "string",
    "value": "string",
}
_IMPRESSIONS = pa.schema(
    [
        *KEYS,
        ("timestamp", pa.int64()),
        ("is_cart", pa.int8()),
        ("is_purchase", pa.int8()),
        ("hour", pa.int64()),
    ]
)


def import_retailrocket(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    horizon: datetime.timedelta = DAY,
    fields_at: datetime.datetime | None = None,
) -> dict[str, int]:
    """Turns the RetailRocket files into a log folder.

    Rows of `events.csv` equal in all columns count once. The events (2.8 million as published) and
    the category properties are held in memory; the other properties are passed over block by block.

    Args:
        source: The folder of the published files.
        folder: The log folder to write; replaced whole if it exists.
        horizon: How long after a view a cart or a purchase counts.
        fields_at: The moment at which item fields are known, with a zone; see above.

    Returns:
        `events`, `impressions`, `items`, `duplicates` (rows dropped), `views_before_fields` and
        `impressions_cut` (views whose horizon the log's end cuts).

    Raises:
        DataError: A file or column is missing, broken, empty or of another type; nothing is
            written.

    Example:
        >>> import_retailrocket("retailrocket", "build/retailrocket/log")  # doctest: +SKIP
    """
    home, window = Path(source), milliseconds(horizon)
    raw = _read_events(home / EVENT_FILE)
    rows = distinct(raw, ["timestamp", "user", "item", "type", "transaction"])
    categories = _read_categories([home / name for name in PROPERTY_FILES])
    moments = categories["timestamp"]
    at = pc.min(moments).as_py() if fields_at is None else _milliseconds_of(fields_at)
    items = _items(home, categories.filter(pc.less_equal(moments, at)), at)
    shown = _impressions(rows, window)
    known = shown.filter(pc.greater_equal(shown["timestamp"], at))
    with atomic_folder(folder) as aside:
        uncut = aside / "uncut.parquet"
        for path, table, schema in (
            (aside / "events.parquet", rows.select(EVENTS.names), EVENTS),
            (aside / "items.parquet", items, items.schema),
            (uncut, known, _IMPRESSIONS),
        ):
            with GrowingTable(path, schema) as file:
                file.add(table)
        last = pc.max(rows["timestamp"]).as_py()
        try:
            counts = write_judged(uncut, aside / "impressions.parquet", last=last, horizon=window)
        except DataError as error:
            raise DataError(f"{home / EVENT_FILE}: {error} (item fields known at {at})") from error
        uncut.unlink()
    result = {
        "events": len(rows),
        "impressions": counts["impressions"],
        "items": len(items),
        "duplicates": len(raw) - len(rows),
        "views_before_fields": len(shown) - len(known),
        "impressions_cut": counts["impressions_cut"],
    }
    _logger.info("retailrocket: %s", ", ".join(f"{value} {name}" for name, value in result.items()))
    return result


def _milliseconds_of(moment: datetime.datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError(f"expected `fields_at` with a time zone. Received: {moment}")
    return (moment - datetime.datetime.fromtimestamp(0, datetime.timezone.utc)) // (
        datetime.timedelta(milliseconds=1)
    )


def _read_events(path: Path) -> pa.Table:
    names = pa.array(list(TYPES))
    parts = []
    for line, block in csv_blocks(path, _EVENT_KINDS, optional=["transactionid"]):
        kind = pc.index_in(block["event"], names)
        if kind.null_count:
            row = pc.index(kind.is_null(), True).as_py()
            raise DataError(
                f"{path}, line {line + row}, column `event`: expected one of {list(TYPES)}. "
                f"Received: {block['event'][row].as_py()!r}"
            )
        parts.append(
            pa.table(
                {
                    "user": block["visitorid"],
                    "item": block["itemid"],
                    "type": pa.array(list(TYPES.values())).take(kind.combine_chunks()),
                    "timestamp": block["timestamp"],
                    "transaction": block["transactionid"],
                }
            )
        )
    return pa.concat_tables(parts)


def _read_categories(paths: list[Path]) -> pa.Table:
    """`item`, `timestamp`, `category` of every published category, in file order."""
    parts = []
    for path in paths:
        for line, block in csv_blocks(path, _PROPERTY_KINDS, optional=["value"]):
            is_category = pc.equal(block["property"], "categoryid")
            lines = np.flatnonzero(is_category.to_numpy()) + line
            chosen = block.filter(is_category)
            number = pc.match_substring_regex(chosen["value"], r"^\d{1,18}$").fill_null(False)
            if not pc.all(number, min_count=0).as_py():
                row = pc.index(number, False).as_py()
                raise DataError(
                    f"{path}, line {lines[row]}, column `value`: expected a category id. "
                    f"Received: {chosen['value'][row].as_py()!r}"
                )
            parts.append(
                pa.table(
                    {
                        "item": chosen["itemid"],
                        "timestamp": chosen["timestamp"],
                        "category": chosen["value"].cast(pa.int64()),
                    }
                )
            )
    categories = pa.concat_tables(parts)
    if not len(categories):
        raise DataError(
            f"{' and '.join(map(str, paths))}, column `property`: expected rows of `categoryid`. "
            "Received: none"
        )
    return categories


def _items(home: Path, known: pa.Table, at: int) -> pa.Table:
    """Each item's last category of those given, and the categories above it."""
    if not len(known):
        raise DataError(
            f"{home / PROPERTY_FILES[0]}: expected categories published by {at} (fields_at). "
            "Received: none"
        )
    item, time = known["item"].to_numpy(), known["timestamp"].to_numpy()
    order = np.lexsort((time, item))  # stable: of equal times the file's last
    last = np.append(item[order][1:] != item[order][:-1], True)
    chosen = known.take(pa.array(order[last]))
    parents = _parents(home / TREE_FILE)
    roots = {category: _root(category, parents, home / TREE_FILE) for category in parents}
    categories = chosen["category"].to_pylist()
    return pa.table(
        {
            "item": chosen["item"],
            "category": chosen["category"],
            "parent_category": pa.array([parents.get(each) for each in categories], pa.int64()),
            "root_category": pa.array([roots.get(each) for each in categories], pa.int64()),
        }
    )


def _parents(path: Path) -> dict[int, int | None]:
    parents: dict[int, int | None] = {}
    kinds: dict[str, Kind] = {"categoryid": "int", "parentid": "int"}
    for line, block in csv_blocks(path, kinds, optional=["parentid"]):
        pairs = zip(block["categoryid"].to_pylist(), block["parentid"].to_pylist(), strict=True)
        for offset, (category, parent) in enumerate(pairs):
            if category in parents:
                raise DataError(
                    f"{path}, line {line + offset}, column `categoryid`: expected each category "
                    f"once. Received: {category} again"
                )
            parents[category] = parent
    return parents


def _root(category: int, parents: dict[int, int | None], path: Path) -> int:
    seen = [category]
    while (parent := parents.get(seen[-1])) is not None:
        if parent in seen:
            raise DataError(f"{path}: expected a tree. Received: a circle, {[*seen, parent]}")
        seen.append(parent)
    return seen[-1]


def _impressions(rows: pa.Table, window: int) -> pa.Table:
    user, item, time = (_int64(rows, name) for name in ("user", "item", "timestamp"))
    labels = {}
    for label in ("cart", "purchase"):
        outcome = pc.equal(rows["type"], label).to_numpy()
        labels[f"is_{label}"] = followed(user, item, time, outcome, window)
    columns = {"user": user, "item": item, "timestamp": time, **labels}
    shown = pa.table({**columns, "hour": time // _HOUR_MS % 24})
    return shown.filter(pc.equal(rows["type"], "view"))


def _int64(rows: pa.Table, name: str) -> IntArray:
    return rows[name].to_numpy()
