import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sequence_oracle import (
    BRANDS,
    INTEGERS,
    TYPES,
    events_table,
    expected_lists,
    histories_table,
    impressions_table,
)

from seqdenoise.data import clock, sequences
from seqdenoise.data.sequence_rules import SequenceRules
from seqdenoise.data.sequences import SequenceBuilder, build_sequences
from seqdenoise.errors import DataError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

users = st.integers(0, 3) | st.just(INT64_MAX)
near_times = st.integers(-2, 9)
times = near_times | st.sampled_from([INT64_MIN, -5, INT64_MAX])
items = st.integers(0, 3) | st.just(2**60 + 1)
kinds = st.sampled_from([*TYPES, "other"])
histories = st.lists(
    st.tuples(users, st.sampled_from(TYPES), st.none() | st.lists(items, max_size=4)),
    max_size=5,
    unique_by=lambda row: row[:2],
)
ticks = st.none() | st.integers(0, 8)
all_rules = st.builds(
    SequenceRules,
    types=st.just(TYPES),
    max_length=st.integers(1, 5),
    ties=st.sampled_from(["exclude", "include"]),
    deduplicate=st.sampled_from([None, "exact", "consecutive", "item"]),
    max_age=ticks | st.just(INT64_MAX),
    session_gap=ticks | st.just(INT64_MAX),
    item_fields=st.just(("brand",)),
    event_fields=st.just(("price", "row")),
)


def events_at(times):
    return st.lists(st.tuples(users, items, kinds, times), max_size=25)


def impressions_at(times):
    return st.lists(st.tuples(users | st.just(-7), times), max_size=8)


def check(impressions, events, histories, rules, shown=INTEGERS, logged=INTEGERS, scales=(1, 1)):
    built = build_sequences(
        impressions_table(impressions, shown),
        events_table(events, logged),
        rules,
        histories=histories_table(histories),
        items=pa.table({"item": list(BRANDS), "brand": list(BRANDS.values())}),
    )
    assert built.num_rows == len(impressions)
    assert built.column_names == [name for kind in TYPES for name in rules.columns(kind)]
    for kind in TYPES:
        expected = expected_lists(impressions, events, histories, rules, kind, *scales)
        for name in rules.columns(kind):
            lists = built[name]
            if pa.types.is_timestamp(lists.type.value_type):
                lists = pa.chunked_array([to_integers(chunk) for chunk in lists.chunks])
            assert lists.to_pylist() == expected[name.removeprefix(f"{kind}__")], name
    return built


def to_integers(lists):
    return pa.ListArray.from_arrays(lists.offsets, lists.values.view(pa.int64()))


def some_rules(max_length=3, **rules):
    return SequenceRules(types=TYPES, max_length=max_length, item_fields=("brand",), **rules)


@settings(max_examples=250, deadline=None)
@given(impressions_at(times), events_at(times), histories, all_rules)
@example([(1, 5)], [(1, 0, "click", 5)], [], some_rules())  # a tie with the impression
@example([(1, 5)], [(1, 0, "click", 5)], [], some_rules(ties="include"))
@example([(1, 6)], [(1, 0, "click", 5), (1, 1, "click", 5), (1, 2, "click", 5)], [], some_rules(2))
@example(
    [(1, INT64_MAX)], [(1, 0, "click", INT64_MIN), (1, 1, "click", INT64_MAX)], [], some_rules()
)
@example(
    [(1, INT64_MAX)],
    [(1, 0, "click", INT64_MIN), (1, 1, "click", INT64_MAX)],
    [],
    some_rules(ties="include", session_gap=INT64_MAX),
)
@example([(1, INT64_MIN)], [(2, 0, "click", 1)], [(1, "click", [4, 2])], some_rules())
@example([(1, INT64_MIN)], [(1, 0, "click", INT64_MIN)], [], some_rules(ties="include", max_age=3))
@example([(1, 3)], [], [(1, "click", [1, 2, 3])], some_rules(2))
@example([(1, 9)], [(1, 0, "click", 5)], [(1, "click", [0, 0])], some_rules(deduplicate="exact"))
def test_equals_the_definition(impressions, events, histories, rules):
    built = check(impressions, events, histories, rules)
    assert built.schema.field("click__item").type == pa.list_(pa.int64())
    assert built.schema.field("click__timestamp").type == pa.list_(pa.int64())
    assert built.schema.field("click__brand").type == pa.list_(pa.string())
    if rules.session_gap is not None:
        assert built.schema.field("click__session").type == pa.list_(pa.int32())


UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@settings(max_examples=120, deadline=None)
@given(st.data(), st.sampled_from(list(UNITS)), st.sampled_from(list(UNITS)), st.booleans())
def test_any_units_are_compared_exactly(data, event_unit, shown_unit, zoned):
    finer = max(UNITS[event_unit], UNITS[shown_unit])
    event_ticks, shown_ticks = finer // UNITS[event_unit], finer // UNITS[shown_unit]
    events = data.draw(events_at(near_times))
    # Around whole ticks of the coarser unit: there an inexact comparison errs.
    at = st.tuples(near_times, st.integers(-2, 2)).map(
        lambda pair: pair[0] * max(1, event_ticks // shown_ticks) + pair[1]
    )
    rules = data.draw(all_rules)
    rules = SequenceRules(**{**vars(rules), "age": True})
    logged = pa.timestamp(event_unit, "UTC" if zoned else None)
    shown = pa.timestamp(shown_unit, "Asia/Shanghai" if zoned else None)
    built = check(
        data.draw(impressions_at(at)),
        events,
        data.draw(histories),
        rules,
        shown,
        logged,
        (event_ticks, shown_ticks),
    )
    assert built.schema.field("click__timestamp").type == pa.list_(logged)
    assert built.schema.field("click__age").type == pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("at", "ties", "expected"),
    [
        (4999, "include", ([], [])),
        (5000, "exclude", ([], [])),
        (5000, "include", ([5], [0])),
        (5001, "exclude", ([5], [0])),
        (7000, "exclude", ([5], [0])),  # two seconds old, and a gap of two seconds
        (7001, "exclude", ([], [])),
        (7001, "include", ([], [])),
    ],
)
def test_a_millisecond_decides_between_whole_seconds(at, ties, expected):
    rules = SequenceRules(("click",), 3, ties=ties, max_age=2, session_gap=2)
    events = events_table([(1, 0, "click", 5)], pa.timestamp("s"))
    built = build_sequences(impressions_table([(1, at)], pa.timestamp("ms")), events, rules)
    times = [moment.second for moment in built["click__timestamp"][0].as_py()]
    assert (times, built["click__session"][0].as_py()) == expected


def test_a_millisecond_more_than_the_gap_starts_a_session():
    rules = SequenceRules(("click",), 3, session_gap=2)
    events = events_table([(1, 0, "click", 3), (1, 0, "click", 5)], pa.timestamp("s", "UTC"))
    shown = impressions_table([(1, 7000), (1, 7001)], pa.timestamp("ms", "UTC"))
    built = build_sequences(shown, events, rules)
    assert built["click__session"].to_pylist() == [[0, 0], [1, 1]]


@settings(max_examples=100, deadline=None)
@given(near_times, st.booleans(), events_at(near_times), histories, all_rules)
def test_what_comes_later_never_changes_a_row(now, at_once, events, histories, rules):
    """Without the events after the impression, and those at its time where ties are out."""
    drop_ties = rules.ties == "exclude" and at_once
    shown = [(user, now) for user in range(4)]
    past = [row for row in events if row[3] < now or (row[3] == now and not drop_ties)]
    rules = SequenceRules(**{**vars(rules), "age": True, "item_fields": (), "event_fields": ()})
    options = {"rules": rules, "histories": histories_table(histories)}
    whole = build_sequences(impressions_table(shown), events_table(events), **options)
    known = build_sequences(impressions_table(shown), events_table(past), **options)
    assert whole.to_pylist() == known.to_pylist()


@pytest.mark.parametrize("deduplicate", ["exact", "consecutive", "item"])
def test_long_logs_of_few_items(monkeypatch, deduplicate):
    """The latest of few items lie far apart: several looks of growing windows, in several parts."""
    monkeypatch.setattr("seqdenoise.data.duplicates._ENTRIES_PER_LOOK", 64)
    random = np.random.default_rng(3)
    # Item 3 comes often at first and never again, so only far looks find it.
    events = [
        (int(user), int(item) if time > 60 else 3, "click", int(time))
        for user, item, time in random.integers(0, [3, 3, 500], (900, 3))
    ]
    shown = [(int(user), int(time)) for user, time in random.integers(0, [4, 510], (300, 2))]
    check(shown, events, [(1, "click", [1, 2])], some_rules(4, deduplicate=deduplicate))


