import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdenoise.data.columns import flatten_lists
from seqdenoise.errors import DataError
from seqdenoise.evaluation.noise import Catalogue, plant_noise

BRANDS = {0: "a", 3: "b", 5: None, 9: "c"}
CATALOGUE = Catalogue.of_rows(
    [
        pa.table({"item": [5, 0, 9, 9], "brand": [None, "a", "c", "c"]}),
        pa.table({"item": [3, 9, 0], "brand": ["b", "c", "a"]}),
    ],
    ["brand"],
)


def prepared(histories, *, shown_at=1000, first_user=0):
    """One row a history; real items are 100 and more, times are 10 apart, `None` is unknown."""
    times = [[None if t is None else t for t in h] for h in histories]
    items = [[100 + place for place in range(len(h))] for h in histories]
    return pa.table(
        {
            "user": pa.array(first_user + np.arange(len(histories)), pa.int64()),
            "timestamp": pa.array([shown_at] * len(histories), pa.int64()),
            "click__item": pa.array(items, pa.list_(pa.int64())),
            "click__brand": pa.array([[str(i) for i in of] for of in items], pa.list_(pa.string())),
            "click__dwell": pa.array([[i / 2 for i in of] for of in items], pa.list_(pa.float64())),
            "click__timestamp": pa.array(times, pa.list_(pa.int64())),
            "click__age": pa.array(
                [[None if t is None else shown_at - t for t in h] for h in times],
                pa.list_(pa.int64()),
            ),
            "click__session": pa.array(
                [[7 - (i > 102) for i in of] for of in items], pa.list_(pa.int32())
            ),
        }
    )


def plant(rows, **options):
    return plant_noise(
        rows, CATALOGUE, **({"types": ["click"], "rate": 0.4, "max_length": 6} | options)
    )


HISTORIES = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 1000), max_size=8)).map(
        lambda parts: [None] * parts[0] + sorted(parts[1])
    ),
    max_size=5,
)


@settings(max_examples=60)
@given(HISTORIES, st.sampled_from([0.0, 0.1, 0.5, 0.9]), st.integers(1, 9), st.integers(0, 3))
def test_what_a_noisy_history_holds(histories, rate, max_length, seed):
    rows = prepared(histories)
    noisy, masks = plant(rows, rate=rate, max_length=max_length, seed=seed)
    assert noisy.schema.equals(rows.schema)
    old = rows.to_pylist()
    for row, new, planted in zip(old, noisy.to_pylist(), masks["click"].to_pylist(), strict=True):
        size, length = len(row["click__item"]), len(planted)
        # The real events are the latest ones, as they were, and in their order.
        real = [place for place in range(length) if not planted[place]]
        for name in (name for name in row if name.startswith("click__")):
            assert len(new[name]) == length
            kept = [new[name][place] for place in real]
            assert kept == row[name][size - len(kept) :]
        # As many as the rate says, give or take the rounding.
        if size == 0:
            assert length == 0
        elif length < max_length:
            assert len(real) == size
            assert abs(length - len(real) - size * rate / (1 - rate)) < 1 + 1e-9
        else:
            assert length == max_length
            assert abs(sum(planted) - min(max_length * rate, max_length)) < 1 + 1e-9
        before = size - len(real)  # old events ahead of the place
        for place in range(length):
            if not planted[place]:
                before += 1
                continue
            assert new["click__brand"][place] == BRANDS[new["click__item"][place]]
            assert new["click__dwell"][place] is None
            older = row["click__timestamp"][before - 1] if before else "none"
            newer = row["click__timestamp"][before] if before < size else "none"
            time, age = new["click__timestamp"][place], new["click__age"][place]
            session = row["click__session"][before if before < size else before - 1]
            assert new["click__session"][place] == session
            if None in (older, newer):
                assert time is None
                assert age is None
                continue
            assert age == 1000 - time
            if older == "none":
                assert time == newer
            elif newer == "none":
                assert older <= time
                assert time < 1000 or older == 1000
            else:
                assert older <= time <= newer
        times = [time for time in new["click__timestamp"] if time is not None]
        assert times == sorted(times)


def test_rate_zero_changes_nothing():
    rows = prepared([[1, 2, 3], [], [None, 5]])
    noisy, masks = plant(rows, rate=0.0)
    assert noisy.equals(rows)
    assert masks["click"].to_pylist() == [[False] * 3, [], [False] * 2]


@pytest.mark.parametrize("length", [3, 40])
def test_noise_is_the_share_asked_for_and_lies_anywhere(length):
    """Short histories grow, long ones are cut; either way the share is the rate."""
    rows = prepared([list(range(length))] * 4000)
    _, masks = plant(rows, rate=0.33, max_length=20)
    flat, lengths = flatten_lists(masks["click"])
    planted = flat.to_numpy(zero_copy_only=False)
    # The number per row is rounded at random: its standard error is below 0.5 events a row.
    mean, error = planted.mean(), 0.5 / lengths.mean() / np.sqrt(4000)
    assert abs(mean - 0.33) < 4 * error
    # By place counted from the newest.
    size = int(lengths.min())
    from_end = np.array([row[-size:] for row in masks["click"].to_pylist()]).mean(axis=0)
    np.testing.assert_allclose(from_end, mean, atol=0.05)


