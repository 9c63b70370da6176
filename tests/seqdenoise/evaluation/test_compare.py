import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

from seqdenoise.evaluation.compare import compare
from seqdenoise.evaluation.verdict import to_dict


def experiment(seed=0, *, gain=0.0, num_users=150, num_seeds=3, arm_noise=0.3, seed_noise=0.3):
    """Impressions in user clusters, and scores of two arms that differ by `gain` and by luck.

    With a gain of 0 the arms are exchangeable, so the true difference is 0. An arm has errors of
    its own that all its seeds share, and errors of a single seed, among them one in its overall
    quality.
    """
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(num_users), rng.integers(2, 25, num_users))
    size = users.size
    taste = rng.normal(size=num_users)[users]
    labels = rng.random(size) < 1 / (1 + np.exp(1.2 - taste))
    signal = 0.8 * labels + 0.5 * taste + rng.normal(size=size)

    def arm(bonus):
        shared = arm_noise * (rng.normal(size=num_users)[users] + rng.normal(size=size))
        quality = bonus + 0.2 * seed_noise * rng.normal(size=(num_seeds, 1))
        return signal + shared + quality * labels + seed_noise * rng.normal(size=(num_seeds, size))

    return labels, users, arm(0.0), arm(gain)


def test_values_are_the_means_over_seeds():
    labels, users, control, treatment = experiment()
    result = compare(labels, users, control, treatment, num_resamples=10)
    assert (result.num_rows, result.num_users, result.num_seeds) == (labels.size, 150, 3)
    per_seed = [
        [roc_auc_score(labels, scores) for scores in table] for table in (control, treatment)
    ]
    auc = result["AUC"]
    np.testing.assert_allclose([auc.control, auc.treatment], np.mean(per_seed, axis=1))
    np.testing.assert_allclose([s.control for s in auc.seeds], per_seed[0])
    np.testing.assert_allclose([s.treatment for s in auc.seeds], per_seed[1])
    np.testing.assert_allclose(
        [s.difference for s in auc.seeds], np.subtract(per_seed[1], per_seed[0]), atol=1e-15
    )
    np.testing.assert_allclose(auc.difference, auc.treatment - auc.control, atol=1e-15)
    with pytest.raises(KeyError, match=r"AUC.*Received: 'ndcg'"):
        result["ndcg"]


def test_the_spread_is_that_of_a_plain_user_bootstrap():
    """The same spread as from drawing users, copying their rows and ranking them anew."""

    def rank_sum_auc(rows, scores):
        ranks, positive = rankdata(scores[rows]), labels[rows]
        count = positive.sum()
        return (ranks[positive].sum() - count * (count + 1) / 2) / (count * (~positive).sum())

    labels, users, control, treatment = experiment(num_users=60, num_seeds=2)
    result = compare(labels, users, control, treatment, num_resamples=2000)["AUC"]
    rng = np.random.default_rng(99)
    rows_of = [np.flatnonzero(users == user) for user in range(60)]
    drawn = []
    for _ in range(1000):
        rows = np.concatenate([rows_of[user] for user in rng.integers(60, size=60)])
        drawn.append(
            [
                rank_sum_auc(rows, b) - rank_sum_auc(rows, a)
                for a, b in zip(control, treatment, strict=True)
            ]
        )
    covariance = np.cov(np.array(drawn), rowvar=False) * 60 / 59
    between = np.var([s.difference for s in result.seeds], ddof=1)
    # A variance from 1000 draws is known to 4.5 %.
    np.testing.assert_allclose(result.users_variance, covariance[0, 1], rtol=0.15)
    np.testing.assert_allclose(
        result.users_variance + result.users_by_seeds_variance,
        np.trace(covariance) / 2,
        rtol=0.15,
    )
    np.testing.assert_allclose(result.standard_error**2, covariance[0, 1] + between / 2, rtol=0.15)
    # A seed's own interval: users only.
    half = (result.seeds[0].high - result.seeds[0].low) / 2
    np.testing.assert_allclose(half, 2.0 * np.sqrt(covariance[0, 0]), rtol=0.08)


def test_identical_arms_do_not_differ():
    labels, users, control, _ = experiment()
    result = compare(labels, users, control, control, num_resamples=100)
    for metric in result.metrics:
        assert metric.difference == metric.low == metric.high == metric.detectable_effect == 0
        assert metric.outcome == "cannot tell"


def test_a_large_gain_is_found_and_a_large_loss_too():
    labels, users, control, treatment = experiment(gain=1.0)
    for metric in compare(labels, users, control, treatment, num_resamples=200).metrics:
        assert metric.outcome == "better"
        assert metric.low > 0
        assert metric.users_needed is metric.seeds_needed is None
    for metric in compare(labels, users, treatment, control, num_resamples=200).metrics:
        assert metric.outcome == "worse"
        assert metric.high < 0