def test_a_user_of_many_events_of_few_items_is_not_searched_through():
    """Looking back to the first event for what is not there would take a minute here."""
    count, others = 60_000, 100  # another user's many items are none of this one's
    events = pa.table(
        {
            "user": np.repeat([-1, 0], [others, count]),
            "item": np.concatenate([10 + np.arange(others), np.arange(count) % 3]),
            "type": pa.array(["click"] * (others + count)),
            "timestamp": np.concatenate([np.arange(others), np.arange(count)]),
        }
    )
    shown = impressions_table([(0, at) for at in range(2, count, 4)])
    rules = SequenceRules(("click",), 50, deduplicate="item")
    start = time.process_time()
    built = build_sequences(shown, events, rules)
    assert time.process_time() - start < 3
    lists = built["click__timestamp"].to_pylist()
    assert lists == [list(range(max(0, at - 3), at)) for at in range(2, count, 4)]


@pytest.mark.parametrize("jitter", [0, 1])
@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_far_times_give_the_same_as_near_ones(jitter, shift):
    """Slots are whole units of 1e15 ticks without jitter, ranks with it: no two share a divisor."""

    def far(time):
        return (time - 500) * 10**15 + jitter * (time % 3)

    random = np.random.default_rng(0)
    rows = [
        (int(u), int(i), "click", int(t))
        for u, i, t in random.integers(0, [20, 50, 1000], size=(2000, 3))
    ]
    shown = [(int(u), int(t)) for u, t in random.integers(0, [25, 1100], (300, 2))]
    far_events = events_table([(u, i, kind, far(t)) for u, i, kind, t in rows])
    # A tick earlier than an event's time or later leaves no tie to decide.
    far_shown = impressions_table([(u, far(t) + shift) for u, t in shown])
    half = 5 * 10**14
    for ties in ("exclude", "include"):
        near_ties = {-1: "exclude", 0: ties, 1: "include"}[shift]
        options = {"types": ("click",), "max_length": 10}
        rules = SequenceRules(**options, ties=near_ties, max_age=300, session_gap=20)
        near = build_sequences(impressions_table(shown), events_table(rows), rules)
        # 20 users times a span of 1e18 exceed 63 bits.
        gaps = {"max_age": 300 * 10**15 + half, "session_gap": 20 * 10**15 + half}
        rules = SequenceRules(**options, ties=ties, **gaps)
        built = build_sequences(far_shown, far_events, rules)
        for name in ("click__item", "click__session"):
            assert built[name].to_pylist() == near[name].to_pylist()


def test_a_key_that_cannot_fit_is_refused(monkeypatch):
    monkeypatch.setattr(clock, "_KEY_LIMIT", 11)
    rows = [(user, 0, "click", time) for user, time in [(1, 5), (2, 6), (3, 7)]]
    with pytest.raises(DataError, match=r"below 2\*\*63.*Received: 3 users, 3 timestamps"):
        SequenceBuilder(events_table(rows), SequenceRules(types=("click",), max_length=2))


def test_parts_of_the_impressions_give_the_same(monkeypatch):
    random = np.random.default_rng(1)
    rows = [
        (int(u), int(i), "click", int(t)) for u, i, t in random.integers(0, [5, 9, 99], (300, 3))
    ]
    # More rows than one gather takes.
    shown = impressions_table([(int(u), int(t)) for u, t in random.integers(0, [6, 99], (2500, 2))])
    monkeypatch.setattr(sequences, "_ENTRIES_PER_CHUNK", 1)
    rules = SequenceRules(types=("click",), max_length=3, age=True, session_gap=4, max_age=50)
    builder = SequenceBuilder(events_table(rows), rules)
    built = builder.build(shown)
    assert built["click__item"].num_chunks == 3
    parts = [builder.build(shown.slice(start, 700)) for start in range(0, 2500, 700)]
    assert built.to_pylist() == pa.concat_tables(parts).to_pylist()


