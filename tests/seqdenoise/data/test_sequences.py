import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seqdenoise.data import sequences
from seqdenoise.data.sequences import SequenceBuilder, build_sequences
from seqdenoise.errors import DataError

TYPES = ["click", "cart"]
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def events_table(rows):
    """rows: (user, item, type, timestamp)."""
    users, items, types, times = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "user": pa.array(users, pa.int64()),
            "item": pa.array(items, pa.int64()),
            "type": pa.array(types, pa.string()),
            "timestamp": pa.array(times, pa.int64()),
        }
    )


def impressions_table(rows):
    users, times = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"user": pa.array(users, pa.int64()), "timestamp": pa.array(times, pa.int64())})


def histories_table(rows):
    users, types, items = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "user": pa.array(users, pa.int64()),
            "type": pa.array(types, pa.string()),
            "items": pa.array(items, pa.list_(pa.int64())),
        }
    )


def expected_lists(impressions, events, histories, kind, max_length, brands):
    """The definition, one impression and one event at a time."""
    result = {"item": [], "brand": [], "timestamp": []}
    for user, now in impressions:
        seen = []
        for owner, of_type, items in histories:
            if owner == user and of_type == kind:
                seen += [(item, None) for item in items or []]
        timed = []
        for owner, item, of_type, time in events:
            if owner == user and of_type == kind and time < now:
                timed.append((item, time))
        # sorted() is stable, so equal times keep the order of the log.
        seen += sorted(timed, key=lambda entry: entry[1])
        seen = seen[-max_length:]
        result["item"].append([item for item, _ in seen])
        result["brand"].append([brands.get(item) for item, _ in seen])
        result["timestamp"].append([time for _, time in seen])
    return result


users = st.integers(0, 3) | st.just(INT64_MAX)
times = st.integers(0, 6) | st.sampled_from([INT64_MIN, -5, INT64_MAX])
items = st.integers(0, 4) | st.just(2**60 + 1)
events = st.lists(st.tuples(users, items, st.sampled_from([*TYPES, "other"]), times), max_size=25)
impressions = st.lists(st.tuples(users | st.just(-7), times), max_size=8)
histories = st.lists(
    st.tuples(users, st.sampled_from(TYPES), st.none() | st.lists(items, max_size=4)),
    max_size=5,
    unique_by=lambda row: row[:2],
)


@settings(max_examples=300, deadline=None)
@given(impressions, events, histories, st.integers(1, 5))
@example([(1, 5)], [(1, 0, "click", 5)], [], 3)  # a tie with the impression
@example([(1, 6)], [(1, 0, "click", 5), (1, 1, "click", 5), (1, 2, "click", 5)], [], 2)
@example([(1, INT64_MAX)], [(1, 0, "click", INT64_MIN), (1, 1, "click", INT64_MAX)], [], 3)
@example([(1, INT64_MIN)], [(2, 0, "click", 1)], [(1, "click", [4, 2])], 3)
@example([(1, 3)], [], [(1, "click", [1, 2, 3])], 2)
def test_equals_the_definition(impressions, events, histories, max_length):
    brands = {0: "a", 1: None, 2: "c", 2**60 + 1: "d"}
    built = build_sequences(
        impressions_table(impressions),
        events_table(events),
        types=TYPES,
        max_length=max_length,
        histories=histories_table(histories),
        items=pa.table({"item": list(brands), "brand": list(brands.values())}),
        item_fields=["brand"],
    )
    assert built.num_rows == len(impressions)
    assert built.column_names == [
        f"{kind}__{field}" for kind in TYPES for field in ("item", "brand", "timestamp")
    ]
    for kind in TYPES:
        expected = expected_lists(impressions, events, histories, kind, max_length, brands)
        for field, lists in expected.items():
            assert built[f"{kind}__{field}"].to_pylist() == lists
    assert built.schema.field("click__item").type == pa.list_(pa.int64())
    assert built.schema.field("click__timestamp").type == pa.list_(pa.int64())
    assert built.schema.field("click__brand").type == pa.list_(pa.string())


