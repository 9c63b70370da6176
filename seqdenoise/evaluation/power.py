"""What an A/B of another size would find: power curves, detectable effects, needed sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from seqdenoise.evaluation.ranking import Floats
from seqdenoise.evaluation.results import MetricComparison
from seqdenoise.evaluation.spread import POWER, Spread


@dataclass(frozen=True)
class Needed:
    """What would find a difference with 80 % power; None: no practical number would.

    Attributes:
        users: How many times the users, at as many seeds.
        seeds: How many seeds on the same users, the present ones included.
        both: Where neither alone is enough: how many times the users with how many seeds.
    """

    users: float | None
    seeds: int | None
    both: tuple[float, int] | None


def needed(spread: Spread, difference: float, confidence: float) -> Needed:
    """How many more users or seeds would settle a difference.

    Args:
        spread: Of an A/B that has been run.
        difference: The true difference to be found, not 0; its sign does not matter.
        confidence: Of the interval.

    Returns:
        The numbers.

    Example:
        >>> only_users = Spread(10_000, 3, users=1e-6, users_by_seeds=0.0, between_seeds=0.0)
        >>> more = needed(only_users, 0.0014, 0.95)  # half of the detectable effect
        >>> round(more.users, 1), more.seeds, more.both
        (4.0, None, None)
    """
    users = spread.users_needed(difference, confidence)
    seeds = spread.seeds_needed(difference, confidence)
    both = None
    if users is None and seeds is None:
        both = spread.both_needed(difference, confidence)
    return Needed(users, seeds, both)


def spread_of(metric: MetricComparison, num_users: int) -> Spread:
    """The variance parts that a comparison was made from.

    Args:
        metric: One metric of a comparison.
        num_users: The comparison's.

    Returns:
        The spread.
    """
    differences = [seed.difference for seed in metric.seeds]
    return Spread(
        num_users=num_users,
        num_seeds=len(differences),
        users=metric.users_variance,
        users_by_seeds=metric.users_by_seeds_variance,
        between_seeds=float(np.var(differences, ddof=1)) if len(differences) > 1 else 0.0,
    )


def power_curve(spread: Spread, differences: ArrayLike, confidence: float) -> Floats:
    """`Spread.power` at each true difference, of the same shape, for a plot."""
    sizes = np.asarray(differences, np.float64)
    found = [spread.power(float(size), confidence) for size in sizes.ravel()]
    return np.array(found, np.float64).reshape(sizes.shape)


def detectable_effects(
    spread: Spread,
    users: Sequence[float],
    num_seeds: Sequence[int],
    confidence: float,
    power: float = POWER,
) -> Floats:
    """The difference that A/Bs of other sizes would find.

    Args:
        spread: Of an A/B that has been run.
        users: How many times its users, each above 0.
        num_seeds: Numbers of seeds, each at least 1. Between one seed, whose interval covers users
            alone, and several nothing can be told.
        confidence: Of the interval.
        power: With which it is found.

    Returns:
        `[len(users), len(num_seeds)]`; NaN where it cannot be told.

    Example:
        >>> spread = Spread(10_000, 5, users=1e-6, users_by_seeds=0.0, between_seeds=1e-6)
        >>> detectable_effects(spread, [1, 4], [5, 20], 0.95).round(4).tolist()
        [[0.0031, 0.0029], [0.0021, 0.0015]]
    """
    found = np.full((len(users), len(num_seeds)), math.nan)
    for row, factor in enumerate(users):
        for column, number in enumerate(num_seeds):
            if (spread.num_seeds > 1) == (number > 1):
                found[row, column] = spread.with_more(factor, number).detectable(confidence, power)
    return found
