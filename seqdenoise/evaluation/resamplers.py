"""Further metrics as functions of how often each user was drawn; `bootstrap` has AUC and GAUC.

All are exact: a draw's value is that of the table in which a user's rows appear as often as the
user was drawn. Only the bins of the calibration error stay those of the whole table.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from seqdenoise.evaluation.bootstrap import RatioResampler
from seqdenoise.evaluation.probabilities import NUM_BINS, binary_entropy, equal_mass_bins
from seqdenoise.evaluation.ranking import Floats, Ints, log_losses
from seqdenoise.evaluation.top_k import GroupTopK, group_ndcg_at_k, group_recall_at_k

# Callers keep probabilities as far from 0 and 1 as their own dtype asks for; this is float64's.
_INWARD = float(np.finfo(np.float64).eps)


def _per_user(users: Ints, values: Floats) -> Floats:
    return np.asarray(np.bincount(users, values), np.float64)


class LogLossResampler(RatioResampler):
    """Weighted mean log loss.

    Args:
        labels: bool `[N]`.
        probabilities: float64 `[N]`, in [0, 1].
        users: int64 `[N]`, 0..U-1, all of them present.
        weights: float64 `[N]`, not negative.
    """

    def __init__(
        self, labels: NDArray[np.bool_], probabilities: Floats, users: Ints, weights: Floats
    ) -> None:
        losses = weights * log_losses(labels, probabilities, _INWARD)
        super().__init__(_per_user(users, losses), _per_user(users, weights))


class NormalisedEntropyResampler:
    """Log loss over the entropy of the draw's own average rate; arguments: `LogLossResampler`."""

    def __init__(
        self, labels: NDArray[np.bool_], probabilities: Floats, users: Ints, weights: Floats
    ) -> None:
        self._loss = LogLossResampler(labels, probabilities, users, weights)
        self._rate = RatioResampler(_per_user(users, weights * labels), _per_user(users, weights))

    def __call__(self, counts: Floats) -> Floats:
        """See `Resampler`."""
        entropy = binary_entropy(self._rate(counts))
        loss = self._loss(counts)
        return np.divide(loss, entropy, out=np.full(loss.shape, np.nan), where=entropy > 0)


class CalibrationErrorResampler:
    """Expected calibration error in the whole table's bins; arguments: `LogLossResampler`."""

    def __init__(
        self, labels: NDArray[np.bool_], probabilities: Floats, users: Ints, weights: Floats
    ) -> None:
        self._weight = _per_user(users, weights)
        if not self._weight.any():
            bins = np.zeros(users.size, np.int64)
        else:
            bins = equal_mass_bins(probabilities, weights, NUM_BINS)
        # Most users are in few of the bins.
        self._excess = sparse.csr_array(
            (weights * (labels - probabilities), (bins, users)),
            shape=(NUM_BINS, self._weight.size),
        )

    def __call__(self, counts: Floats) -> Floats:
        """See `Resampler`."""
        # Bin after bin: numpy would add up in another order for another R.
        error = np.zeros(counts.shape[0])
        for of_bin in self._excess @ counts.T:
            error += np.abs(of_bin)
        total = np.einsum("ru,u->r", counts, self._weight)
        return np.divide(error, total, out=np.full(error.shape, np.nan), where=total > 0)


def _of_groups(by_user: GroupTopK) -> RatioResampler:
    defined = ~np.isnan(by_user.value)
    return RatioResampler(
        np.where(defined, by_user.weight * by_user.value, 0.0),
        np.where(defined, by_user.weight, 0.0),
    )


def ndcg_resampler(
    labels: NDArray[np.bool_], scores: Floats, users: Ints, weights: Floats, *, k: int
) -> RatioResampler:
    """NDCG@k by user; a user's own does not change with the draw."""
    return _of_groups(group_ndcg_at_k(labels, scores, users, k=k, weights=weights))


def recall_resampler(
    labels: NDArray[np.bool_], scores: Floats, users: Ints, weights: Floats, *, k: int
) -> RatioResampler:
    """Recall@k by user; a user's own does not change with the draw."""
    return _of_groups(group_recall_at_k(labels, scores, users, k=k, weights=weights))