def test_a_small_gain_needs_more():
    labels, users, control, treatment = experiment(seed=7, gain=0.05, arm_noise=0.6, seed_noise=0.1)
    auc = compare(labels, users, control, treatment, num_resamples=200)["AUC"]
    assert auc.outcome == "cannot tell"
    assert auc.low < 0 < auc.high
    assert abs(auc.difference) < auc.detectable_effect
    assert auc.users_needed > 1
    assert auc.seeds_needed is None  # the users' luck alone is larger than the difference
    assert auc.both_needed is None

    # The factor keeps its word: with that many times the users, the effect is detectable.
    labels, users, control, treatment = experiment(
        seed=7,
        gain=0.05,
        arm_noise=0.6,
        seed_noise=0.1,
        num_users=round(150 * auc.users_needed),
    )
    more = compare(labels, users, control, treatment, num_resamples=200)["AUC"]
    np.testing.assert_allclose(more.detectable_effect, auc.difference, rtol=0.5)


def test_exchanged_arms_give_the_negated_difference_exactly():
    labels, users, control, treatment = experiment(gain=0.1)
    there = compare(labels, users, control, treatment, num_resamples=100)
    back = compare(labels, users, treatment, control, num_resamples=100)
    for one, other in zip(there.metrics, back.metrics, strict=True):
        assert other.difference == -one.difference
        assert (other.low, other.high) == (-one.high, -one.low)
        assert other.standard_error == one.standard_error
        assert (other.control, other.treatment) == (one.treatment, one.control)


@st.composite
def small_experiments(draw):
    size = draw(st.integers(6, 24))
    scores = npst.arrays(np.float64, (2, 2, size), elements=st.sampled_from([-1.0, -0.0, 0.0, 0.5]))
    labels = draw(npst.arrays(np.int8, size, elements=st.integers(0, 1)))
    users = draw(npst.arrays(np.int64, size, elements=st.integers(0, 3)))
    # Four rows that make every metric defined for most draws.
    labels[:4], users[:4] = [0, 1, 0, 1], [0, 0, 1, 1]
    control, treatment = draw(scores)
    weights = draw(npst.arrays(np.float64, size, elements=st.sampled_from([0.1, 0.7, 1.0])))
    names = draw(st.permutations(range(4)))
    rows = np.array(draw(st.permutations(range(size))))
    return labels, users, control, treatment, weights, names, rows


@given(small_experiments())
def test_rows_and_user_names_may_change_places(case):
    labels, users, control, treatment, weights, names, rows = case
    before = compare(labels, users, control, treatment, num_resamples=20, weights=weights)
    named = np.array([f"user {name}" for name in names])[users]
    after = compare(
        labels[rows],
        named[rows],
        control[:, rows],
        treatment[:, rows],
        num_resamples=20,
        weights=weights[rows],
    )
    assert after == before  # to the last bit


@pytest.mark.parametrize("kind", ["strings", "objects", "unsigned", "floats"])
def test_the_type_of_user_ids_does_not_matter(kind):
    labels, users, control, treatment = experiment()
    other = {
        "strings": np.array([f"u{user}" for user in users]),
        "objects": np.array([f"u{user}" for user in users], dtype=object),
        "unsigned": users.astype(np.uint64) + np.uint64(2**63),
        "floats": users * 0.5,
    }[kind]
    assert compare(labels, users, control, treatment, num_resamples=20) == compare(
        labels, other, control, treatment, num_resamples=20
    )


def test_weight_two_is_the_row_twice():
    labels, users, control, treatment = experiment(num_users=40)
    twice = np.random.default_rng(0).random(labels.size) < 0.5
    weighted = compare(labels, users, control, treatment, num_resamples=400, weights=1.0 + twice)
    rows = np.concatenate([np.arange(labels.size), np.flatnonzero(twice)])
    repeated = compare(
        labels[rows], users[rows], control[:, rows], treatment[:, rows], num_resamples=400
    )
    for one, other in zip(weighted.metrics, repeated.metrics, strict=True):
        np.testing.assert_allclose(one.difference, other.difference, atol=1e-13)
        # The draws differ, since the tables do.
        np.testing.assert_allclose(one.standard_error, other.standard_error, rtol=0.15)


def test_the_seed_of_the_draws():
    labels, users, control, treatment = experiment(num_users=40)

    def result(seed):
        return compare(labels, users, control, treatment, num_resamples=50, seed=seed)

    assert result(1) == result(1)
    assert result(1)["AUC"].standard_error != result(2)["AUC"].standard_error
    assert result(1)["AUC"].difference == result(2)["AUC"].difference


