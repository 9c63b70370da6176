import math

import numpy as np
import pytest
from scipy import stats

from seqdenoise.evaluation.compare import compare
from seqdenoise.evaluation.power import (
    detectable_effects,
    needed,
    power_curve,
    spread_of,
)
from seqdenoise.evaluation.spread import Spread


def spread(users=1.0, users_by_seeds=0.5, between_seeds=2.0, num_users=1000, num_seeds=3):
    return Spread(num_users, num_seeds, users, users_by_seeds, between_seeds)


@pytest.mark.parametrize("num_seeds", [2, 3, 10])
def test_power_is_the_inverse_of_the_detectable_effect(num_seeds):
    now = spread(num_seeds=num_seeds)
    for target in (0.1, 0.5, 0.8, 0.95):
        effect = now.detectable(0.9, target)
        np.testing.assert_allclose(now.power(effect, 0.9), target, rtol=1e-6)
        assert now.power(-effect, 0.9) == now.power(effect, 0.9)
    assert 0.03 < now.power(0.0, 0.9) < 0.07
    assert now.power(1e9, 0.9) == pytest.approx(1)
    assert now.detectable(0.9, 0.03) == 0


def test_a_curve_rises_on_both_sides():
    effects = np.linspace(-12, 12, 41).reshape(1, 41)
    (curve,) = power_curve(spread(), effects, 0.95)
    assert curve.shape == (41,)
    np.testing.assert_allclose(curve, curve[::-1], rtol=1e-12)
    assert (np.diff(curve[20:]) >= 0).all()
    assert curve[20] == pytest.approx(0.025, abs=0.01)
    assert curve[-1] > 0.95


def test_where_users_alone_vary_it_is_that_of_the_normal_test():
    now = spread(users=4.0, users_by_seeds=0, between_seeds=0, num_users=100_000)
    for effect in (1.0, 3.0, 6.0):
        np.testing.assert_allclose(
            now.power(effect, 0.95), stats.norm.sf(1.959964 - effect / 2), rtol=1e-3
        )


def test_the_p_value_is_where_the_interval_ends_at_0():
    for now in (spread(), spread(num_seeds=2), spread(users=0.01), spread(between_seeds=0.01)):
        for difference in (0.3, -2.0, 20.0):
            p = now.p_value(difference)
            np.testing.assert_allclose(now.half_width(1 - p), abs(difference), rtol=1e-6)


@pytest.mark.parametrize(
    ("now", "df", "error"),
    [
        (spread(users=4.0, users_by_seeds=0, between_seeds=0, num_users=25), 24, 2.0),
        (spread(users=0, users_by_seeds=0, between_seeds=12.0), 2, 2.0),
        (Spread(25, 1, 4.0, 0.0, 0.0), 24, 2.0),
    ],
)
def test_one_part_alone_gives_the_textbook_p_value(now, df, error):
    for difference in (-1.0, 5.0, 80.0):
        expected = 2 * stats.t.sf(abs(difference) / error, df)
        np.testing.assert_allclose(now.p_value(difference), expected, rtol=1e-9)
    assert now.p_value(0.0) == 1


def test_p_values_where_nothing_or_nearly_nothing_varies():
    still = spread(users=0, users_by_seeds=0, between_seeds=0)
    assert (still.p_value(0.0), still.p_value(1e-9)) == (1, 0)
    assert 0 <= spread(users=1e-12, between_seeds=1e-30).p_value(1.0) < 1e-40


def test_p_values_of_null_experiments_are_about_uniform():
    rng = np.random.default_rng(0)
    luck = rng.normal(size=(4000, 1)) + rng.normal(0, math.sqrt(2.0), (4000, 3))
    p = np.array(
        [
            spread(between_seeds=float(np.var(row, ddof=1))).p_value(float(row.mean()))
            for row in luck
        ]
    )
    for level in (0.05, 0.2, 0.5):
        assert 0.75 * level < np.mean(p < level) < 1.1 * level


def test_detectable_effects_of_other_sizes():
    now = spread(num_seeds=3)
    effects = detectable_effects(now, [0.5, 1.0, 4.0], [1, 3, 12], 0.95)
    assert effects.shape == (3, 3)
    assert np.isnan(effects[:, 0]).all()
    assert effects[1, 1] == now.detectable(0.95)
    assert effects[2, 2] == now.with_more(4.0, 12).detectable(0.95)
    assert (np.diff(effects[:, 1:], axis=0) < 0).all()
    assert (np.diff(effects[:, 1:], axis=1) < 0).all()
    one_seed = detectable_effects(Spread(1000, 1, 4.0, 0.0, 0.0), [1.0, 4.0], [1, 3], 0.95)
    np.testing.assert_allclose(one_seed, [[2.8 * 2, np.nan], [2.8, np.nan]], rtol=0.01)


def test_needed_tells_both_only_where_neither_alone_is_enough():
    alone = needed(spread(), 0.9 * spread().detectable(0.95), 0.95)
    assert alone.users > 1
    assert alone.seeds > 3
    assert alone.both is None
    now = spread(users=1.0, users_by_seeds=0.0, between_seeds=1.0)
    together = needed(now, 1.0, 0.95)
    assert (together.users, together.seeds) == (None, None)
    assert together.both == now.both_needed(1.0, 0.95)


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_the_spread_of_a_comparison(num_seeds):
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(50), 8)
    labels = rng.integers(0, 2, users.size)
    scores = labels + rng.normal(size=(2, num_seeds, users.size))
    metric = compare(labels, users, *scores, num_resamples=50)["AUC"]
    again = spread_of(metric, 50)
    assert again.standard_error == metric.standard_error
    assert again.detectable(0.95) == metric.detectable_effect
    assert again.seeds == metric.seeds_variance
    assert again.p_value(metric.difference) == metric.p_value
