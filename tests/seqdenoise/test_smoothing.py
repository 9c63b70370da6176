import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from seqdenoise import (
    ViewEncoder,
    dimension_views,
    fit_linear_probe,
    smoothed_prediction,
)

ROWS = 4000
UNDECIDED = (0.2, 0.2, 0.2, 0.2, 0.2)


def voter(probabilities):
    """Rows that all get their class from these probabilities, each on its own."""
    edges = np.cumsum(probabilities)[:-1]

    def predict_fn(seed):
        return np.searchsorted(edges, tf.random.stateless_uniform([ROWS], seed).numpy())

    return predict_fn


def scripted(votes):
    """Gives the votes one after the other, whatever the seed."""
    votes = iter(votes)
    return lambda _: np.array(next(votes))


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("probabilities", [UNDECIDED, (0.45, 0.55), (0.05, 0.92, 0.03)])
def test_the_bound_covers_at_the_stated_rate(probabilities, confidence):
    # As many votes of either kind, so that mixing them up would show.
    classes, vote_share, bound = smoothed_prediction(
        voter(probabilities), num_votes=60, num_selection_votes=60, confidence=confidence
    )
    chosen = np.array(probabilities)[classes]
    covered = np.mean(bound <= chosen)
    assert covered >= confidence - 3 * np.sqrt(confidence * (1 - confidence) / ROWS)
    # The bound's own rate, which is above the stated one as votes are whole numbers.
    expected = 0.0
    for probability in set(probabilities):
        won = np.arange(61)
        low = np.array([exact_bound(k, 60, confidence) for k in won])
        rate = stats.binom.pmf(won, 60, probability)[low <= probability].sum()
        assert rate >= confidence
        expected += rate * np.mean(chosen == probability)
    np.testing.assert_allclose(covered, expected, atol=4 * np.sqrt(0.25 / ROWS))
    np.testing.assert_allclose(vote_share.mean(), chosen.mean(), atol=0.005)


def exact_bound(won, num_votes, confidence):
    test = stats.binomtest(won, num_votes, alternative="greater")
    return test.proportion_ci(confidence, method="exact").low


def test_votes_that_select_as_well_would_not_cover():
    # Why the two kinds of votes are separate.
    votes = np.stack([voter(UNDECIDED)(tf.constant([0, vote])) for vote in range(60)])
    won = (votes == stats.mode(votes, axis=0).mode).sum(axis=0)
    low = np.array([exact_bound(k, 60, 0.95) for k in range(61)])[won]
    assert np.mean(low <= 0.2) < 0.85
    assert won.mean() / 60 > 0.25


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_bound_is_clopper_and_pearson_s(confidence):
    # Row r gets its class in the first r of the 20 estimating votes.
    votes = [np.ones(21, int), *(np.arange(21) > vote for vote in range(20))]
    predict_fn = scripted(np.asarray(vote, int) for vote in votes)
    classes, vote_share, bound = smoothed_prediction(
        predict_fn, num_votes=20, num_selection_votes=1, confidence=confidence
    )
    np.testing.assert_array_equal(classes, 1)
    np.testing.assert_array_equal(vote_share, np.arange(21) / 20)
    expected = [exact_bound(won, 20, confidence) for won in range(21)]
    np.testing.assert_allclose(bound, expected, rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(bound[20], (1 - confidence) ** (1 / 20))


def test_the_class_is_the_one_selected_most_often_and_the_smallest_of_a_tie():
    selection = [[5, -3, 7], [5, 8, 2], [9, 8, 7], [9, -3, 2]]
    estimation = [[9, -3, 2], [9, 8, 2]]
    got = smoothed_prediction(
        scripted([*selection, *estimation]), num_votes=2, num_selection_votes=4
    )
    np.testing.assert_array_equal(got.classes, [5, -3, 2])
    np.testing.assert_array_equal(got.vote_share, [0.0, 0.5, 1.0])
    assert got.lower_bound[0] == 0.0


def test_every_vote_has_a_seed_of_its_own_and_all_come_from_one():
    def seeds(seed):
        seen = []

        def predict_fn(vote_seed):
            seen.append(tuple(np.asarray(vote_seed).tolist()))
            return np.zeros(1, int)

        smoothed_prediction(predict_fn, num_votes=40, num_selection_votes=30, seed=seed)
        return seen

    assert len(set(seeds(0))) == 70
    assert seeds(0) == seeds(0)
    assert not set(seeds(0)) & set(seeds(1))


def test_votes_over_real_masks():
    # Six ways to halve four dimensions, all as likely: every probability can be counted.
    rng = np.random.default_rng(0)
    sequence = rng.normal(size=(60, 5, 4)).astype(np.float32)
    mask = np.arange(5) < rng.integers(1, 6, size=(60, 1))
    pooled = np.stack([row[real].mean(axis=0) for row, real in zip(sequence, mask, strict=True)])
    labels = (pooled @ [1.0, -1.0, 0.5, 0.2] > 0).astype(int)
    encoder = ViewEncoder(units=6, hidden_units=12, seed=2)
    encoder.build((None, 4))
    probe = fit_linear_probe(pooled, labels, encoder=encoder)

    @tf.function
    def view(seed):
        return dimension_views(tf.constant(sequence), mask=tf.constant(mask), seed=seed)[0]

    got = smoothed_prediction(
        lambda seed: probe.predict(view(seed).numpy()), num_votes=300, num_selection_votes=100
    )

    by_mask = []
    for kept in itertools.combinations(range(4), 2):
        half = np.zeros_like(pooled)
        half[:, kept] = pooled[:, kept]
        by_mask.append(probe.predict(half))
    probability = (np.stack(by_mask) == got.classes).mean(axis=0)
    assert len(np.unique(probability)) > 2  # rows that always agree, and rows that do not
    # Four standard deviations, over all rows.
    np.testing.assert_allclose(got.vote_share, probability, atol=4 * 0.5 / np.sqrt(300))
    assert np.mean(got.lower_bound <= probability) >= 0.9
    unanimous = probability == 1
    np.testing.assert_array_equal(got.vote_share[unanimous], 1.0)
    np.testing.assert_array_equal(got.classes[unanimous], by_mask[0][unanimous])
    clear = np.abs(probability - 0.5) > 0.1
    assert (probability[clear] > 0.5).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_votes": 0}, "`num_votes` must be at least 1. Received: 0"),
        ({"num_selection_votes": 0}, "`num_selection_votes` must be at least 1. Received: 0"),
        ({"confidence": 1.0}, "`confidence` must be above 0 and below 1. Received: 1.0"),
        ({"confidence": 0.0}, "`confidence` must be above 0 and below 1. Received: 0.0"),
        ({"predict_fn": lambda _: np.zeros(3)}, r"must return int of shape \[B\].*float64"),
        ({"predict_fn": lambda _: np.zeros((3, 1), int)}, r"\[B\]. Received: .*\(3, 1\)"),
        ({"predict_fn": scripted([[1, 2], [1]])}, "as many rows at every call. Received: 2 and 1"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"predict_fn": lambda _: np.zeros(3, int), "num_selection_votes": 1, **change}
    with pytest.raises(ValueError, match=message):
        smoothed_prediction(arguments.pop("predict_fn"), **arguments)
