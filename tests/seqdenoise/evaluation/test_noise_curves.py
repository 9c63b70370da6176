import numpy as np
import pytest

from seqdenoise.evaluation.bootstrap import user_draws
from seqdenoise.evaluation.compare import compare
from seqdenoise.evaluation.noise_curves import noise_curves, trapezoid_weights

LEVELS = [0.0, 0.2, 0.5]


def experiment(seed=0, *, num_users=60, num_seeds=3, gains=(0.0, 0.3, 0.6)):
    """Scores that get worse with the level, those of the treatment by less."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(num_users), rng.integers(3, 12, num_users))
    labels = rng.integers(0, 2, users.size)

    def arm(helped):
        error = rng.normal(size=(num_seeds, users.size)) + rng.normal(size=num_users)[users]
        return np.stack(
            [
                labels + (1 + 2 * level - helped * gain) * error
                for level, gain in zip(LEVELS, gains, strict=True)
            ]
        )

    return labels, users, {"control": arm(0), "new": arm(1), "newer": arm(1)}


def run(case, **options):
    labels, users, scores = case
    return noise_curves(
        labels, users, scores, LEVELS, **({"control": "control", "num_resamples": 80} | options)
    )


def auc(labels, scores):
    """The share of pairs in which the positive has the larger score."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    return np.mean([(p > n) + 0.5 * (p == n) for p in positive.tolist() for n in negative.tolist()])


def test_curves_and_area_are_those_of_the_definition():
    labels, _, scores = case = experiment(num_users=15)
    curves = run(case)
    means = {
        arm: [np.mean([auc(labels, seed) for seed in level]) for level in of_arm]
        for arm, of_arm in scores.items()
    }
    for arm, points in curves.curves.items():
        assert [point.level for point in points] == LEVELS
        np.testing.assert_allclose([point.value for point in points], means[arm], rtol=1e-12)
        np.testing.assert_allclose(
            points[1].seeds, [auc(labels, seed) for seed in scores[arm][1]], rtol=1e-12
        )
    for arm in ("new", "newer"):
        gaps = [b - a for a, b in zip(means["control"], means[arm], strict=True)]
        trapezoids = 0.2 * (gaps[0] + gaps[1]) / 2 + 0.3 * (gaps[1] + gaps[2]) / 2
        np.testing.assert_allclose(curves.areas[arm].difference, trapezoids, rtol=1e-9)
        np.testing.assert_allclose([d.difference for d in curves.differences[arm]], gaps, rtol=1e-9)
        fall = curves.falls[arm]
        falls = [means[a][0] - means[a][-1] for a in ("control", arm)]
        np.testing.assert_allclose([fall.control, fall.treatment], falls, rtol=1e-9)
        np.testing.assert_allclose(fall.difference, falls[1] - falls[0], rtol=1e-9)
    assert set(curves.areas) == set(curves.falls) == set(curves.differences) == {"new", "newer"}
    area, fall = curves.areas["new"], curves.falls["new"]
    assert (area.metric, area.larger_is_better) == ("area under AUC", True)
    assert (fall.metric, fall.larger_is_better) == ("fall of AUC", False)


def test_a_lead_at_every_level_is_an_area_and_no_fall():
    labels, users, scores = experiment()
    control = scores["control"]
    # Both arms are the same at all levels, the treatment nearer to the labels.
    same = {"control": control[[0, 0, 0]], "new": control[[0, 0, 0]] + labels}
    curves = run((labels, users, same))
    assert curves.areas["new"].outcome == "better"
    fall = curves.falls["new"]
    assert (fall.control, fall.treatment, fall.difference) == (0, 0, 0)
    assert (fall.low, fall.high, fall.outcome) == (0, 0, "cannot tell")


@pytest.mark.parametrize("noisier", [False, True])
def test_a_slower_fall_is_better_and_a_faster_one_worse(noisier):
    labels, users, scores = experiment(num_users=200)
    if noisier:
        scores = {"control": scores["new"], "new": scores["control"]}
    else:
        scores.pop("newer")
    curves = run((labels, users, scores))
    fall = curves.falls["new"]
    assert fall.control > 0
    assert fall.treatment > 0
    assert fall.outcome == ("worse" if noisier else "better")
    assert (fall.difference > 0) == noisier


