import math

import numpy as np
import pytest
from scipy import special, stats

from seqdenoise.evaluation.spread import Spread


def spread(users=1.0, users_by_seeds=0.5, between_seeds=2.0, num_users=1000, num_seeds=3):
    return Spread(
        num_users=num_users,
        num_seeds=num_seeds,
        users=users,
        users_by_seeds=users_by_seeds,
        between_seeds=between_seeds,
    )


def test_the_parts_are_found_again():
    rng = np.random.default_rng(0)
    num_users, num_seeds = 101, 4
    # A bootstrap of U users has (U - 1) / U of the variance it stands for.
    scale = math.sqrt(100 / 101)
    common = rng.normal(0, scale * 2.0, (400_000, 1))
    own = rng.normal(0, scale * 1.0, (400_000, num_seeds))
    measured = np.array([1.0, 2.0, 4.0, 5.0])
    found = Spread.estimate(measured, measured + common + own, num_users)
    np.testing.assert_allclose([found.users, found.users_by_seeds], [4.0, 1.0], rtol=0.01)
    np.testing.assert_allclose(found.between_seeds, 10 / 3)  # (4 + 1 + 1 + 4) / (4 - 1)
    np.testing.assert_allclose(found.seeds, 10 / 3 - 1.0, rtol=0.01)
    np.testing.assert_allclose(found.standard_error, math.sqrt(4.0 + 10 / 12), rtol=0.01)


def test_parts_are_never_negative():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(500, 2))
    noise[:, 1] = -noise[:, 0]
    found = Spread.estimate(np.array([1.0, 1.0]), noise, 50)
    assert found.users == 0
    assert found.users_by_seeds > 0
    assert found.seeds == 0


def test_one_part_alone_gives_the_textbook_interval():
    by_users = spread(users=4.0, users_by_seeds=0, between_seeds=0, num_users=25)
    np.testing.assert_allclose(by_users.half_width(0.95), stats.t.ppf(0.975, 24) * 2)
    by_seeds = spread(users=0, users_by_seeds=0, between_seeds=12.0, num_seeds=3)
    np.testing.assert_allclose(by_seeds.half_width(0.95), stats.t.ppf(0.975, 2) * 2)
    one_seed = spread(users=4.0, users_by_seeds=0, between_seeds=0, num_users=25, num_seeds=1)
    np.testing.assert_allclose(one_seed.half_width(0.9), stats.t.ppf(0.95, 24) * 2)


def test_nothing_varies():
    still = spread(users=0, users_by_seeds=0, between_seeds=0)
    assert still.half_width(0.95) == 0
    assert still.detectable(0.95) == 0
    assert (still.power(0.0, 0.95), still.power(1e-9, 0.95)) == (0, 1)


@pytest.mark.parametrize("num_users", [12, 1500])
def test_one_part_alone_has_the_power_of_the_t_test(num_users):
    by_users = spread(users=4.0, users_by_seeds=0, between_seeds=0, num_users=num_users)
    one_seed = spread(
        users=4.0, users_by_seeds=0, between_seeds=0, num_users=num_users, num_seeds=1
    )
    for effect in (0.0, 3.0, 7.0):
        expected = stats.nct.sf(stats.t.ppf(0.975, num_users - 1), num_users - 1, effect / 2)
        np.testing.assert_allclose(by_users.power(effect, 0.95), expected, atol=3e-4)
        assert one_seed.power(effect, 0.95) == by_users.power(effect, 0.95)
    for num_seeds in (2, 3, 6):
        by_seeds = spread(
            users=0, users_by_seeds=0, between_seeds=4.0 * num_seeds, num_seeds=num_seeds
        )
        for effect in (0.0, 3.0, 7.0, 25.0):
            expected = stats.nct.sf(stats.t.ppf(0.975, num_seeds - 1), num_seeds - 1, effect / 2)
            np.testing.assert_allclose(by_seeds.power(effect, 0.95), expected, atol=3e-4)


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("parts", [(1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 1), (1, 0.2, 4)])
def test_coverage_and_promised_power(num_seeds, parts):
    """Gaussian differences of known parts: the interval covers, the promised effect is found."""
    users, users_by_seeds, seeds = parts
    rng = np.random.default_rng(0)
    repeats, num_users = 20_000, 40
    luck = rng.normal(0, math.sqrt(users), (repeats, 1)) + rng.normal(
        0, math.sqrt(users_by_seeds + seeds), (repeats, num_seeds)
    )
    estimates = users * rng.chisquare(num_users - 1, repeats) / (num_users - 1)
    truth = spread(users, users_by_seeds, users_by_seeds + seeds, num_users, num_seeds)
    effect = truth.detectable(0.95)
    covered = found = 0
    for mean, common, between in zip(
        luck.mean(axis=1), estimates, luck.var(axis=1, ddof=1), strict=True
    ):
        reach = spread(common, users_by_seeds, between, num_users, num_seeds).half_width(0.95)
        covered += abs(mean) <= reach
        found += mean + effect > reach
    # The module's table, and two standard deviations.
    least, most = {2: (0.92, 0.97), 3: (0.94, 0.963), 5: (0.946, 0.96), 10: (0.946, 0.957)}[
        num_seeds
    ]
    assert least < covered / repeats < most
    np.testing.assert_allclose(found / repeats, 0.8, atol=0.009)  # three standard deviations


