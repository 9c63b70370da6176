from itertools import permutations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seqdenoise import crop_mask_reorder_views
from seqdenoise.event_edits import edited_events

EDITS = ("crop", "mask", "reorder")
SEEDS = st.integers(0, 2**31 - 1)


def draw(mask, seed=(3, 4), jit_compile=None, **options):
    def run(mask, seed):
        return edited_events(mask, seed=seed, **options)

    if jit_compile is not None:
        run = tf.function(run, jit_compile=jit_compile)
    return [left.numpy() for left in run(tf.constant(mask), tf.constant(seed))]


def possible_edits(real, left, *, crop, masked):
    """Which edits of a row's real events leave these, in plain Python and whole hundredths."""
    events = [bool(kept) for kept, is_real in zip(left, real, strict=True) if is_real]
    n, kept = len(events), sum(events)
    found = set()
    places = [place for place, is_kept in enumerate(events) if is_kept]
    contiguous = places == list(range(places[0], places[0] + kept))
    if contiguous and kept == max(1, n * crop // 100):
        found.add("crop")
    if kept == n - n * masked // 100:
        found.add("mask")
    if kept == n:
        found.add("reorder")
    return found


@given(
    hnp.arrays(bool, st.tuples(st.just(6), st.sampled_from([1, 4, 11]))),
    SEEDS,
    st.integers(1, 100),
    st.integers(0, 99),
)
def test_views_are_two_different_edits_of_exact_sizes(mask, seed, crop, masked):
    options = {"crop": crop / 100, "masked": masked / 100}
    left = draw(mask, (seed, 1), **options)
    for real, *views in zip(mask, *left, strict=True):
        if not real.any():
            assert not np.any(views)
            continue
        assert not np.any(views & ~real)
        a, b = (possible_edits(real, view, crop=crop, masked=masked) for view in views)
        assert any(x != y for x in a for y in b), (real, views)


def test_shares_that_are_whole_on_paper_are_not_rounded_down():
    # 0.29 * 100 is 28.999... in binary.
    for crop, masked in ((0.29, 0.29), (0.57, 0.57)):
        left = np.array(draw(np.ones((60, 100), bool), crop=crop, masked=masked)).sum(axis=2)
        assert set(left.ravel()) == {round(100 * crop), 100 - round(100 * masked), 100}


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_short_sequences_keep_an_event(length):
    left = draw(np.ones((200, length), bool), crop=0.1, masked=0.99)
    expected = {1, length}
    assert set(np.sum(left, axis=2).ravel()) == expected


def edits_of(left):
    """The edit of each row of ten events whose crops keep 6 and whose masks leave 7."""
    return np.array(EDITS)[np.searchsorted([6, 7, 10], left.sum(axis=1))]


def test_each_pair_of_edits_place_and_subset_is_as_likely():
    rows = 24_000
    left = draw(np.ones((rows, 10), bool))
    edits = [edits_of(view) for view in left]
    for a, b in permutations(EDITS, 2):
        share = np.mean((edits[0] == a) & (edits[1] == b))
        np.testing.assert_allclose(share, 1 / 6, atol=0.012)
    for view, edit in zip(left, edits, strict=True):
        starts = view[edit == "crop"].argmax(axis=1)
        np.testing.assert_allclose(np.bincount(starts) / len(starts), np.full(5, 0.2), atol=0.025)
        away = ~view[edit == "mask"]
        np.testing.assert_allclose(away.mean(axis=0), np.full(10, 0.3), atol=0.03)
        for i, j in ((0, 1), (2, 7), (8, 9)):
            np.testing.assert_allclose((away[:, i] & away[:, j]).mean(), 1 / 15, atol=0.02)
    # The place of a crop says nothing of the events that the other view has lost.
    both = (edits[0] == "crop") & (edits[1] == "mask")
    first = left[0][both].argmax(axis=1) == 0
    np.testing.assert_allclose((~left[1][both])[first].mean(axis=0), np.full(10, 0.3), atol=0.06)


@settings(max_examples=40)
@given(SEEDS, st.integers(0, 8), st.randoms(use_true_random=False))
def test_where_padding_lies_between_the_events_does_not_matter(seed, count, random):
    mask = np.arange(8) < count
    moved = np.sort(random.sample(range(8), count)).astype(int)
    elsewhere = np.zeros(8, bool)
    elsewhere[moved] = True
    at_front, spread = draw(mask[None], (seed, 1)), draw(elsewhere[None], (seed, 1))
    for a, b in zip(at_front, spread, strict=True):
        np.testing.assert_array_equal(a[0, :count], b[0, moved])


@settings(max_examples=25)
@given(hnp.arrays(bool, (7, 9)), SEEDS, st.integers(0, 6))
def test_a_slice_of_rows_is_drawn_as_in_the_whole_batch(mask, seed, first):
    whole = draw(mask, (seed, 1))
    part = draw(mask[first:], (seed, 1), first_row=first)
    for a, b in zip(whole, part, strict=True):
        np.testing.assert_array_equal(a[first:], b)


def test_xla_draws_as_eager():
    mask = np.random.default_rng(0).random((300, 13)) < 0.7
    np.testing.assert_array_equal(draw(mask, jit_compile=True), draw(mask))


def test_a_view_is_the_mean_of_what_is_left():
    rng = np.random.default_rng(0)
    mask = rng.random((40, 6)) < 0.7
    x = np.where(mask[:, :, None], rng.normal(size=(40, 6, 3)), np.nan)
    left = draw(mask, crop=0.5, masked=0.4)
    *views, valid = crop_mask_reorder_views(x, mask=mask, seed=(3, 4), crop=0.5, masked=0.4)
    np.testing.assert_array_equal(valid, mask.any(axis=1))
    for view, kept in zip(views, left, strict=True):
        for got, row, events in zip(view.numpy(), kept, x, strict=True):
            expected = events[row].mean(axis=0) if row.any() else np.zeros(3)
            np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": 0.0}, r"`crop` must be in \(0, 1\]. Received: 0.0"),
        ({"crop": 1.1}, r"`crop` must be in \(0, 1\]. Received: 1.1"),
        ({"masked": 1.0}, r"`masked` must be in \[0, 1\). Received: 1.0"),
        ({"masked": float("nan")}, r"`masked` must be in \[0, 1\). Received: nan"),
    ],
)
def test_shares_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        crop_mask_reorder_views(tf.ones([1, 1, 2]), mask=[[True]], seed=[0, 0], **options)
