"""The offline A/B: treatments and a control on the same impressions, over several seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from seqdenoise.evaluation import ranking
from seqdenoise.evaluation.bootstrap import user_draws
from seqdenoise.evaluation.delong import DelongResult, delong
from seqdenoise.evaluation.estimates import compare_metric
from seqdenoise.evaluation.metrics import Metric, find_metrics
from seqdenoise.evaluation.ranking import Floats
from seqdenoise.evaluation.results import (
    ArmsComparison,
    Comparison,
    MetricComparison,
    Multiplicity,
    Outcome,
    SeedResult,
)
from seqdenoise.evaluation.sample import Draws, Sample
from seqdenoise.evaluation.slices import check_multiplicity, check_slices, compare_slices

__all__ = [
    "ArmsComparison",
    "Comparison",
    "MetricComparison",
    "Outcome",
    "SeedResult",
    "compare",
    "compare_arms",
]

_ALL_METRICS = ("AUC", "GAUC", "log loss", "normalised entropy", "NDCG@10", "ECE")


def _check_options(num_resamples: int, confidence: float) -> None:
    if num_resamples < 2:
        raise ValueError(f"`num_resamples` must be at least 2. Received: {num_resamples}")
    if not 0.5 < confidence < 1:
        raise ValueError(f"`confidence` must be between 0.5 and 1. Received: {confidence}")


def _defined_metrics(
    sample: Sample, control: str, metrics: Sequence[Metric]
) -> tuple[list[Metric], list[str]]:
    """The metrics that this sample has, and notes on the others."""
    notes = []
    left_out = set()
    if any(metric.name == "GAUC" for metric in metrics):
        first = sample.arms[control][0]
        by_user = ranking.group_auc(sample.positive, first, sample.users, weights=sample.weights)
        if np.isnan(by_user.auc).all():
            left_out.add("GAUC")
            notes.append("GAUC is left out: no user has both a positive and a negative impression.")
    of_probabilities = [metric.name for metric in metrics if metric.of_probabilities]
    for arm, scores in sample.arms.items() if of_probabilities else ():
        wrong = (scores < 0) | (scores > 1)
        if wrong.any():
            left_out |= set(of_probabilities)
            verb = "is" if len(of_probabilities) == 1 else "are"
            notes.append(
                f"{', '.join(of_probabilities)} {verb} left out: {arm} has scores outside [0, 1], "
                f"for instance {scores[wrong][0]:g}."
            )
            break
    return [metric for metric in metrics if metric.name not in left_out], notes


def _delong(
    sample: Sample, control: str, treatment: str, confidence: float
) -> list[DelongResult] | None:
    """DeLong's result of each seed; None where there are too few rows of a class."""
    positives = int(sample.positive.sum())
    if min(positives, sample.positive.size - positives) < 2:
        return None
    return [
        delong(sample.positive, a, b, confidence=confidence)
        for a, b in zip(sample.arms[control], sample.arms[treatment], strict=True)
    ]


def _seed_notes(num_seeds: int) -> list[str]:
    if num_seeds == 1:
        return [
            "One seed: the intervals cover the spread over users but not the spread between "
            "training seeds, so another seed may well give another verdict."
        ]
    if num_seeds == 2:
        return [
            "Two seeds tell little about the spread between seeds: 95 % intervals are wide, and "
            "cover 92 to 97 %. A third seed helps more than its cost."
        ]
    return []