def test_the_needed_numbers_are_the_smallest_that_do():
    # Users 1, users-by-seeds 0.5, seeds 1.5; with many users and seeds 2.8 standard errors are
    # detectable.
    now = spread()
    difference = 0.9 * now.detectable(0.95)
    factor = now.users_needed(difference, 0.95)
    assert factor > 1
    assert now.with_more(factor, 3).detectable(0.95) <= difference
    assert now.with_more(factor / 1.02, 3).detectable(0.95) > difference
    seeds = now.seeds_needed(-difference, 0.95)  # the sign does not matter
    assert seeds > 3
    assert now.with_more(1.0, seeds).detectable(0.95) <= difference
    assert now.with_more(1.0, seeds - 1).detectable(0.95) > difference


def test_more_users_and_more_seeds_shrink_their_own_part():
    more = spread().with_more(4.0, 6)
    assert (more.num_users, more.num_seeds) == (4000, 6)
    np.testing.assert_allclose(more.users, 1.0 / 4)
    np.testing.assert_allclose(more.users_by_seeds, 0.5 / 4)
    np.testing.assert_allclose(more.seeds, 1.5)
    np.testing.assert_allclose(more.standard_error**2, 1 / 4 + (0.5 / 4 + 1.5) / 6)


def test_no_number_where_the_other_part_is_too_large():
    only_users = spread(users=1.0, users_by_seeds=0, between_seeds=0)
    assert only_users.seeds_needed(0.1, 0.95) is None
    # 2.8^2 / 0.1^2: two-sided 5 % and 80 % power under the normal distribution.
    np.testing.assert_allclose(only_users.users_needed(0.1, 0.95), 2.8**2 * 100, rtol=0.02)
    only_seeds = spread(users=0, users_by_seeds=0, between_seeds=1.0)
    assert only_seeds.users_needed(0.1, 0.95) is None
    np.testing.assert_allclose(only_seeds.seeds_needed(0.1, 0.95), 2.8**2 * 100, rtol=0.02)
    assert spread(num_seeds=1).seeds_needed(0.1, 0.95) is None


def test_both_where_neither_alone_is_enough():
    now = spread(users=1.0, users_by_seeds=0.0, between_seeds=1.0)
    assert now.users_needed(1.0, 0.95) is None
    assert now.seeds_needed(1.0, 0.95) is None
    factor, num_seeds = now.both_needed(1.0, 0.95)
    assert now.with_more(factor, num_seeds).detectable(0.95) <= 1.0
    products = {}
    for other in range(4, 51):
        enough = now.users_needed(1.0, 0.95, other)
        if enough is not None:
            products[other] = enough * other
    assert len(products) > 30
    assert factor * num_seeds == min(products.values())
    assert now.both_needed(0.01, 0.95) is None
    assert spread(num_seeds=1).both_needed(1.0, 0.95) is None


# Lowest and highest coverage of 95 % intervals over mixes of the parts, as in the module's text.
COVERAGE = {
    2: ((92.3, 96.6), (93.9, 97.8), (87.4, 95.1)),
    3: ((94.3, 96.0), (95.0, 97.2), (92.2, 95.0)),
    5: ((94.9, 95.6), (95.0, 96.4), (94.1, 95.0)),
    10: ((95.0, 95.3), (95.0, 95.7), (94.8, 95.0)),
}


@pytest.mark.parametrize("num_seeds", COVERAGE)
def test_the_coverage_of_three_quantiles_is_as_stated(num_seeds):
    rng = np.random.default_rng(0)
    repeats, of_users, of_seeds = 100_000, 149, num_seeds - 1
    error = rng.normal(size=repeats)
    users = rng.chisquare(of_users, repeats) / of_users
    by_users, by_seeds = (stats.t.ppf(0.975, df) for df in (of_users, of_seeds))
    covered = []
    for ratio in (0.03, 0.1, 0.2, 0.5, 1, 2, 4, 10, 30, 1000):
        from_seeds = ratio * rng.chisquare(of_seeds, repeats) / of_seeds
        total = users + from_seeds
        share = from_seeds / total
        freedom = 1 / (share**2 / of_seeds + (1 - share) ** 2 / of_users)
        quantiles = (
            by_users + share**1.5 * (by_seeds - by_users),
            by_users + share * (by_seeds - by_users),
            special.stdtrit(freedom, 0.975),
        )
        reach = np.array(quantiles) * np.sqrt(total)
        covered.append((np.abs(error) * math.sqrt(1 + ratio) <= reach).mean(axis=1))
    lowest, highest = 100 * np.min(covered, axis=0), 100 * np.max(covered, axis=0)
    stated = np.array(COVERAGE[num_seeds])
    # Rounding, and three standard deviations of a share of 95 % of the repeats.
    np.testing.assert_allclose(np.stack([lowest, highest], axis=1), stated, rtol=0, atol=0.27)
