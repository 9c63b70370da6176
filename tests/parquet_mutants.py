"""Parquet files spoilt in two hundred ways, each with what a reader has to make of it.

A mutant is a file and a verdict: its rows as Python values, or `REFUSED`. The rows come from the
table before it was written, never from reading it back. Where bytes were damaged, or a type has no
defined reading, refusing is right as well (`may_refuse`).
"""

from decimal import Decimal

import numpy as np
import parquet_damage
import parquet_mutations as by
import pyarrow as pa
import pyarrow.parquet as pq
from parquet_tables import ITEMS

REFUSED = "refused"

DAMAGE = {name: by.damaged(change) for name, change in parquet_damage.DAMAGE.items()}
DAMAGE["another value"] = by.another_value

_KEY_TYPES = {
    "user int8": by.retyped("user", pa.int8()),
    "user int32": by.retyped("user", pa.int32()),
    "user uint16": by.retyped("user", pa.uint16()),
    "user uint64": by.retyped("user", pa.uint64()),
    "user beyond int64": by.retyped("user", pa.uint64(), convert=lambda v: v + 2**63, clean=False),
    "user string": by.retyped("user", pa.string(), convert=str, clean=False),
    "user decimal": by.retyped(
        "user", pa.decimal128(12, 2), convert=Decimal, may_refuse=True, clean=False
    ),
    "user decimal256": by.retyped(
        "user", pa.decimal256(50, 0), convert=Decimal, may_refuse=True, clean=False
    ),
    "user date": by.retyped("user", pa.date32(), clean=False),
    "user time": by.retyped("user", pa.time64("us"), clean=False),
    "user duration": by.retyped("user", pa.duration("ms"), clean=False),
    "user binary": by.retyped("user", pa.binary(), convert=lambda v: bytes([v]), clean=False),
    "user struct": by.as_struct("user"),
    "user list": by.retyped("user", pa.list_(pa.int64()), convert=lambda v: [v], clean=False),
    "user dictionary": by.retyped("user", pa.dictionary(pa.int8(), pa.int64()), may_refuse=True),
    "user null type": by.null_type("user"),
    "user null": by.with_values("user", None),
    "timestamp null": by.with_values("timestamp", None, None),
    "all items null": by.all_null("item"),
    "everything null": by.everything_null,
    "no user": by.dropped("user"),
    "no timestamp": by.dropped("timestamp"),
    "User": by.renamed("user", "User"),
    "user with a space": by.renamed("user", "user "),
    "nameless": by.renamed("item", ""),
    "user twice": by.twice("user"),
    "reordered": by.reordered,
    "zero rows": by.rows(0),
    "one row": by.rows(1),
    "a slice": by.rows(15),
    "nested strangers": by.extra(
        ("a", {"b": [1], "c": {"d": None}}, None),
        ("m", [("k", 1)], pa.map_(pa.string(), pa.int64())),
        ("l", [[[1], None], []], None),
    ),
    "strangers": by.extra(
        ("x", Decimal("1.5"), None), ("y", b"\xff", None), ("z", float("nan"), None), clean=False
    ),
}
PREPARED_MUTATIONS = {
    "as it is": by.as_is,
    **_KEY_TYPES,
    "user float": by.retyped("user", pa.float64(), convert=float, clean=False),
    "user bool": by.retyped("user", pa.bool_(), convert=lambda v: v % 2 == 0, clean=False),
    "label bool": by.retyped("is_click", pa.bool_(), convert=bool),
    "price float16": by.retyped("price", pa.float16(), convert=np.float16),
    "price float64": by.retyped("price", pa.float64()),
    "price int": by.retyped("price", pa.int16(), convert=int),
    "price string": by.retyped("price", pa.string(), convert=str),
    "price decimal": by.retyped(
        "price", pa.decimal128(9, 2), convert=lambda v: Decimal(str(v)), may_refuse=True
    ),
    "price not a number": by.with_values("price", float("nan"), None),
    "price infinite": by.with_values("price", float("-inf")),
    "prices null": by.all_null("price", clean=True),
    "brand large": by.retyped("brand", pa.large_string()),
    "brand dictionary": by.retyped("brand", pa.dictionary(pa.int32(), pa.string())),
    "brand large dictionary": by.encoded("brand", pa.large_string()),
    "brand dictionaries": by.changing_dictionaries("brand"),
    "brand dictionary with null": by.dictionary_with_nulls("brand"),
    "brand null": by.with_values("brand", None, None, clean=True),
    "brand null type": by.null_type("brand"),
    "brand int": by.retyped("brand", pa.int64(), convert=len),
    "brand binary": by.retyped("brand", pa.binary(), convert=str.encode),
    "brand list": by.retyped("brand", pa.list_(pa.string()), convert=lambda v: [v], clean=False),
    "large lists": by.retyped("click__item", pa.large_list(pa.int64())),
    "large lists of int8": by.retyped("click__item", pa.large_list(pa.int8())),
    "fixed lists": by.fixed_size_lists(with_nulls=False),
    "fixed lists with nulls": by.fixed_size_lists(with_nulls=True),
    "lists of uint64": by.retyped("cart__item", pa.list_(pa.uint64())),
    "lists beyond int64": by.retyped(
        "cart__item",
        pa.list_(pa.uint64()),
        convert=by.in_lists(lambda v: v + 2**63),
        clean=False,
    ),
    "lists of floats": by.retyped(
        "click__item", pa.list_(pa.float64()), convert=by.in_lists(float), clean=False
    ),
    "lists of strings": by.retyped("cart__item", pa.list_(pa.string()), convert=by.in_lists(str)),
    "lists of dictionaries": by.retyped(
        "cart__item", pa.list_(pa.dictionary(pa.int32(), pa.string())), convert=by.in_lists(str)
    ),
    "lists of decimals": by.retyped(
        "cart__item",
        pa.list_(pa.decimal128(30, 0)),
        convert=by.in_lists(Decimal),
        may_refuse=True,
        clean=False,
    ),
    "lists of lists": by.retyped(
        "cart__item", pa.list_(ITEMS), convert=by.in_lists(lambda v: [v]), clean=False
    ),
    "lists of structs": by.retyped(
        "cart__item",
        pa.list_(pa.struct([("item", pa.int64())])),
        convert=by.in_lists(lambda v: {"item": v}),
        clean=False,
    ),
    "no lists": by.retyped("cart__item", pa.int64(), convert=len, clean=False),
    "lists of nothing": by.retyped(
        "cart__item", pa.list_(pa.null()), convert=lambda v: [], may_refuse=True, clean=False
    ),
    "null lists": by.null_lists,
    "null lists over values": by.null_lists_over_values,
    "all lists null": by.all_null("cart__item", clean=True),
    "null item in a list": by.null_elements("cart__item"),
    "null price in a list": by.null_elements("click__price"),
    "nan in a list": by.with_values("click__price", [float("nan")]),
    "infinity in a list": by.with_values("click__price", [float("inf")] * 3),
    "a shorter list": by.shorter_list,
    "a long list": by.long_list,
    "no cart": by.dropped("cart__item", clean=True),
    # Without a run file nobody misses a type; `cart_item` is not even a list a reader could want.
    "cart": by.renamed("cart__item", "cart_item"),
    "cart twice": by.twice("cart__item"),
    "stranger twice": by.extra(("s", 1, pa.int8()), ("s", "1", pa.string()), clean=False),
    "in a struct": by.in_parent_struct,
    **DAMAGE,
}
for _name, _kind, _convert in (
    ("view", "string_view", None),
    ("binary view", "binary_view", str.encode),
):
    if hasattr(pa, _kind):
        PREPARED_MUTATIONS[f"brand {_name}"] = by.retyped(
            "brand", getattr(pa, _kind)(), convert=_convert, may_refuse=True
        )