def _compare_sample(
    sample: Sample,
    control: str,
    metrics: Sequence[Metric],
    *,
    weighted: bool,
    num_resamples: int,
    confidence: float,
    seed: int,
) -> dict[str, Comparison]:
    """Every arm but the control compared with it, on all rows."""
    draws = Draws(sample, metrics)
    rng = np.random.default_rng(seed)
    for counts in user_draws(sample.num_users, sample.positive.size, num_resamples, rng):
        draws.add(counts)
    values: dict[tuple[str, str], Floats] = {
        (metric.name, arm): sample.values(metric, arm) for metric in metrics for arm in sample.arms
    }
    arms = {}
    for arm in sample.arms:
        if arm == control:
            continue
        entries, notes = [], []
        for metric in metrics:
            resampled = draws.resampled(metric, arm) - draws.resampled(metric, control)
            defined = ~np.isnan(resampled).any(axis=1)
            if defined.sum() < 2:
                raise ValueError(
                    f"too few users to resample the {metric.name}: nearly every draw held one "
                    f"class only. Received: {sample.num_users} users"
                )
            if not defined.all():
                notes.append(
                    f"{metric.name}: {int((~defined).sum())} of {num_resamples} draws of the users "
                    "held one class only and are left out; there are very few users."
                )
            check = None
            if metric.name == "AUC" and not weighted:
                check = _delong(sample, control, arm, confidence)
            entries.append(
                compare_metric(
                    metric.name,
                    metric.larger_is_better,
                    values[metric.name, control],
                    values[metric.name, arm],
                    resampled[defined],
                    sample.num_users,
                    confidence,
                    check,
                )
            )
        arms[arm] = Comparison(
            metrics=tuple(entries),
            num_rows=sample.positive.size,
            num_users=sample.num_users,
            num_seeds=sample.num_seeds,
            confidence=float(confidence),
            num_resamples=num_resamples,
            seed=seed,
            notes=tuple(notes),
        )
    return arms