def test_one_seed_says_what_it_does_not_cover():
    labels, users, control, treatment = experiment(num_seeds=1)
    result = compare(labels, users, control, treatment, num_resamples=100)
    assert len(result.notes) == 1
    assert "not the spread between training seeds" in result.notes[0]
    auc = result["AUC"]
    assert auc.seeds_needed is None
    np.testing.assert_allclose([auc.low, auc.high], [auc.seeds[0].low, auc.seeds[0].high])


def test_gauc_is_left_out_where_no_user_has_both_classes():
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    users = np.arange(200)
    result = compare(labels, users, rng.random((3, 200)), rng.random((3, 200)), num_resamples=50)
    assert [metric.metric for metric in result.metrics] == ["AUC"]
    assert "GAUC is left out" in result.notes[0]


def test_undefined_draws_are_left_out_and_counted():
    labels = np.array([1, 0, 0, 0])
    users = np.array([7, 8, 9, 9])
    control = np.array([[0.5, 0.9, 0.1, 0.2]])
    treatment = np.array([[0.5, 0.4, 0.1, 0.7]])
    result = compare(labels, users, control, treatment, num_resamples=3000)
    # All 27 equally likely draws of three users.
    drawn = []
    for draw in itertools.product([[0], [1], [2, 3]], repeat=3):
        rows = [row for user in draw for row in user]
        if 0 < labels[rows].sum() < len(rows):
            one, other = (
                roc_auc_score(labels[rows], table[0, rows]) for table in (control, treatment)
            )
            drawn.append(other - one)
    assert len(drawn) == 27 - 8 - 1  # without the only positive's user, or with that user alone
    np.testing.assert_allclose(result["AUC"].users_variance, np.var(drawn) * 3 / 2, rtol=0.1)
    (note,) = (note for note in result.notes if note.startswith("AUC"))
    np.testing.assert_allclose(int(note.split()[1]) / 3000, 9 / 27, atol=0.04)


def test_result_is_plain_data():
    labels, users, control, treatment = experiment(num_users=40)
    for table in (control, control.astype(np.float32)):
        plain = to_dict(compare(labels, users, table, treatment, num_resamples=20))
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"users": np.zeros(6)}, "at least two users"),
        ({"users": np.arange(5)}, "`users` must have the shape"),
        ({"control_scores": np.zeros(6)}, r"`control_scores` must have the shape \[S, 6\]"),
        ({"control_scores": np.zeros((0, 6))}, r"`control_scores` must have the shape \[S, 6\]"),
        ({"control_scores": np.zeros((2, 6))}, "the same seeds"),
        ({"treatment_scores": np.zeros((3, 5))}, "`treatment_scores` must have the shape"),
        ({"treatment_scores": np.full((3, 6), np.nan)}, r"`treatment_scores\[0\]` must not be NaN"),
        ({"labels": np.zeros(6)}, "both classes"),
        ({"labels": np.arange(6)}, "0 or 1"),
        ({"weights": -np.ones(6)}, "`weights`"),
        ({"confidence": 95.0}, "`confidence`"),
        ({"num_resamples": 1}, "`num_resamples`"),
    ],
)
def test_bad_input_is_refused(change, message):
    arguments = {
        "labels": np.array([0, 1, 0, 1, 0, 1]),
        "users": np.array([0, 0, 1, 1, 2, 2]),
        "control_scores": np.zeros((3, 6)),
        "treatment_scores": np.zeros((3, 6)),
        "num_resamples": 10,
    } | change
    with pytest.raises(ValueError, match=rf"(?s){message}.*Received:"):
        compare(**arguments)


@pytest.mark.parametrize(("arm_noise", "seed_noise"), [(0.0, 0.5), (0.6, 0.1)])
def test_coverage_smoke(arm_noise, seed_noise):
    """Null A/Bs: users' and seeds' luck in turn dominate; 95 % intervals must cover 0.

    A true coverage of 95 % gives 88 % or less of 150 once in 1800 times. Where seeds dominate,
    leaving them out covers in 62 % (AUC), the normal quantile in 83 %: both are caught.
    """
    hits = np.zeros(2)
    repeats = 150
    for repeat in range(repeats):
        labels, users, control, treatment = experiment(
            1000 + repeat, num_users=60, arm_noise=arm_noise, seed_noise=seed_noise
        )
        result = compare(labels, users, control, treatment, num_resamples=100)
        hits += [metric.low <= 0 <= metric.high for metric in result.metrics]
    np.testing.assert_array_less(0.88, hits / repeats)
