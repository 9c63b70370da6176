"""DeLong's test of two AUCs on the same rows: a check on the bootstrap that draws nothing.

It takes rows as independent. Rows of one user are not, so where users are the clusters its interval
is usually too narrow, and the bootstrap's over users is the one to go by.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from seqdenoise.evaluation.ranking import Floats, check_labels, check_scores


@dataclass(frozen=True)
class DelongResult:
    """Two AUCs on the same rows.

    Attributes:
        first: AUC of the first scores.
        second: AUC of the second.
        difference: Second less first.
        variance: Of the difference, rows taken as independent.
        low: Lower end of the difference's normal interval.
        high: Its upper end.
        p_value: Two-sided, of no difference.
    """

    first: float
    second: float
    difference: float
    variance: float
    low: float
    high: float
    p_value: float


def _midranks(values: Floats) -> Floats:
    """Ranks from 1, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - 0.5 * (counts - 1))[inverse]


def _placements(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """How much of the other class each row beats: `V10` of the positives, `V01` of the negatives.

    From midranks among all rows and within the class, Sun and Xu's equations 5 and 6.
    """
    ranks = _midranks(np.concatenate([positives, negatives]))
    of_positives = (ranks[: positives.size] - _midranks(positives)) / negatives.size
    of_negatives = 1 - (ranks[positives.size :] - _midranks(negatives)) / positives.size
    return of_positives, of_negatives


def delong(
    labels: ArrayLike,
    first: ArrayLike,
    second: ArrayLike,
    *,
    confidence: float = 0.95,
    weights: ArrayLike | None = None,
) -> DelongResult:
    """Whether two scores of the same rows have different AUCs, if the rows are independent.

    With m positives x and n negatives y, `psi(x, y) = 1[x > y] + 1/2 1[x = y]`, for each score

        V10_i = mean_j psi(x_i, y_j),   V01_j = mean_i psi(x_i, y_j)

    and with D10 and D01 the second's less the first's,

        variance = var(D10) / m + var(D01) / n, divisors m - 1 and n - 1.

    Args:
        labels: 0/1 or bool `[N]`, at least two of each.
        first: Real numbers `[N]`.
        second: Real numbers `[N]`.
        confidence: Of the interval, between 0 and 1, both excluded.
        weights: Must be None: the variance is not defined for weighted rows.

    Returns:
        Both AUCs, their difference, its variance, interval and p value. A variance of 0 gives a p
        value of 1 where there is no difference, and else 0.

    Raises:
        ValueError: Wrong shapes or values as in `auc`, fewer than two rows of a class, or weights.

    References:
        E. R. DeLong, D. M. DeLong and D. L. Clarke-Pearson, "Comparing the areas under two or more
        correlated receiver operating characteristic curves", Biometrics 44 (1988). X. Sun and
        W. Xu, "Fast implementation of DeLong's algorithm", IEEE Signal Processing Letters 21
        (2014), for the ranks in place of the double loop.

    Example:
        >>> result = delong([1, 1, 0, 0], [0.8, 0.2, 0.5, 0.1], [0.8, 0.6, 0.5, 0.1])
        >>> result.first, result.second, result.variance
        (0.75, 1.0, 0.125)
    """
    if weights is not None:
        raise ValueError(
            "DeLong's variance is not defined for weighted rows: expected `weights` of None. "
            f"Received: weights of shape {np.shape(weights)}"
        )
    positive = check_labels(labels)
    tables = [
        check_scores(name, scores, positive.size)
        for name, scores in (("first", first), ("second", second))
    ]
    if not 0 < confidence < 1:
        raise ValueError(f"`confidence` must be between 0 and 1. Received: {confidence}")
    m, n = int(positive.sum()), int((~positive).sum())
    if min(m, n) < 2:
        raise ValueError(
            "`labels` must hold at least two rows of each class. Received: "
            f"{m} positives and {n} negatives"
        )
    (first10, first01), (second10, second01) = (
        _placements(scores[positive], scores[~positive]) for scores in tables
    )
    difference = float(np.mean(second10 - first10))
    variance = float(
        np.var(second10 - first10, ddof=1) / m + np.var(second01 - first01, ddof=1) / n
    )
    error = math.sqrt(variance)
    reach = float(special.ndtri((1 + confidence) / 2)) * error
    if error > 0:
        p_value = 2 * float(special.ndtr(-abs(difference) / error))
    else:
        p_value = float(difference == 0)
    return DelongResult(
        first=float(np.mean(first10)),
        second=float(np.mean(second10)),
        difference=difference,
        variance=variance,
        low=difference - reach,
        high=difference + reach,
        p_value=p_value,
    )
