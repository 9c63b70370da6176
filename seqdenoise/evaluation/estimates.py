"""From a metric's values and their draws to interval, p value, outcome and what is needed."""

from collections.abc import Sequence

import numpy as np

from seqdenoise.evaluation.delong import DelongResult
from seqdenoise.evaluation.power import Needed, needed
from seqdenoise.evaluation.ranking import Floats
from seqdenoise.evaluation.results import MetricComparison, Outcome, SeedResult
from seqdenoise.evaluation.spread import POWER, Spread


def outcome_of(difference: float, larger_is_better: bool) -> Outcome:
    """What a difference that is not luck means; 0 means nothing."""
    if difference == 0:
        return "cannot tell"
    return "better" if (difference > 0) == larger_is_better else "worse"


def compare_metric(
    name: str,
    larger_is_better: bool,
    control: Floats,
    treatment: Floats,
    resampled: Floats,
    num_users: int,
    confidence: float,
    delong: Sequence[DelongResult] | None = None,
) -> MetricComparison:
    """Compares one metric of two arms.

    Args:
        name: As printed.
        larger_is_better: Whether it is.
        control: The metric per seed, `[S]`.
        treatment: The same, `[S]`.
        resampled: Differences under resampled users, `[R, S]`, R >= 2, no NaN.
        num_users: U, at least 2.
        confidence: Of the intervals.
        delong: Of each seed, `[S]`, where it is defined.

    Returns:
        The comparison.
    """
    differences = treatment - control
    difference = float(np.mean(differences))
    spread = Spread.estimate(differences, resampled, num_users)
    half_width = spread.half_width(confidence)
    low, high = difference - half_width, difference + half_width
    outcome: Outcome = "cannot tell"
    if low > 0 or high < 0:
        outcome = outcome_of(difference, larger_is_better)
    more = Needed(users=None, seeds=None, both=None)
    if outcome == "cannot tell" and difference != 0:
        more = needed(spread, difference, confidence)
    per_seed = []
    for seed, value in enumerate(differences):
        alone = Spread.estimate(differences[[seed]], resampled[:, [seed]], num_users)
        reach = alone.half_width(confidence)
        per_seed.append(
            SeedResult(
                control=float(control[seed]),
                treatment=float(treatment[seed]),
                difference=float(value),
                low=float(value) - reach,
                high=float(value) + reach,
                delong=None if delong is None else delong[seed],
            )
        )
    return MetricComparison(
        metric=name,
        larger_is_better=larger_is_better,
        control=float(np.mean(control)),
        treatment=float(np.mean(treatment)),
        difference=difference,
        low=low,
        high=high,
        standard_error=spread.standard_error,
        p_value=spread.p_value(difference),
        detectable_effect=spread.detectable(confidence, POWER),
        outcome=outcome,
        users_needed=more.users,
        seeds_needed=more.seeds,
        both_needed=more.both,
        users_variance=spread.users,
        users_by_seeds_variance=spread.users_by_seeds,
        seeds_variance=spread.seeds,
        seeds=tuple(per_seed),
    )