def test_the_interval_of_the_fall_covers_users_and_seeds():
    """Of users by drawing them in a plain loop; of seeds by their own falls."""
    labels, users, scores = experiment(num_seeds=1, num_users=80)
    fall = run((labels, users, scores), num_resamples=600).falls["new"]
    rng = np.random.default_rng(7)
    drawn = []
    for _ in range(400):
        rows = np.concatenate([np.flatnonzero(users == user) for user in rng.integers(0, 80, 80)])
        ends = {
            arm: [auc(labels[rows], scores[arm][level, 0, rows]) for level in (0, 2)]
            for arm in ("control", "new")
        }
        drawn.append(ends["new"][0] - ends["new"][1] - ends["control"][0] + ends["control"][1])
    np.testing.assert_allclose(fall.standard_error, np.std(drawn), rtol=0.12)

    # A thousand users: what is left is nearly the seeds' spread alone.
    values = np.array([[0.9, 0.6], [0.8, 0.7], [0.9, 0.4]])  # AUC of three seeds, first and last
    copies = 1000
    rank = np.arange(copies) / copies
    both = np.tile([0, 1], copies)

    def with_auc(share):
        # A positive beats every negative with chance `share`: exact for these shares.
        out = np.zeros(2 * copies)
        out[1::2] = np.where(rank < share, 1.0, -1.0)
        return out

    new = np.stack([[with_auc(values[seed, level]) for seed in range(3)] for level in (0, 1)])
    flat = {"control": np.zeros_like(new), "new": new}
    fall = noise_curves(
        both, np.repeat(np.arange(copies), 2), flat, [0, 0.5], control="control", num_resamples=50
    ).falls["new"]
    np.testing.assert_allclose([seed.difference for seed in fall.seeds], [0.3, 0.1, 0.5])
    assert abs(fall.standard_error / (np.std([0.3, 0.1, 0.5], ddof=1) / 3**0.5) - 1) < 0.05


def test_every_level_is_compared_as_compare_does():
    labels, users, scores = experiment()
    # A treatment close to the control: the spread of the difference is far below that of either.
    control = scores["control"][1]
    new = control + 0.2 * np.random.default_rng(1).normal(size=control.shape)
    same = {"control": np.stack([control] * 3), "new": np.stack([new] * 3)}
    curves = run((labels, users, same), num_resamples=400)
    expected = compare(labels, users, control, new, num_resamples=400)["AUC"]
    for got in curves.differences["new"]:
        np.testing.assert_allclose(got.difference, expected.difference, rtol=1e-12)
        # Another numbering of the users, other draws.
        np.testing.assert_allclose(got.standard_error, expected.standard_error, rtol=0.1)
    # The same difference at all levels: the area is it times the width, and so is its interval.
    area, level = curves.areas["new"], curves.differences["new"][0]
    for part in ("difference", "low", "high", "standard_error"):
        np.testing.assert_allclose(getattr(area, part), 0.5 * getattr(level, part), rtol=1e-9)
    np.testing.assert_allclose(area.p_value, level.p_value, rtol=1e-6)


