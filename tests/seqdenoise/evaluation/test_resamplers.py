import numpy as np
import pytest

from seqdenoise.evaluation import bootstrap
from seqdenoise.evaluation.bootstrap import user_draws
from seqdenoise.evaluation.metrics import find_metrics
from seqdenoise.evaluation.probabilities import NUM_BINS, equal_mass_bins

NAMES = ["AUC", "GAUC", "log loss", "normalised entropy", "ECE", "NDCG@3", "recall@2"]


def impressions(weighted, num_users=40, seed=0):
    rng = np.random.default_rng(seed)
    users = rng.permutation(np.repeat(np.arange(num_users), rng.integers(1, 9, num_users)))
    labels = rng.random(users.size) < 0.4
    scores = np.round(np.clip(0.3 * labels + 0.7 * rng.random(users.size), 0, 1), 1)
    weights = rng.integers(0, 4, users.size).astype(float) if weighted else np.ones(users.size)
    return labels, scores, users, weights


def repeated(counts, users):
    """Row numbers of a draw, and the users in it, a user drawn twice counting as two."""
    rows, copies = [], []
    for row, user in enumerate(users):
        for copy in range(int(counts[user])):
            rows.append(row)
            copies.append(user * 1000 + copy)
    return np.array(rows), np.array(copies)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "ECE"])
def test_a_resample_equals_repeating_the_rows(name, weighted):
    labels, scores, users, weights = impressions(weighted)
    (metric,) = find_metrics([name])
    counts = np.concatenate(list(user_draws(40, users.size, 15, np.random.default_rng(1))))
    found = metric.resampler(labels, scores, users, weights)(counts)
    for value, one in zip(found, counts, strict=True):
        rows, copies = repeated(one, users)
        np.testing.assert_allclose(
            value, metric.value(labels[rows], scores[rows], copies, weights[rows]), rtol=1e-12
        )


@pytest.mark.parametrize("weighted", [False, True])
def test_a_resampled_calibration_error_keeps_the_bins(weighted):
    labels, scores, users, weights = impressions(weighted)
    (metric,) = find_metrics(["ECE"])
    counts = np.concatenate(list(user_draws(40, users.size, 15, np.random.default_rng(1))))
    found = metric.resampler(labels, scores, users, weights)(counts)
    bins = equal_mass_bins(scores, weights, NUM_BINS)
    for value, one in zip(found, counts, strict=True):
        rows, _ = repeated(one, users)
        error = sum(
            abs(np.sum((weights * (labels - scores))[rows][bins[rows] == number]))
            for number in range(NUM_BINS)
        )
        np.testing.assert_allclose(value, error / weights[rows].sum(), rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_drawing_each_user_once_gives_the_metric(name):
    labels, scores, users, weights = impressions(weighted=True)
    (metric,) = find_metrics([name])
    once = metric.resampler(labels, scores, users, weights)(np.ones((1, 40)))
    np.testing.assert_allclose(
        once, metric.value(labels, scores, users, weights), rtol=1e-12, strict=False
    )


@pytest.mark.parametrize("name", NAMES)
def test_chunks_change_no_statistic(name, monkeypatch):
    labels, scores, users, weights = impressions(weighted=True, num_users=150)
    (metric,) = find_metrics([name])
    resampler = metric.resampler(labels, scores, users, weights)
    values = []
    for chunk_values in (1, 7 * users.size):
        monkeypatch.setattr(bootstrap, "_CHUNK_VALUES", chunk_values)
        draws = user_draws(150, users.size, 20, np.random.default_rng(3))
        values.append(np.concatenate([resampler(counts) for counts in draws]))
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize(
    ("name", "defined"),
    [("log loss", [1, 1, 0]), ("ECE", [1, 1, 0]), ("normalised entropy", [0, 1, 0])]
    + [(name, [0, 1, 0]) for name in ("NDCG@3", "recall@2")],
)
def test_undefined_draws_are_nan(name, defined):
    labels = np.array([False, True, True])
    users = np.array([0, 1, 2])
    (metric,) = find_metrics([name])
    resampler = metric.resampler(labels, np.array([0.2, 0.6, 0.9]), users, np.array([1.0, 1, 0]))
    # The negative alone; both; only the user whose weight is 0.
    found = resampler(np.array([[3.0, 0, 0], [1, 1, 1], [0, 0, 3]]))
    np.testing.assert_array_equal(~np.isnan(found), np.array(defined, bool))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("AUC", "list of different names"),
        ([], "list of different names"),
        (["AUC", "AUC"], "list of different names"),
        (["auc"], "Received: 'auc'"),
        (["NDCG@0"], "Received: 'NDCG@0'"),
        (["recall@"], "Received: 'recall@'"),
    ],
)
def test_unknown_metrics_are_refused(names, message):
    with pytest.raises(ValueError, match=rf"`metrics` must.*{message}"):
        find_metrics(names)
