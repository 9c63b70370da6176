"""The offline A/B: a control and a treatment on the same impressions, over several seeds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdenoise.evaluation import ranking
from seqdenoise.evaluation.bootstrap import (
    AucResampler,
    GaucResampler,
    Resampler,
    canonical_order,
    user_draws,
)
from seqdenoise.evaluation.ranking import Floats, Ints
from seqdenoise.evaluation.spread import Spread

Outcome = Literal["better", "worse", "cannot tell"]
POWER = 0.8


@dataclass(frozen=True)
class SeedResult:
    """One metric of one pair of runs: the two arms trained with the same seed.

    Attributes:
        control: The metric of the control.
        treatment: The metric of the treatment.
        difference: Treatment less control.
        low: Lower end of the difference's interval over users, for these two models as they are.
        high: Its upper end.
    """

    control: float
    treatment: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class MetricComparison:
    """One metric of both arms; larger is better.

    Attributes:
        metric: Its name as printed, "AUC" or "GAUC".
        control: Mean over seeds.
        treatment: Mean over seeds.
        difference: Treatment less control, mean over seeds.
        low: Lower end of the interval of the difference over users and seeds.
        high: Its upper end.
        standard_error: Of the difference, over users and seeds.
        detectable_effect: The true difference that an A/B of this size finds with 80 % power.
        outcome: "better" if the interval lies above 0, "worse" below, else "cannot tell".
        users_needed: Where the outcome is "cannot tell": how many times this many users, at as many
            seeds, would find a true difference of this size with 80 % power; None: no number.
        seeds_needed: The same for seeds on the same users, the present ones included.
        both_needed: Where neither alone is enough: how many times the users with how many seeds.
        users_variance: The part of the variance due to users and common to all seeds.
        users_by_seeds_variance: The part due to users for one seed alone.
        seeds_variance: The part due to the seed, which more users would not remove.
        seeds: The pairs of runs, in the order given.
    """

    metric: str
    control: float
    treatment: float
    difference: float
    low: float
    high: float
    standard_error: float
    detectable_effect: float
    outcome: Outcome
    users_needed: float | None
    seeds_needed: int | None
    both_needed: tuple[float, int] | None
    users_variance: float
    users_by_seeds_variance: float
    seeds_variance: float
    seeds: tuple[SeedResult, ...]


@dataclass(frozen=True)
class Comparison:
    """A control and a treatment compared.

    Attributes:
        metrics: One entry a metric: AUC, and GAUC where a user has both classes.
        num_rows: Impressions.
        num_users: Users.
        num_seeds: Pairs of runs.
        confidence: Of all intervals, for instance 0.95.
        num_resamples: Draws of the users.
        seed: Of the draws.
        notes: What a reader has to know beside the numbers; often empty.
    """

    metrics: tuple[MetricComparison, ...]
    num_rows: int
    num_users: int
    num_seeds: int
    confidence: float
    num_resamples: int
    seed: int
    notes: tuple[str, ...]

    def __getitem__(self, metric: str) -> MetricComparison:
        """The entry of a metric by its name.

        Raises:
            KeyError: No such metric.
        """
        for entry in self.metrics:
            if entry.metric == metric:
                return entry
        raise KeyError(
            f"expected one of {[entry.metric for entry in self.metrics]}. Received: {metric!r}"
        )


@dataclass(frozen=True)
class _Metric:
    name: str
    value: Callable[[NDArray[np.bool_], Floats, Ints, Floats], float]
    resampler: Callable[[NDArray[np.bool_], Floats, Ints, Floats], Resampler]


_METRICS = (
    _Metric(
        "AUC",
        lambda labels, scores, users, weights: ranking.auc(labels, scores, weights=weights),
        AucResampler,
    ),
    _Metric(
        "GAUC",
        lambda labels, scores, users, weights: ranking.gauc(labels, scores, users, weights=weights),
        GaucResampler,
    ),
)


def _score_table(name: str, scores: ArrayLike, num_rows: int) -> Floats:
    table = np.asarray(scores)
    if table.ndim != 2 or table.shape[0] == 0 or table.shape[1] != num_rows:
        raise ValueError(
            f"`{name}` must have the shape [S, {num_rows}], one row a seed, S >= 1. "
            f"Received: shape={table.shape}"
        )
    return np.stack(
        [ranking.check_scores(f"{name}[{s}]", row, num_rows) for s, row in enumerate(table)]
    )


def _compare_metric(
    name: str,
    control: Floats,
    treatment: Floats,
    resampled: Floats,
    num_users: int,
    confidence: float,
) -> MetricComparison:
    """From the metric per seed `[S]` and resampled differences `[R, S]` to the verdict."""
    differences = treatment - control
    difference = float(np.mean(differences))
    spread = Spread.estimate(differences, resampled, num_users)
    half_width = spread.half_width(confidence)
    low, high = difference - half_width, difference + half_width
    outcome: Outcome = "better" if low > 0 else "worse" if high < 0 else "cannot tell"
    users_needed = seeds_needed = both_needed = None
    if outcome == "cannot tell" and difference != 0:
        users_needed = spread.users_needed(difference, confidence)
        seeds_needed = spread.seeds_needed(difference, confidence)
        if users_needed is None and seeds_needed is None:
            both_needed = spread.both_needed(difference, confidence)
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
            )
        )
    return MetricComparison(
        metric=name,
        control=float(np.mean(control)),
        treatment=float(np.mean(treatment)),
        difference=difference,
        low=low,
        high=high,
        standard_error=spread.standard_error,
        detectable_effect=spread.detectable(confidence, POWER),
        outcome=outcome,
        users_needed=users_needed,
        seeds_needed=seeds_needed,
        both_needed=both_needed,
        users_variance=spread.users,
        users_by_seeds_variance=spread.users_by_seeds,
        seeds_variance=spread.seeds,
        seeds=tuple(per_seed),
    )


def compare(
    labels: ArrayLike,
    users: ArrayLike,
    control_scores: ArrayLike,
    treatment_scores: ArrayLike,
    *,
    num_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    weights: ArrayLike | None = None,
) -> Comparison:
    """Says whether a treatment ranks better than a control, and how sure that is.

    Row `s` of both score tables comes from models trained with the same seed on the same data, so
    the difference is taken within a seed. Users are drawn with replacement, all rows of a user
    together, the same draw for both arms and for all seeds. The spread of the drawn differences is
    split into users and users-by-seeds; the seeds' spread is that of the measured differences.
    With S seeds, `u` the variance common to seeds and `s^2` the variance over seeds (divisor S - 1)

        standard error^2 = u + s^2 / S
        interval = difference +- q * standard error,
        q = (u t_{U-1} + s^2/S t_{S-1}) / (u + s^2/S), t the Student quantile.

    That is the bootstrap crossed over users and seeds with its two faults at few seeds removed: it
    understates the seeds' variance by (S - 1) / S, and uses a normal quantile for it. The module
    `spread` derives this, the detectable effect and the needed numbers of users and seeds: with
    `k` times the users and `S'` seeds, `e` the users-by-seeds variance and `a = max(s^2 - e, 0)`,

        standard error'^2 = u / k + (e / k + a) / S'

    and the needed number is the smallest whose effect detectable with 80 % power is no larger than
    the measured difference. With one seed the spread between seeds is unknown: the interval covers
    users alone, and a note says so.

    The result does not depend on the order of the rows nor on the users' ids or their type, to the
    last bit, and exchanging the arms negates it.

    Args:
        labels: 0/1 or bool `[N]`.
        users: Ids `[N]`, integers or strings: the clusters of the bootstrap and groups of GAUC.
        control_scores: `[S, N]`; larger means more likely positive.
        treatment_scores: `[S, N]`, the same seeds in the same order.
        num_resamples: Draws of the users, at least 2; the relative error of a standard error is
            about `1 / sqrt(2 * num_resamples)`, 1.6 % at 2000.
        confidence: Of the intervals, between 0.5 and 1, both excluded.
        seed: Of the draws.
        weights: Optional row weights `[N]`, not negative.

    Returns:
        The comparison. GAUC is left out, with a note, where no user has both classes. A draw that
        leaves a metric undefined (one class only, which takes very few users) is left out of it,
        with a note.

    Raises:
        ValueError: Wrong shapes or values as in `auc`, score tables of different shape, one user
            only, or options out of range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> users = np.repeat(np.arange(200), 10)
        >>> labels = rng.integers(0, 2, users.size)
        >>> control = labels + rng.normal(0, 2.0, (3, users.size))
        >>> treatment = labels + rng.normal(0, 1.0, (3, users.size))
        >>> compare(labels, users, control, treatment, num_resamples=200)["AUC"].outcome
        'better'
    """
    positive = ranking.check_labels(labels)
    size = positive.size
    control = _score_table("control_scores", control_scores, size)
    treatment = _score_table("treatment_scores", treatment_scores, size)
    if control.shape != treatment.shape:
        raise ValueError(
            "`control_scores` and `treatment_scores` must hold the same seeds. "
            f"Received: shapes {control.shape} and {treatment.shape}"
        )
    row_weights = ranking.check_weights(weights, size)
    distinct, codes = ranking.group_codes("users", users, size)
    if distinct.size < 2:
        raise ValueError(f"`users` must hold at least two users. Received: {distinct.size}")
    if num_resamples < 2:
        raise ValueError(f"`num_resamples` must be at least 2. Received: {num_resamples}")
    if not 0.5 < confidence < 1:
        raise ValueError(f"`confidence` must be between 0.5 and 1. Received: {confidence}")

    order, codes = canonical_order(positive, codes, row_weights, control, treatment)
    positive, row_weights = positive[order], row_weights[order]
    control, treatment = control[:, order], treatment[:, order]

    notes = []
    metrics = list(_METRICS)
    by_user = ranking.group_auc(positive, control[0], codes, weights=row_weights)
    if np.isnan(by_user.auc).all():
        metrics = [metric for metric in metrics if metric.name != "GAUC"]
        notes.append("GAUC is left out: no user has both a positive and a negative impression.")

    # One pass over the draws for everything: [metric][arm][seed].
    resamplers = [
        [
            [metric.resampler(positive, row, codes, row_weights) for row in table]
            for table in (control, treatment)
        ]
        for metric in metrics
    ]
    chunks: list[list[Floats]] = [[] for _ in metrics]
    rng = np.random.default_rng(seed)
    for counts in user_draws(distinct.size, size, num_resamples, rng):
        for chunk, (control_arm, treatment_arm) in zip(chunks, resamplers, strict=True):
            pairs = zip(control_arm, treatment_arm, strict=True)
            chunk.append(np.stack([b(counts) - a(counts) for a, b in pairs], axis=1))

    entries = []
    for metric, chunk in zip(metrics, chunks, strict=True):
        values = [
            np.array([metric.value(positive, row, codes, row_weights) for row in table])
            for table in (control, treatment)
        ]
        resampled = np.concatenate(chunk)
        defined = ~np.isnan(resampled).any(axis=1)
        if defined.sum() < 2:
            raise ValueError(
                f"too few users to resample the {metric.name}: nearly every draw held one class "
                f"only. Received: {distinct.size} users"
            )
        if not defined.all():
            notes.append(
                f"{metric.name}: {int((~defined).sum())} of {num_resamples} draws of the users "
                "held one class only and are left out; there are very few users."
            )
        entries.append(
            _compare_metric(
                metric.name, values[0], values[1], resampled[defined], distinct.size, confidence
            )
        )
    num_seeds = control.shape[0]
    if num_seeds == 1:
        notes.append(
            "One seed: the intervals cover the spread over users but not the spread between "
            "training seeds, so another seed may well give another verdict."
        )
    elif num_seeds == 2:
        notes.append(
            "Two seeds tell little about the spread between seeds; the intervals allow for that "
            "and are wide. A third seed helps more than its cost."
        )
    return Comparison(
        metrics=tuple(entries),
        num_rows=size,
        num_users=int(distinct.size),
        num_seeds=num_seeds,
        confidence=float(confidence),
        num_resamples=num_resamples,
        seed=seed,
        notes=tuple(notes),
    )
