"""The metrics that a comparison can hold, by the names they are printed under."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from seqdenoise.evaluation import probabilities, ranking, resamplers, top_k
from seqdenoise.evaluation.bootstrap import AucResampler, GaucResampler, Resampler
from seqdenoise.evaluation.ranking import Floats, Ints


@dataclass(frozen=True)
class Metric:
    """A metric of one score column.

    Attributes:
        name: As printed.
        larger_is_better: False for losses and errors.
        of_probabilities: Whether scores must be probabilities in [0, 1].
        value: Labels `[N]`, scores `[N]`, users `[N]`, weights `[N]` to the metric; raises
            ValueError where it is not defined.
        resampler: The same arguments to the metric as a function of the users' draw.
    """

    name: str
    larger_is_better: bool
    of_probabilities: bool
    value: Callable[[NDArray[np.bool_], Floats, Ints, Floats], float]
    resampler: Callable[[NDArray[np.bool_], Floats, Ints, Floats], Resampler]


def _auc(labels: NDArray[np.bool_], scores: Floats, users: Ints, weights: Floats) -> float:
    return ranking.auc(labels, scores, weights=weights)


def _gauc(labels: NDArray[np.bool_], scores: Floats, users: Ints, weights: Floats) -> float:
    return ranking.gauc(labels, scores, users, weights=weights)


def _log_loss(labels: NDArray[np.bool_], scores: Floats, users: Ints, weights: Floats) -> float:
    return ranking.log_loss(labels, scores, weights=weights)


def _normalised_entropy(
    labels: NDArray[np.bool_], scores: Floats, users: Ints, weights: Floats
) -> float:
    return probabilities.normalised_entropy(labels, scores, weights=weights)


def _calibration_error(
    labels: NDArray[np.bool_], scores: Floats, users: Ints, weights: Floats
) -> float:
    return probabilities.expected_calibration_error(labels, scores, weights=weights)


def _ndcg(
    labels: NDArray[np.bool_], scores: Floats, users: Ints, weights: Floats, *, k: int
) -> float:
    return top_k.ndcg_at_k(labels, scores, users, k=k, weights=weights)


def _recall(
    labels: NDArray[np.bool_], scores: Floats, users: Ints, weights: Floats, *, k: int
) -> float:
    return top_k.recall_at_k(labels, scores, users, k=k, weights=weights)


_METRICS = {
    metric.name: metric
    for metric in (
        Metric("AUC", True, False, _auc, AucResampler),
        Metric("GAUC", True, False, _gauc, GaucResampler),
        Metric("log loss", False, True, _log_loss, resamplers.LogLossResampler),
        Metric(
            "normalised entropy",
            False,
            True,
            _normalised_entropy,
            resamplers.NormalisedEntropyResampler,
        ),
        Metric("ECE", False, True, _calibration_error, resamplers.CalibrationErrorResampler),
    )
}
_TOP_K = {
    "NDCG": (_ndcg, resamplers.ndcg_resampler),
    "recall": (_recall, resamplers.recall_resampler),
}


def find_metrics(names: Sequence[str]) -> list[Metric]:
    """The metrics of these names, in this order.

    Args:
        names: Of "AUC", "GAUC", "log loss", "normalised entropy", "ECE", and "NDCG@k" and
            "recall@k" with any number from 1 in place of k.

    Returns:
        The metrics.

    Raises:
        ValueError: An unknown name, the same name twice, or none at all.

    Example:
        >>> [metric.larger_is_better for metric in find_metrics(["NDCG@10", "ECE"])]
        [True, False]
    """
    if isinstance(names, str) or not names or len(set(names)) < len(names):
        raise ValueError(f"`metrics` must be a list of different names. Received: {names!r}")
    found = []
    for name in names:
        match = re.fullmatch(r"(NDCG|recall)@([1-9][0-9]{0,8})", name)
        if match:
            value, resampler = _TOP_K[match[1]]
            k = int(match[2])
            found.append(Metric(name, True, False, partial(value, k=k), partial(resampler, k=k)))
        elif name in _METRICS:
            found.append(_METRICS[name])
        else:
            raise ValueError(
                f"`metrics` must be of {[*_METRICS, 'NDCG@k', 'recall@k']}, k a number from 1. "
                f"Received: {name!r}"
            )
    return found