def compare_arms(
    labels: ArrayLike,
    users: ArrayLike,
    scores: Mapping[str, ArrayLike],
    *,
    control: str,
    metrics: Sequence[str] = _ALL_METRICS,
    weights: ArrayLike | None = None,
    num_resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    slices: Mapping[str, ArrayLike] | None = None,
    multiplicity: Multiplicity = "holm",
) -> ArmsComparison:
    """Compares any number of treatments with one control, each as `compare` does.

    All arms see the same draws of the users, so treatments can be told from each other as well as
    from the control. The treatments are not corrected for their number; the slices are.

    A slice is compared on its own rows, as if they were all, with the first 500 draws at most. Its
    p values are corrected within a family: one treatment and one metric, over all values of all
    slices. With "holm" any wrong outcome in the family has a chance of at most `1 - confidence`;
    with "benjamini-hochberg" that is the expected share of wrong ones among the outcomes. The
    intervals shown are not corrected.

    Args:
        labels: 0/1 or bool `[N]`.
        users: Ids `[N]`: the clusters of the bootstrap, and the groups of GAUC and the top-k
            metrics.
        scores: By arm, `[S, N]`, the same seeds in the same order. Metrics of probabilities (log
            loss, normalised entropy, ECE) are left out, with a note, if one is outside [0, 1].
        control: The arm that the others are compared with.
        metrics: Names as `find_metrics` takes them.
        weights: Optional row weights `[N]`, not negative.
        num_resamples: Draws of the users, at least 2.
        confidence: Of the intervals, between 0.5 and 1, both excluded.
        seed: Of the draws.
        slices: By name, a value for every row `[N]`, none missing and at most 100 different ones.
            Values of fewer than 20 users are left out, with a note.
        multiplicity: How p values of slices are corrected.

    Returns:
        A comparison for each treatment, and the slices.

    Raises:
        ValueError: As `compare`; no treatment, or no arm of the control's name; unknown metrics; or
            bad slices.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> users = np.repeat(np.arange(200), 10)
        >>> labels = rng.integers(0, 2, users.size)
        >>> noise = rng.normal(0, 1.0, (3, users.size))
        >>> result = compare_arms(
        ...     labels, users, {"now": labels + 2 * noise, "new": labels + noise}, control="now",
        ...     metrics=["GAUC", "NDCG@5"], num_resamples=200, slices={"half": users < 100})
        >>> result.arms["new"]["NDCG@5"].outcome
        'better'
        >>> [(part.value, part.arms["new"][0].outcome) for part in result.slices["half"]]
        [(False, 'better'), (True, 'better')]
    """
    if control not in scores or len(scores) < 2:
        raise ValueError(
            "`scores` must hold the control and at least one other arm. "
            f"Received: control={control!r}, arms {list(scores)}"
        )
    asked = find_metrics(metrics)
    check_multiplicity(multiplicity)
    names = {arm: f"scores[{arm!r}]" for arm in scores}
    sample, order = Sample.check(labels, users, scores, weights, names)
    checked = check_slices(slices or {}, order.size)
    _check_options(num_resamples, confidence)

    defined, notes = _defined_metrics(sample, control, asked)
    if not defined:
        raise ValueError(f"expected a metric that these rows have. Received: {' '.join(notes)}")
    arms = _compare_sample(
        sample,
        control,
        defined,
        weighted=weights is not None,
        num_resamples=num_resamples,
        confidence=confidence,
        seed=seed,
    )
    notes += dict.fromkeys(note for comparison in arms.values() for note in comparison.notes)
    notes += _seed_notes(sample.num_seeds)
    if len(arms) > 1:
        notes.append(
            f"{len(arms)} treatments, each compared on its own: the more there are, the likelier "
            "that one of them looks better or worse by chance."
        )
    by_slice, slice_notes = compare_slices(
        sample,
        {name: (values, codes[order]) for name, (values, codes) in checked.items()},
        control,
        defined,
        num_resamples=num_resamples,
        confidence=confidence,
        seed=seed,
        multiplicity=multiplicity,
    )
    return ArmsComparison(control, arms, by_slice, multiplicity, (*notes, *slice_notes))


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
    metrics: Sequence[str] = ("AUC", "GAUC"),
) -> Comparison:
    """Says whether a treatment ranks better than a control, and how sure that is.

    Row `s` of both score tables comes from models trained with the same seed on the same data, so
    the difference is taken within a seed. Users are drawn with replacement, all rows of a user
    together, the same draw for both arms and for all seeds. The spread of the drawn differences is
    split into users and users-by-seeds; the seeds' spread is that of the measured differences.
    With S seeds, `u` the variance common to seeds and `s^2` the variance over seeds (divisor S - 1)

        standard error^2 = u + s^2 / S
        interval = difference +- q * standard error,
        q = t_{U-1} + w^(3/2) (t_{S-1} - t_{U-1}), w = (s^2 / S) / (u + s^2 / S),

    t the Student quantile.

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
        metrics: Names as `find_metrics` takes them.

    Returns:
        The comparison. GAUC is left out, with a note, where no user has both classes. A draw that
        leaves a metric undefined (one class only, which takes very few users) is left out of it,
        with a note.

    Raises:
        ValueError: Wrong shapes or values as in `auc`, score tables of different shape, one user
            only, options out of range, or unknown metrics.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> users = np.repeat(np.arange(200), 10)
        >>> labels = rng.integers(0, 2, users.size)
        >>> control = labels + rng.normal(0, 2.0, (3, users.size))
        >>> treatment = labels + rng.normal(0, 1.0, (3, users.size))
        >>> compare(labels, users, control, treatment, num_resamples=200)["AUC"].outcome
        'better'
    """
    sample, _ = Sample.check(
        labels,
        users,
        {"control": control_scores, "treatment": treatment_scores},
        weights,
        {"control": "control_scores", "treatment": "treatment_scores"},
    )
    asked = find_metrics(metrics)
    _check_options(num_resamples, confidence)
    defined, notes = _defined_metrics(sample, "control", asked)
    if not defined:
        raise ValueError(f"expected a metric that these rows have. Received: {' '.join(notes)}")
    comparison = _compare_sample(
        sample,
        "control",
        defined,
        weighted=weights is not None,
        num_resamples=num_resamples,
        confidence=confidence,
        seed=seed,
    )["treatment"]
    notes = [*notes, *comparison.notes, *_seed_notes(sample.num_seeds)]
    return replace(comparison, notes=tuple(notes))
