"""Treatments against a control within slices of the rows, corrected for their number."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from seqdenoise.evaluation import ranking
from seqdenoise.evaluation.bootstrap import user_draws
from seqdenoise.evaluation.estimates import compare_metric, outcome_of
from seqdenoise.evaluation.metrics import Metric
from seqdenoise.evaluation.multiplicity import benjamini_hochberg, holm
from seqdenoise.evaluation.ranking import Ints
from seqdenoise.evaluation.results import (
    MetricComparison,
    Multiplicity,
    Outcome,
    SliceComparison,
    SliceMetric,
    SliceValue,
)
from seqdenoise.evaluation.sample import Draws, Sample

# The spread over fewer users is itself known too badly for an interval to be worth showing.
FEWEST_USERS = 20
MOST_VALUES = 100
# A standard error from so many draws is known to 3 %.
MOST_RESAMPLES = 500
# Of the draws, how many may leave a metric undefined in a slice.
_UNDEFINED_SHARE = 0.05

_CORRECTIONS = {"holm": holm, "benjamini-hochberg": benjamini_hochberg}


def check_slices(
    slices: Mapping[str, ArrayLike], size: int
) -> dict[str, tuple[list[SliceValue], Ints]]:
    """Each slice's sorted values, and for every row the position of its value `[size]`.

    Raises:
        ValueError: Another shape, missing values or values of several kinds, or more than
            `MOST_VALUES` of them.
    """
    checked = {}
    for name, values in slices.items():
        distinct, codes = ranking.group_codes(f"slices[{name!r}]", values, size)
        if distinct.size > MOST_VALUES:
            raise ValueError(
                f"`slices[{name!r}]` must have at most {MOST_VALUES} different values. "
                f"Received: {distinct.size}"
            )
        checked[name] = (distinct.tolist(), codes)
    return checked


def check_multiplicity(multiplicity: str) -> None:
    """Raises ValueError for an unknown correction."""
    if multiplicity not in _CORRECTIONS:
        raise ValueError(
            f"`multiplicity` must be one of {list(_CORRECTIONS)}. Received: {multiplicity!r}"
        )


def compare_slices(
    sample: Sample,
    slices: Mapping[str, tuple[Sequence[SliceValue], Ints]],
    control: str,
    metrics: Sequence[Metric],
    *,
    num_resamples: int,
    confidence: float,
    seed: int,
    multiplicity: Multiplicity,
) -> tuple[dict[str, tuple[SliceComparison, ...]], list[str]]:
    """Compares every treatment with the control in every slice.

    Users are drawn as for all rows: the same draws again, at most `MOST_RESAMPLES` of them. A slice
    sees of a draw its own users.

    Args:
        sample: The rows.
        slices: By name, its values and each row's position among them, rows in the sample's order.
        control: The control's name among the sample's arms.
        metrics: The metrics.
        num_resamples: Draws of the users.
        confidence: Of the intervals.
        seed: Of the draws.
        multiplicity: The correction over all values of all slices, for each treatment and metric on
            its own.

    Returns:
        The slices by name, and notes on what was left out.
    """
    notes = []
    found: list[tuple[SliceComparison, dict[str, list[MetricComparison]]]] = []
    for name, (values, codes) in slices.items():
        parts: list[tuple[SliceValue, Sample, Ints, Draws]] = []
        small = []
        for position, value in enumerate(values):
            part, users = sample.take(codes == position)
            if part.num_users < FEWEST_USERS:
                small.append(value)
            else:
                parts.append((value, part, users, Draws(part, metrics)))
        if small:
            notes.append(f"{name}: fewer than {FEWEST_USERS} users, left out: {_listed(small)}.")
        rng = np.random.default_rng(seed)
        number = min(num_resamples, MOST_RESAMPLES)
        for counts in user_draws(sample.num_users, sample.positive.size, number, rng):
            for _, _, users, draws in parts:
                draws.add(counts[:, users])
        undefined: dict[str, list[SliceValue]] = {}
        for value, part, _, draws in parts:
            entries: dict[str, list[MetricComparison]] = {
                arm: [] for arm in part.arms if arm != control
            }
            for metric in metrics:
                compared = _compare_arms(
                    draws, metric, part.num_users, control, entries, confidence
                )
                if not compared:
                    undefined.setdefault(metric.name, []).append(value)
            found.append(
                (SliceComparison(name, value, part.positive.size, part.num_users, {}), entries)
            )
        for metric_name, where in undefined.items():
            notes.append(
                f"{name}: {metric_name} is left out where too few users define it: "
                f"{_listed(where)}."
            )
    return _corrected(found, list(slices), multiplicity, confidence), notes


def _listed(values: Sequence[SliceValue]) -> str:
    shown = ", ".join(str(value) for value in values[:10])
    return shown if len(values) <= 10 else f"{shown} and {len(values) - 10} more"


def _compare_arms(
    draws: Draws,
    metric: Metric,
    num_users: int,
    control: str,
    entries: dict[str, list[MetricComparison]],
    confidence: float,
) -> bool:
    """Adds a metric's comparison to every treatment's `entries`; False where it is not defined."""
    measured = {arm: draws.measured(metric, arm) for arm in (control, *entries)}
    resampled = {arm: draws.resampled(metric, arm) for arm in measured}
    # Whether a metric is defined depends on labels and users, which all arms share.
    defined = ~np.isnan(resampled[control]).any(axis=1)
    if np.isnan(measured[control]).any() or defined.sum() < 2:
        return False
    if defined.mean() < 1 - _UNDEFINED_SHARE:
        return False
    for arm, compared in entries.items():
        compared.append(
            compare_metric(
                metric.name,
                metric.larger_is_better,
                measured[control],
                measured[arm],
                (resampled[arm] - resampled[control])[defined],
                num_users,
                confidence,
            )
        )
    return True


def _corrected(
    found: Sequence[tuple[SliceComparison, dict[str, list[MetricComparison]]]],
    names: Sequence[str],
    multiplicity: Multiplicity,
    confidence: float,
) -> dict[str, tuple[SliceComparison, ...]]:
    """Puts in the arms, each p value corrected within its family: one treatment, one metric."""
    families: dict[tuple[str, str], list[float]] = {}
    for _, entries in found:
        for arm, compared in entries.items():
            for one in compared:
                families.setdefault((arm, one.metric), []).append(one.p_value)
    # The same walk again takes the adjusted values in the order in which they were put in.
    adjusted = {family: iter(_CORRECTIONS[multiplicity](p)) for family, p in families.items()}
    whole = [
        replace(
            place,
            arms={
                arm: tuple(
                    _slice_metric(one, float(next(adjusted[arm, one.metric])), confidence)
                    for one in compared
                )
                for arm, compared in entries.items()
            },
        )
        for place, entries in found
    ]
    return {name: tuple(place for place in whole if place.slice == name) for name in names}


def _slice_metric(one: MetricComparison, adjusted: float, confidence: float) -> SliceMetric:
    outcome: Outcome = "cannot tell"
    if adjusted < 1 - confidence:
        outcome = outcome_of(one.difference, one.larger_is_better)
    return SliceMetric(one, adjusted, outcome)