@pytest.mark.parametrize(
    ("draw", "chances"),
    [("uniform", [1 / 4] * 4), ("popularity", [2 / 7, 1 / 7, 1 / 7, 3 / 7])],
)
def test_items_are_drawn_with_their_chances(draw, chances):
    noisy, masks = plant(prepared([[1, 2, 3, 4]] * 4000), rate=0.5, max_length=20, draw=draw)
    items = flatten_lists(noisy["click__item"])[0].to_numpy()
    planted = flatten_lists(masks["click"])[0].to_numpy(zero_copy_only=False)
    drawn = items[planted]
    assert drawn.size == 16000
    shares = [(drawn == item).mean() for item in (0, 3, 5, 9)]
    np.testing.assert_allclose(shares, chances, atol=4 * 0.5 / np.sqrt(16000))


def test_times_are_spread_over_the_gap():
    noisy, masks = plant(prepared([[0]] * 6000, shown_at=100), rate=0.5, max_length=20)
    times = flatten_lists(noisy["click__timestamp"])[0].to_numpy()
    planted = flatten_lists(masks["click"])[0].to_numpy(zero_copy_only=False)
    ahead = planted[0::2]  # two events a row, one of them noise
    assert planted.sum() == 6000
    np.testing.assert_allclose(ahead.mean(), 0.5, atol=0.03)
    behind = times[1::2][~ahead]
    np.testing.assert_allclose(np.quantile(behind, [0.1, 0.5, 0.9]), [9.9, 49.5, 89.1], atol=3)
    assert behind.max() == 98


def test_draws_do_not_depend_on_the_batch_nor_on_the_order():
    rows = prepared([list(range(n % 7)) for n in range(50)])
    whole, masks = plant(rows)
    order = np.random.default_rng(0).permutation(50)
    for part in (order[:13], order[13:]):
        noisy, some = plant(rows.take(pa.array(part)))
        assert noisy.equals(whole.take(pa.array(part)))
        assert some["click"].to_pylist() == masks["click"].take(pa.array(part)).to_pylist()
    assert not plant(rows, seed=1)[0].equals(whole)
    # Files come in chunks.
    chunked = pa.concat_tables([rows.slice(0, 20), rows.slice(20)])
    assert plant(chunked)[0].combine_chunks().equals(whole.combine_chunks())


def test_a_page_shares_its_noise_and_users_and_times_do_not():
    rows = prepared([[1, 2, 3, 4]] * 4)
    rows = rows.set_column(0, "user", pa.array([8, 8, 8, 9]))
    rows = rows.set_column(1, "timestamp", pa.array([50, 50, 51, 50]))
    first, second, later, other = plant(rows, rate=0.7, max_length=20)[0].to_pylist()
    assert first == second
    assert first["click__item"] != later["click__item"] != other["click__item"]
    assert first["click__item"] != other["click__item"]


def test_types_have_noise_of_their_own_and_others_stay():
    rows = prepared([[1, 2, 3, 4]] * 20)
    for name in ("item", "timestamp"):
        for kind in ("view", "cart"):
            rows = rows.append_column(f"{kind}__{name}", rows[f"click__{name}"])
    noisy, masks = plant(rows, types=["click", "view"])
    assert list(masks) == ["click", "view"]
    assert noisy["cart__item"].equals(rows["cart__item"])
    assert masks["click"].to_pylist() != masks["view"].to_pylist()


def test_a_catalogue_counts_its_rows_and_keeps_the_items_fields():
    assert CATALOGUE.items.tolist() == [0, 3, 5, 9]
    assert CATALOGUE.counts.tolist() == [2, 1, 1, 3]
    assert CATALOGUE.fields["brand"].to_pylist() == list(BRANDS.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1.0}, r"`rate` must be in \[0, 1\)\. Received: 1\.0"),
        ({"rate": float("nan")}, r"`rate` must be in \[0, 1\)\. Received: nan"),
        ({"draw": "often"}, r"`draw` must be one of .*Received: 'often'"),
        ({"max_length": 0}, "`max_length` must be at least 1. Received: 0"),
        ({"seed": -1}, r"`seed` must be in .*Received: -1"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        plant(prepared([[1]]), **options)


def test_columns_that_cannot_be_are_named():
    rows = prepared([[1], [1, 2]])
    with pytest.raises(DataError, match="expected one column `cart__item`"):
        plant(rows, types=["cart"])
    short = rows.set_column(3, "click__brand", pa.array([["x"], ["y"]]))
    with pytest.raises(DataError, match=r"`click__brand`.*Received: 1 instead of 2 .* in row 1"):
        plant(short)
    flat = rows.set_column(3, "click__brand", pa.array(["x", "y"]))
    with pytest.raises(DataError, match=r"`click__brand`: expected lists\. Received: string"):
        plant(flat)
    with pytest.raises(DataError, match=r"draw noise items from\. Received: none"):
        Catalogue.of_rows([])


def test_needs_no_tensorflow():
    code = (
        "import sys, seqdenoise.evaluation.noise, seqdenoise.evaluation.noise_curves;"
        "assert 'tensorflow' not in sys.modules"
    )
    environment = {**os.environ, "SEQDENOISE_DATA_ONLY": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