if hasattr(pa, "list_view"):
    PREPARED_MUTATIONS["list views"] = by.retyped(
        "cart__item", pa.list_view(pa.int64()), may_refuse=True, clean=False
    )
RAW_MUTATIONS = {
    **_KEY_TYPES,
    "user float": by.retyped("user", pa.float64(), convert=float, clean=False),
    "seconds": by.retyped("timestamp", pa.timestamp("s"), convert=lambda v: v // 1000),
    "milliseconds": by.retyped("timestamp", pa.timestamp("ms", "UTC")),
    "milliseconds with nulls": by.retyped(
        "timestamp", pa.timestamp("ms"), convert=lambda v: v if v % 3000 else None, clean=False
    ),
    "microseconds": by.retyped("timestamp", pa.timestamp("us"), convert=lambda v: v * 1000),
    "nanoseconds": by.retyped("timestamp", pa.timestamp("ns"), convert=lambda v: v * 10**6),
    "between milliseconds": by.retyped(
        "timestamp", pa.timestamp("us"), convert=lambda v: v * 1000 + 1, clean=True
    ),
    **DAMAGE,
}
EVENT_MUTATIONS = {
    "type dictionaries": by.changing_dictionaries("type"),
    "type dictionary with null": by.dictionary_with_nulls("type"),
    "type large": by.retyped("type", pa.large_string()),
    "type int": by.retyped("type", pa.int32(), convert=len, clean=False),
    "type binary": by.retyped("type", pa.binary(), convert=str.encode, clean=False),
    "type null": by.with_values("type", None),
    "no type": by.dropped("type"),
}
IMPRESSION_MUTATIONS = {
    "label bool": by.retyped("is_click", pa.bool_(), convert=bool),
    "label 2": by.with_values("is_click", 2, clean=True),
    "label null": by.with_values("is_click", None, clean=True),
    "label float": by.retyped("is_click", pa.float64(), convert=float),
    "weight negative": by.with_values("weight", -0.5),
    "weight nan": by.with_values("weight", float("nan")),
    "weight null": by.with_values("weight", None),
    "weight int": by.retyped("weight", pa.int64(), convert=int),
    "no label": by.dropped("is_click", clean=True),
}


def make(mutations, name, rows, schema, random):
    """The mutant of this name over the given rows, with random options of the file format."""
    arrays = [pa.array([row[f.name] for row in rows], f.type) for f in schema]
    mutant = by.Mutant(list(zip(schema.names, arrays, strict=True)))
    mutations[name](mutant, random)
    mutant.row_group_size = [1, 5, 7, 7, 1000][random.integers(0, 5)]
    options = {
        "compression": ["none", "snappy", "gzip", "brotli", "zstd", "lz4"][random.integers(0, 6)],
        "data_page_version": ["1.0", "2.0"][random.integers(0, 2)],
        "use_dictionary": bool(random.integers(0, 2)),
        "data_page_size": [64, 1 << 20][random.integers(0, 2)],
        "version": ["1.0", "2.4", "2.6"][random.integers(0, 3)] if name == "as it is" else "2.6",
        # As `prepare` writes them. Without, no reader could tell a flipped bit from a value.
        "write_page_checksum": True,
    }
    mutant.options = options | mutant.options
    return mutant


def write(mutant, path, random):
    """Writes the mutant; False where this pyarrow cannot write its types."""
    names = [name for name, _ in mutant.columns]
    table = pa.Table.from_arrays([array for _, array in mutant.columns], names)
    try:
        pq.write_table(table, path, row_group_size=mutant.row_group_size, **mutant.options)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, KeyError):
        return False
    if mutant.damage is not None:
        path.write_bytes(mutant.damage(path.read_bytes(), random))
    return True


def must_be_refused(name):
    """Whether damage of this name leaves nothing that could be read."""
    return name in parquet_damage.UNREADABLE or name == "another value"