def test_the_same_users_are_drawn_at_every_level():
    """Errors that cancel over the levels leave an area that is sure, where each level is not."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(200), 2)
    labels = np.tile([0, 1], 200)
    # Within a user the positive wins or loses; the AUC of each user is 0 or 1.
    wins = np.repeat(rng.integers(0, 2, 200), 2)
    up = np.where(wins == 1, labels, 1 - labels)[np.newaxis]
    scores = {"control": np.zeros((2, 1, 400)), "new": np.stack([up, 1 - up])}
    curves = noise_curves(
        labels, users, scores, [0.0, 1.0], control="control", metric="GAUC", num_resamples=100
    )
    assert curves.differences["new"][0].standard_error > 0.02
    np.testing.assert_allclose(curves.areas["new"].standard_error, 0, atol=1e-12)


def test_intervals_of_points_cover_users_and_seeds():
    labels, users, scores = experiment(num_seeds=1)
    curves = run((labels, users, scores), metric="GAUC", num_resamples=400)
    point = curves.curves["control"][0]
    # One seed: the spread of GAUC over drawn users, by definition.
    by_user = []
    for user in range(60):
        of_user = users == user
        if len(set(labels[of_user].tolist())) == 2:
            by_user.append((of_user.sum(), auc(labels[of_user], scores["control"][0, 0, of_user])))
        else:
            by_user.append((0, 0.0))
    weight, value = np.array(by_user).T
    rng = np.random.default_rng(5)
    draws = np.concatenate(list(user_draws(60, users.size, 4000, rng)))
    drawn = (draws @ (weight * value)) / (draws @ weight)
    np.testing.assert_allclose((point.high - point.low) / 2, 2.0 * drawn.std(), rtol=0.12)
    np.testing.assert_allclose((point.high + point.low) / 2, point.value, rtol=1e-12)


def test_a_loss_is_better_below():
    labels, users, _ = experiment()
    rng = np.random.default_rng(1)
    sure = labels * 0.4 + 0.3 + rng.uniform(-0.05, 0.05, (3, 3, labels.size))
    less_sure = 0.5 + 0.5 * (sure - 0.5)
    curves = run((labels, users, {"control": less_sure, "new": sure}), metric="log loss")
    area = curves.areas["new"]
    assert not area.larger_is_better
    assert area.difference < 0
    assert area.outcome == "better"


def test_a_loss_that_rises_with_noise_falls_in_quality():
    labels, users, _ = experiment()
    rng = np.random.default_rng(1)
    sure = labels * 0.4 + 0.3 + rng.uniform(-0.05, 0.05, (3, 3, labels.size))
    noisy = 0.5 + 0.5 * (sure - 0.5)
    scores = {"control": np.stack([sure[0], sure[1], noisy[2]]), "new": sure}
    fall = run((labels, users, scores), metric="log loss").falls["new"]
    losses = [
        -np.mean([np.log(p if y else 1 - p) for s in arm for y, p in zip(labels, s, strict=True)])
        for arm in (sure[0], noisy[2])
    ]
    np.testing.assert_allclose(fall.control, losses[1] - losses[0], rtol=1e-9)
    assert fall.outcome == "better"


def test_a_row_of_weight_two_is_two_rows_and_one_of_weight_none_is_none():
    labels, users, scores = experiment()
    weights = np.random.default_rng(3).integers(0, 3, labels.size)
    weights[np.unique(users, return_index=True)[1]] = 1  # every user keeps a row
    weighted = run((labels, users, scores), weights=weights)
    repeated = np.repeat(np.arange(labels.size), weights)
    rows = {arm: of_arm[:, :, repeated] for arm, of_arm in scores.items()}
    plain = run((labels[repeated], users[repeated], rows))
    for arm in ("new", "newer"):
        for got, expected in ((weighted.falls, plain.falls), (weighted.areas, plain.areas)):
            np.testing.assert_allclose(got[arm].difference, expected[arm].difference, rtol=1e-9)
            np.testing.assert_allclose(got[arm].low, expected[arm].low, rtol=0.2)
    assert weighted.falls["new"].difference != run((labels, users, scores)).falls["new"].difference


def test_weights_of_trapezoids():
    np.testing.assert_allclose(trapezoid_weights(LEVELS), [0.1, 0.25, 0.15])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": [0.0]}, r"`levels` must be at least two that increase\. Received: \[0.0\]"),
        ({"levels": [0.0, 0.5, 0.2]}, "`levels` must be at least two that increase"),
        ({"levels": [0.0, 0.5]}, r"`scores\['control'\]` must have the shape \[2, S, N\]"),
        ({"control": "none"}, "must hold the control and at least one other arm"),
        ({"metric": "accuracy"}, "`metrics` must be of"),
        ({"num_resamples": 1}, "`num_resamples` must be at least 2. Received: 1"),
        ({"confidence": 1.0}, "`confidence` must be between"),
    ],
)
def test_what_cannot_be_is_named(changes, message):
    labels, users, scores = experiment(num_users=10)
    options = {"levels": LEVELS, "control": "control", "num_resamples": 10} | changes
    with pytest.raises(ValueError, match=message):
        noise_curves(labels, users, scores, options.pop("levels"), **options)


def test_few_users_are_noted():
    labels, users = np.array([1, 1, 0, 0, 1, 0]), np.array([0, 0, 1, 1, 2, 2])
    scores = {"control": np.ones((2, 1, 6)), "new": np.arange(12.0).reshape(2, 1, 6)}
    curves = noise_curves(labels, users, scores, [0, 0.5], control="control", num_resamples=200)
    assert "of 200 draws of the users held one class only" in curves.notes[0]
    area = curves.areas["new"]
    assert area.low < area.difference < area.high
