"""How a metric falls with the share of noise in the histories, arm by arm, and what differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from seqdenoise.evaluation.bootstrap import user_draws
from seqdenoise.evaluation.estimates import compare_metric
from seqdenoise.evaluation.metrics import Metric, find_metrics
from seqdenoise.evaluation.ranking import Floats
from seqdenoise.evaluation.results import MetricComparison
from seqdenoise.evaluation.sample import Draws, Sample
from seqdenoise.evaluation.spread import Spread


@dataclass(frozen=True)
class CurvePoint:
    """A metric of one arm at one noise level.

    Attributes:
        level: The share of noise.
        value: The metric, mean over seeds.
        low: Lower end of its interval over users and seeds.
        high: Its upper end.
        seeds: The metric of each seed.
    """

    level: float
    value: float
    low: float
    high: float
    seeds: tuple[float, ...]


@dataclass(frozen=True)
class NoiseCurves:
    """A metric against the share of noise.

    Attributes:
        metric: Its name.
        control: The arm that the others are compared with.
        levels: Shares of noise, increasing.
        curves: By arm, the control included, a point a level.
        differences: By treatment, its comparison with the control at each level.
        areas: By treatment, the comparison of the areas under the curves: `difference` is the area
            between treatment and control. Over a range of levels of width `w`, it is `w` times the
            mean difference. A lead at every level is an area, even where both fall alike.
        falls: By treatment, the comparison of the falls: how much worse an arm's metric is at the
            highest level than at the lowest. Smaller is better; a lead without noise is not in it.
        confidence: Of all intervals.
        num_resamples: Draws of the users.
        notes: What a reader has to know beside the numbers.
    """

    metric: str
    control: str
    levels: tuple[float, ...]
    curves: dict[str, tuple[CurvePoint, ...]]
    differences: dict[str, tuple[MetricComparison, ...]]
    areas: dict[str, MetricComparison]
    falls: dict[str, MetricComparison]
    confidence: float
    num_resamples: int
    notes: tuple[str, ...]


def noise_curves(
    labels: ArrayLike,
    users: ArrayLike,
    scores: Mapping[str, ArrayLike],
    levels: Sequence[float],
    *,
    control: str,
    metric: str = "AUC",
    weights: ArrayLike | None = None,
    num_resamples: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
) -> NoiseCurves:
    """Draws the curves of several arms, with intervals, the areas between them and their falls.

    Users are drawn with replacement, the same draw for all arms, seeds and levels, so that what a
    user does to both curves, or to both ends of one, cancels. Intervals are those of `compare`.

    Args:
        labels: 0/1 or bool `[N]`.
        users: Ids `[N]`.
        scores: By arm, `[K, S, N]`: for each level, one row a seed, the same seeds in the same
            order.
        levels: Shares of noise `[K]`, at least two, increasing.
        control: The arm that the others are compared with.
        metric: A name as `find_metrics` takes it.
        weights: Optional row weights `[N]`, not negative.
        num_resamples: Draws of the users, at least 2.
        confidence: Of the intervals, between 0.5 and 1, both excluded.
        seed: Of the draws.

    Returns:
        The curves. The area is that of the trapezoids between the levels.

    Raises:
        ValueError: No treatment, levels that do not increase, wrong shapes or values as in
            `compare`, or a metric that is not defined.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> users, labels = np.repeat(np.arange(100), 8), rng.integers(0, 2, 800)
        >>> error = rng.normal(size=(2, 800))
        >>> curves = noise_curves(
        ...     labels, users, {"now": [labels + error, labels + 4 * error],
        ...                     "new": [labels + error, labels + 2 * error]},
        ...     [0, 0.5], control="now", num_resamples=100)
        >>> curves.areas["new"].outcome, curves.differences["new"][0].difference
        ('better', 0.0)
        >>> fall = curves.falls["new"]
        >>> fall.outcome, fall.treatment < fall.control
        ('better', True)
    """
    shares = _check_levels(levels)
    if control not in scores or len(scores) < 2:
        raise ValueError(
            "`scores` must hold the control and at least one other arm. "
            f"Received: control={control!r}, arms {list(scores)}"
        )
    if num_resamples < 2:
        raise ValueError(f"`num_resamples` must be at least 2. Received: {num_resamples}")
    if not 0.5 < confidence < 1:
        raise ValueError(f"`confidence` must be between 0.5 and 1. Received: {confidence}")
    (asked,) = find_metrics([metric])
    tables, names = {}, {}
    for arm, of_arm in scores.items():
        by_level = np.asarray(of_arm)
        if by_level.ndim != 3 or by_level.shape[0] != shares.size:
            raise ValueError(
                f"`scores[{arm!r}]` must have the shape [{shares.size}, S, N], a table a level. "
                f"Received: shape={by_level.shape}"
            )
        for position in range(shares.size):
            tables[_key(arm, position)] = by_level[position]
            names[_key(arm, position)] = f"scores[{arm!r}][{position}]"
    sample, _ = Sample.check(labels, users, tables, weights, names)
    values, resampled, notes = _measure(
        sample, asked, list(scores), shares.size, num_resamples, seed
    )

    def compared(
        name: str, weighting: Floats, treatment: str, larger_is_better: bool
    ) -> MetricComparison:
        before, after = (np.tensordot(weighting, values[a], 1) for a in (control, treatment))
        draws = np.tensordot(weighting, resampled[treatment] - resampled[control], 1)
        return compare_metric(
            name, larger_is_better, before, after, draws, sample.num_users, confidence
        )

    treatments = [arm for arm in scores if arm != control]
    one_level = np.eye(shares.size)
    better = asked.larger_is_better
    # First level less last, or the other way round: above zero where the metric gets worse.
    fall = (one_level[0] - one_level[-1]) * (1 if better else -1)
    return NoiseCurves(
        metric=metric,
        control=control,
        levels=tuple(shares.tolist()),
        curves={
            arm: _points(shares, values[arm], resampled[arm], sample.num_users, confidence)
            for arm in scores
        },
        differences={
            arm: tuple(compared(metric, row, arm, better) for row in one_level)
            for arm in treatments
        },
        areas={
            arm: compared(f"area under {metric}", trapezoid_weights(shares), arm, better)
            for arm in treatments
        },
        falls={
            arm: compared(f"fall of {metric}", fall, arm, larger_is_better=False)
            for arm in treatments
        },
        confidence=float(confidence),
        num_resamples=num_resamples,
        notes=tuple(notes),
    )


def trapezoid_weights(levels: ArrayLike) -> Floats:
    """What each point of a curve counts for in the area under it.

    Args:
        levels: `[K]`, increasing.

    Returns:
        float64 `[K]`, which sum to the width of the range.

    Example:
        >>> trapezoid_weights([0, 0.25, 1])
        array([0.125, 0.5  , 0.375])
    """
    widths = np.diff(np.asarray(levels, np.float64))
    return (np.append(widths, 0) + np.append(0, widths)) / 2


def _check_levels(levels: Sequence[float]) -> Floats:
    shares = np.asarray(levels, np.float64)
    if shares.ndim != 1 or shares.size < 2 or not (np.diff(shares) > 0).all():
        raise ValueError(f"`levels` must be at least two that increase. Received: {levels!r}")
    return shares


def _key(arm: str, position: int) -> str:
    return f"{position} {arm}"


def _measure(
    sample: Sample,
    metric: Metric,
    arms: Sequence[str],
    num_levels: int,
    num_resamples: int,
    seed: int,
) -> tuple[dict[str, Floats], dict[str, Floats], list[str]]:
    """By arm the metric `[K, S]` and the same under resampled users `[K, R, S]`; and notes."""
    draws = Draws(sample, [metric])
    rng = np.random.default_rng(seed)
    for counts in user_draws(sample.num_users, sample.positive.size, num_resamples, rng):
        draws.add(counts)
    values, resampled = {}, {}
    for arm in arms:
        keys = [_key(arm, position) for position in range(num_levels)]
        values[arm] = np.stack([sample.values(metric, key) for key in keys])
        resampled[arm] = np.stack([draws.resampled(metric, key) for key in keys])
    # Whether a draw defines a metric depends on labels and users, which all share.
    defined = ~np.isnan(resampled[arms[0]]).any(axis=(0, 2))
    if np.isnan(values[arms[0]]).any() or defined.sum() < 2:
        raise ValueError(
            f"expected rows that define the {metric.name} in nearly every draw of the users. "
            f"Received: {sample.num_users} users, {int(defined.sum())} such draws"
        )
    notes = []
    if not defined.all():
        notes.append(
            f"{metric.name}: {int((~defined).sum())} of {num_resamples} draws of the users held "
            "one class only and are left out; there are very few users."
        )
    return values, {arm: table[:, defined] for arm, table in resampled.items()}, notes


def _points(
    levels: Floats, values: Floats, resampled: Floats, num_users: int, confidence: float
) -> tuple[CurvePoint, ...]:
    points = []
    for level, of_seeds, draws in zip(levels.tolist(), values, resampled, strict=True):
        half_width = Spread.estimate(of_seeds, draws, num_users).half_width(confidence)
        value = float(np.mean(of_seeds))
        points.append(
            CurvePoint(
                level, value, value - half_width, value + half_width, tuple(of_seeds.tolist())
            )
        )
    return tuple(points)
