import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from seqdenoise.evaluation import bootstrap
from seqdenoise.evaluation.bootstrap import (
    AucResampler,
    GaucResampler,
    canonical_order,
    user_draws,
)


def impressions(seed=0, num_users=30, weighted=False):
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(num_users), rng.integers(1, 9, num_users))
    labels = rng.random(users.size) < 0.4
    scores = np.round(labels + rng.normal(0, 1.5, users.size), 1)
    weights = rng.gamma(2.0, size=users.size) if weighted else np.ones(users.size)
    return labels, scores, users, weights


def repeated_rows(counts, users):
    """Row numbers of a resample: every row of a user drawn k times appears k times."""
    return [row for row, user in enumerate(users) for _ in range(int(counts[user]))]


def loop_gauc(labels, scores, drawn_users, weights):
    top = bottom = 0.0
    for user in set(drawn_users.tolist()):
        rows = drawn_users == user
        if labels[rows].min() != labels[rows].max():
            weight = weights[rows].sum()
            top += weight * roc_auc_score(labels[rows], scores[rows], sample_weight=weights[rows])
            bottom += weight
    return top / bottom


@pytest.mark.parametrize("weighted", [False, True])
def test_a_resample_equals_repeating_the_rows(weighted):
    labels, scores, users, weights = impressions(weighted=weighted)
    counts = np.concatenate(list(user_draws(30, users.size, 20, np.random.default_rng(1))))
    auc = AucResampler(labels, scores, users, weights)(counts)
    gauc = GaucResampler(labels, scores, users, weights)(counts)
    for resample, one in enumerate(counts):
        rows = repeated_rows(one, users)
        assert len(rows) == sum(one[user] for user in users)
        np.testing.assert_allclose(
            auc[resample],
            roc_auc_score(labels[rows], scores[rows], sample_weight=weights[rows]),
            rtol=1e-12,
        )
        np.testing.assert_allclose(
            gauc[resample],
            loop_gauc(labels[rows], scores[rows], users[rows], weights[rows]),
            rtol=1e-12,
        )


def test_a_resample_of_one_class_is_undefined():
    labels = np.array([True, False, True])
    users = np.array([0, 1, 2])
    counts = np.array([[3.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    auc = AucResampler(labels, np.array([0.9, 0.1, 0.8]), users, np.ones(3))(counts)
    np.testing.assert_array_equal(auc, [np.nan, 1.0])
    gauc = GaucResampler(labels, np.array([0.9, 0.1, 0.8]), users, np.ones(3))(counts)
    np.testing.assert_array_equal(gauc, [np.nan, np.nan])


def test_draws_are_of_users_with_replacement():
    counts = np.concatenate(list(user_draws(50, 50, 4000, np.random.default_rng(0))))
    assert counts.shape == (4000, 50)
    np.testing.assert_array_equal(counts.sum(axis=1), 50)
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=5 / np.sqrt(4000))
    np.testing.assert_allclose(counts.var(), 49 / 50, rtol=0.02)  # multinomial
    assert np.abs(np.corrcoef(counts[:-1].ravel(), counts[1:].ravel())[0, 1]) < 0.01


def test_chunks_change_no_draw_and_no_statistic(monkeypatch):
    labels, scores, users, weights = impressions(num_users=200, weighted=True)
    auc = AucResampler(labels, scores, users, weights)

    def all_chunks(values):
        monkeypatch.setattr(bootstrap, "_CHUNK_VALUES", values)
        chunks = list(user_draws(200, users.size, 40, np.random.default_rng(3)))
        return [chunk.shape[0] for chunk in chunks], np.concatenate([auc(c) for c in chunks])

    sizes_of_small, small = all_chunks(1)
    sizes_of_large, large = all_chunks(7 * users.size)
    assert sizes_of_small == [1] * 40
    assert sizes_of_large == [7] * 5 + [5]
    np.testing.assert_array_equal(small, large)


def test_canonical_order_sees_contents_only():
    rng = np.random.default_rng(0)
    labels, _, users, weights = impressions(weighted=True)
    control, treatment = rng.normal(size=(2, 2, users.size))
    order, numbers = canonical_order(labels, users, weights, control, treatment)
    assert sorted(order) == list(range(users.size))
    # The same grouping of rows as before, under other numbers.
    assert len(set(zip(users[order], numbers, strict=True))) == 30

    rows = rng.permutation(users.size)
    renamed = rng.permutation(30)[users]
    moved, moved_numbers = canonical_order(
        labels[rows], renamed[rows], weights[rows], treatment[:, rows], control[:, rows]
    )
    np.testing.assert_array_equal(rows[moved], order)
    np.testing.assert_array_equal(moved_numbers, numbers)


def test_users_that_mirror_each_other_are_told_apart():
    # User 0 has in the control what user 1 has in the treatment: a hash that ignores which arm is
    # which would tie them, and the tie would be broken by their ids.
    labels = np.array([True, True, False])
    control, treatment = np.array([[0.1, 0.2, 0.5]]), np.array([[0.2, 0.1, 0.6]])
    first, _ = canonical_order(labels, np.array([0, 1, 2]), np.ones(3), control, treatment)
    renamed, _ = canonical_order(labels, np.array([1, 0, 2]), np.ones(3), control, treatment)
    np.testing.assert_array_equal(first, renamed)


def test_the_two_zeros_are_one_score():
    rng = np.random.default_rng(0)
    labels, _, users, weights = impressions()
    scores = rng.integers(0, 2, (2, users.size)).astype(float)
    order, numbers = canonical_order(labels, users, weights, scores, scores)
    signed = np.where(scores == 0, rng.choice([-0.0, 0.0], scores.shape), scores)
    other, other_numbers = canonical_order(labels, users, weights, signed, scores)
    np.testing.assert_array_equal(order, other)
    np.testing.assert_array_equal(numbers, other_numbers)