def test_ranked_times_give_the_same_as_rebased_times():
    random = np.random.default_rng(0)
    rows = [
        (int(u), int(i), "click", int(t))
        for u, i, t in random.integers(0, [20, 50, 1000], size=(2000, 3))
    ]
    shown = impressions_table(
        [(int(u), int(t)) for u, t in random.integers(0, [25, 1100], (300, 2))]
    )
    options = {"types": ["click"], "max_length": 10}
    rebased = build_sequences(shown, events_table(rows), **options)
    far = [(u, i, kind, (t - 500) * 10**15) for u, i, kind, t in rows]
    scaled = impressions_table(
        [(u, (t - 500) * 10**15) for u, t in zip(*shown.to_pydict().values(), strict=True)]
    )
    # 20 users times a span of 1e18 exceed 63 bits.
    ranked = build_sequences(scaled, events_table(far), **options)
    assert ranked["click__item"].to_pylist() == rebased["click__item"].to_pylist()


def test_a_key_that_cannot_fit_is_refused(monkeypatch):
    monkeypatch.setattr(sequences, "_KEY_LIMIT", 11)
    rows = [(user, 0, "click", time) for user, time in [(1, 5), (2, 6), (3, 7)]]
    with pytest.raises(DataError, match=r"below 2\*\*63.*Received: 3 users, 3 timestamps"):
        SequenceBuilder(events_table(rows), types=["click"], max_length=2)


def test_parts_of_the_impressions_give_the_same(monkeypatch):
    random = np.random.default_rng(1)
    rows = [
        (int(u), int(i), "click", int(t)) for u, i, t in random.integers(0, [5, 9, 99], (300, 3))
    ]
    # More rows than one gather takes.
    shown = impressions_table([(int(u), int(t)) for u, t in random.integers(0, [6, 99], (2500, 2))])
    monkeypatch.setattr(sequences, "_ENTRIES_PER_CHUNK", 1)
    builder = SequenceBuilder(events_table(rows), types=["click"], max_length=3)
    built = builder.build(shown)
    assert built["click__item"].num_chunks == 3
    parts = [builder.build(shown.slice(start, 700)) for start in range(0, 2500, 700)]
    assert built.to_pylist() == pa.concat_tables(parts).to_pylist()


def test_integer_fields_keep_every_bit_beside_nulls():
    big = 2**53 + 1
    built = build_sequences(
        impressions_table([(1, 9)]),
        events_table([(1, 10, "click", 1), (1, 11, "click", 2), (1, 12, "click", 3)]),
        types=["click"],
        max_length=5,
        items=pa.table({"item": [12, 10], "author": pa.array([None, big], pa.int64())}),
        item_fields=["author"],
    )
    assert built["click__author"].to_pylist() == [[big, None, None]]
    assert built.schema.field("click__author").type == pa.list_(pa.int64())


EVENTS = events_table([(1, 10, "click", 1)])
ITEMS = pa.table({"item": [10], "brand": ["a"]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"events": EVENTS.drop_columns(["item"])}, "events: expected one column `item`"),
        (
            {"events": EVENTS.set_column(3, "timestamp", pa.array([1.5]))},
            "events, column `timestamp`: expected integers. Received: double",
        ),
        (
            {"events": EVENTS.set_column(0, "user", pa.array([None], pa.int64()))},
            "events, column `user`: expected no nulls",
        ),
        (
            {"histories": histories_table([(1, "click", [1]), (1, "click", [2])])},
            "histories: expected one row a user and type. Received: user 1, type 'click'",
        ),
        ({"histories": histories_table([(1, "click", [1, None])])}, "histories, column `items`"),
        (
            {"items": pa.table({"item": [3, 10, 3], "brand": ["a", "b", "c"]})},
            "items, column `item`: expected every item once. Received: 3 in rows 0 and 2",
        ),
        ({"items": None}, "items: expected a table"),
        ({"item_fields": ["size"]}, "items: expected one column `size`"),
        ({"item_fields": ["item"]}, "distinct names. Received: .*click__item"),
        ({"types": ["click", "click"]}, "distinct names"),
    ],
    ids=str,
)
def test_bad_tables_are_refused_by_name(changes, message):
    arguments = {
        "events": EVENTS,
        "types": ["click"],
        "max_length": 3,
        "items": ITEMS,
        "item_fields": ["brand"],
    } | changes
    with pytest.raises(DataError, match=message):
        SequenceBuilder(arguments.pop("events"), **arguments)
