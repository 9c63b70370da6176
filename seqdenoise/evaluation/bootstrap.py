"""AUC and GAUC of an impression table whose users are drawn again with replacement.

Drawing a user `k` times is giving their rows the weight `k`. So the rows are sorted once for each
score column, and a resample is a weighted AUC over rows already in order: two gathers and one
cumulative sum, no sort and no copy of the rows.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seqdenoise.data.mixing import finalise64
from seqdenoise.evaluation.ranking import Floats, Ints, group_auc

# Values of one [resamples, rows] work array: 4 MB, which keeps the cumulative sums in the cache.
_CHUNK_VALUES = 500_000


class Resampler(Protocol):
    """A metric of one score column as a function of how often each user was drawn."""

    def __call__(self, counts: Floats) -> Floats:
        """Maps counts `[R, U]` to the metric `[R]`; NaN where a resample leaves it undefined."""


class AucResampler:
    """AUC over all rows; tie-exact.

    Args:
        labels: bool `[N]`.
        scores: float64 `[N]`, no NaN.
        users: int64 `[N]`, 0..U-1, all of them present.
        weights: float64 `[N]`, not negative.
    """

    def __init__(
        self, labels: NDArray[np.bool_], scores: Floats, users: Ints, weights: Floats
    ) -> None:
        order = np.argsort(scores, kind="stable")
        positive = order[labels[order]]
        negative = order[~labels[order]]
        # The negatives below a positive are negative[:below], those not above it
        # negative[:not_above]; the mean of both sums counts its ties one half.
        sorted_scores = scores[negative]
        self._below = np.searchsorted(sorted_scores, scores[positive], side="left")
        self._not_above = np.searchsorted(sorted_scores, scores[positive], side="right")
        self._positive_users, self._negative_users = users[positive], users[negative]
        self._positive_weights, self._negative_weights = weights[positive], weights[negative]
        size = int(users.max()) + 1
        self._positive_per_user = np.bincount(users[positive], weights[positive], minlength=size)
        self._negative_per_user = np.bincount(users[negative], weights[negative], minlength=size)

    def __call__(self, counts: Floats) -> Floats:
        """See `Resampler`; memory is `R * N` float64 values."""
        negative = np.take(counts, self._negative_users, axis=1)
        negative *= self._negative_weights
        below = np.zeros((counts.shape[0], negative.shape[1] + 1))
        np.cumsum(negative, axis=1, out=below[:, 1:])
        beaten = np.take(below, self._below, axis=1)
        beaten += np.take(below, self._not_above, axis=1)
        positive = np.take(counts, self._positive_users, axis=1)
        positive *= self._positive_weights
        won = 0.5 * np.einsum("rp,rp->r", positive, beaten)
        # einsum and not a matrix product: BLAS picks another order of summation for another R, and
        # a resample must not depend on the chunk it is in.
        pairs = np.einsum("ru,u->r", counts, self._positive_per_user) * np.einsum(
            "ru,u->r", counts, self._negative_per_user
        )
        return np.divide(won, pairs, out=np.full(won.shape, np.nan), where=pairs > 0)


class RatioResampler:
    """A metric that is a ratio of two sums over users, each user's part the same in every draw.

    Args:
        numerator: float64 `[U]`.
        denominator: float64 `[U]`, not negative.
    """

    def __init__(self, numerator: Floats, denominator: Floats) -> None:
        self._numerator, self._denominator = numerator, denominator

    def __call__(self, counts: Floats) -> Floats:
        """See `Resampler`."""
        total = np.einsum("ru,u->r", counts, self._denominator)
        won = np.einsum("ru,u->r", counts, self._numerator)
        return np.divide(won, total, out=np.full(won.shape, np.nan), where=total > 0)


class GaucResampler(RatioResampler):
    """Impression-weighted mean AUC of the users who have both classes.

    A user's own AUC does not change with the draw. The arguments are those of `AucResampler`.
    """

    def __init__(
        self, labels: NDArray[np.bool_], scores: Floats, users: Ints, weights: Floats
    ) -> None:
        by_user = group_auc(labels, scores, users, weights=weights)
        both = ~np.isnan(by_user.auc)
        super().__init__(
            np.where(both, by_user.weight * by_user.auc, 0.0), np.where(both, by_user.weight, 0.0)
        )


def user_draws(
    num_users: int, num_rows: int, num_resamples: int, rng: np.random.Generator
) -> Iterator[Floats]:
    """Yields how often each user is drawn, a chunk of resamples at a time.

    Every resample draws `num_users` users with replacement, one call of the generator each, so the
    draws do not depend on the size of the chunks.

    Args:
        num_users: U.
        num_rows: N, which bounds the chunk: a work array `[R, N]` stays near 4 MB.
        num_resamples: Resamples in total.
        rng: The source of the draws.

    Yields:
        float64 `[R, U]`, rows summing to U; the R of all chunks sum to `num_resamples`.
    """
    chunk = max(1, _CHUNK_VALUES // max(num_users, num_rows))
    for start in range(0, num_resamples, chunk):
        counts = np.empty((min(chunk, num_resamples - start), num_users))
        for row in counts:
            row[:] = np.bincount(rng.integers(num_users, size=num_users), minlength=num_users)
        yield counts


def _bits(values: Floats) -> NDArray[np.uint64]:
    # Adding 0.0 turns -0.0 into 0.0, which compares equal and must hash equal.
    return (values + 0.0).view(np.uint64)


def _row_contents(
    labels: NDArray[np.bool_], weights: Floats, arms: Sequence[Floats]
) -> NDArray[np.uint64]:
    """A hash `[N]` of everything a row holds but its user, the arms in the order given."""
    row = finalise64(labels.astype(np.uint64) + finalise64(_bits(weights) + np.uint64(1)))
    for of_seed in zip(*arms, strict=True):
        for scores in of_seed:
            row = finalise64(row + _bits(scores))
    return row


def canonical_order(
    labels: NDArray[np.bool_], users: Ints, weights: Floats, *arms: Floats
) -> tuple[Ints, Ints]:
    """Puts rows and users in an order that depends on their contents alone.

    Which users a seeded generator draws depends on how users are numbered. Numbering them by what
    their rows hold makes every result independent, to the last bit, of the order of the rows and of
    the users' ids and their type; exchanging arms changes nothing either.

    Args:
        labels: bool `[N]`.
        users: int64 `[N]`, any numbering 0..U-1.
        weights: float64 `[N]`.
        *arms: Their scores, float64 `[S, N]` each.

    Returns:
        The row order `[N]` and, for the rows in that order, their users' numbers `[N]`, which do
        not decrease. Users with equal contents are numbered at random among themselves, which
        nothing can see.
    """
    by_user = np.argsort(users, kind="stable")
    starts = np.flatnonzero(np.diff(users[by_user], prepend=-1))

    def contents(arms: Sequence[Floats]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        row = _row_contents(labels, weights, arms)
        # The sum of hashes modulo 2**64 does not depend on the order of the user's rows.
        return row, finalise64(np.add.reduceat(row[by_user], starts))

    def total(hashes: tuple[NDArray[np.uint64], NDArray[np.uint64]]) -> int:
        return int(np.add.reduce(hashes[1]))

    if len(arms) == 2:
        # Of the two orders of the arms, the one with the larger total: the same if exchanged.
        row, user = max(contents(arms), contents(arms[::-1]), key=total)
    else:
        row, user = contents(sorted(arms, key=lambda arm: total(contents([arm]))))
    number = np.empty(user.size, np.int64)
    number[np.argsort(user, kind="stable")] = np.arange(user.size)
    numbered = number[users]
    order = np.lexsort((row, numbered))
    return order, numbered[order]