def test_integer_fields_keep_every_bit_beside_nulls():
    big = 2**53 + 1
    built = build_sequences(
        impressions_table([(1, 9)]),
        events_table([(1, 10, "click", 1), (1, 11, "click", 2), (1, 12, "click", 3)]),
        SequenceRules(types=("click",), max_length=5, item_fields=("author",)),
        items=pa.table({"item": [12, 10], "author": pa.array([None, big], pa.int64())}),
    )
    assert built["click__author"].to_pylist() == [[big, None, None]]
    assert built.schema.field("click__author").type == pa.list_(pa.int64())


def test_event_fields_of_any_type_and_chunking():
    """Dictionary codes differ between chunks; rows of other types lie between those wanted."""
    events = events_table([(1, 10, "other", 0), (1, 11, "click", 2), (1, 12, "click", 1)])
    shop = [pa.array(values).dictionary_encode() for values in (["x", "y"], ["z"])]
    events = events.append_column("shop", pa.chunked_array(shop))
    events = events.append_column("tags", pa.array([[1], None, [2, 3]]))
    rules = SequenceRules(types=("click",), max_length=5, event_fields=("shop", "tags"))
    built = build_sequences(
        impressions_table([(1, 9)]), events, rules, histories=histories_table([(1, "click", [7])])
    )
    assert built["click__shop"].to_pylist() == [[None, "z", "y"]]
    assert built["click__tags"].to_pylist() == [[None, [2, 3], None]]


def test_times_that_cannot_be_told_exactly_are_refused():
    far = [(1, 10**10)]  # seconds: the year 2286, beyond nanoseconds
    seconds, nanoseconds = pa.timestamp("s"), pa.timestamp("ns")
    rules = SequenceRules(types=("click",), max_length=2, age=True)
    builder = SequenceBuilder(events_table([(1, 0, "click", 5)], nanoseconds), rules)
    with pytest.raises(DataError, match=r"impressions, column `timestamp`: .*10000000000 s in row"):
        builder.build(impressions_table([(1, 0), *far], seconds))
    builder = SequenceBuilder(events_table([(1, 0, "click", -(10**10))], seconds), rules)
    with pytest.raises(DataError, match=r"expected ages within int64.*events from -10000000000"):
        builder.build(impressions_table([(1, 0)], nanoseconds))
    builder = SequenceBuilder(events_table([(1, 0, "click", INT64_MIN)]), rules)
    assert builder.build(impressions_table([(1, -1)]))["click__age"].to_pylist() == [[INT64_MAX]]
    with pytest.raises(DataError, match=r"expected ages within int64.*impressions up to 0"):
        builder.build(impressions_table([(1, 0)]))


@pytest.mark.parametrize(
    ("logged", "shown"),
    [
        (pa.int64(), pa.timestamp("s")),
        (pa.timestamp("s"), pa.int64()),
        (pa.timestamp("s", "UTC"), pa.timestamp("s")),
    ],
)
def test_times_of_different_kinds_are_refused(logged, shown):
    rules = SequenceRules(types=("click",), max_length=2)
    builder = SequenceBuilder(events_table([(1, 0, "click", 5)], logged), rules)
    with pytest.raises(DataError, match="impressions, column `timestamp`: expected times like"):
        builder.build(impressions_table([(1, 9)], shown))


EVENTS = events_table([(1, 10, "click", 1)])
ITEMS = pa.table({"item": [10], "brand": ["a"]})
RULES = SequenceRules(types=("click",), max_length=3, item_fields=("brand",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"events": EVENTS.drop_columns(["item"])}, "events: expected one column `item`"),
        (
            {"events": EVENTS.set_column(3, "timestamp", pa.array([1.5]))},
            "events, column `timestamp`: expected integers or timestamps. Received: double",
        ),
        (
            {"events": EVENTS.set_column(3, "timestamp", pa.array([None], pa.timestamp("s")))},
            "events, column `timestamp`: expected no nulls",
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
        (
            {"rules": SequenceRules(("click",), 3, item_fields=("size",))},
            "items: expected one column `size`",
        ),
        (
            {"rules": SequenceRules(("click",), 3, event_fields=("dwell",))},
            "events: expected one column `dwell`",
        ),
    ],
    ids=str,
)
def test_bad_tables_are_refused_by_name(changes, message):
    arguments = {"events": EVENTS, "rules": RULES, "items": ITEMS} | changes
    with pytest.raises(DataError, match=message):
        SequenceBuilder(**arguments)
