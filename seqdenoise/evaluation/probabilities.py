"""How good probabilities are beyond their order: normalised entropy and calibration."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from seqdenoise.evaluation.ranking import (
    Floats,
    Ints,
    check_labels,
    check_probabilities,
    check_weights,
    log_loss,
)

NUM_BINS = 15


def binary_entropy(rate: ArrayLike) -> Floats:
    """The entropy, in nats, of a label that is 1 with this probability."""
    rates = np.asarray(rate, np.float64)
    return special.entr(rates) + special.entr(1 - rates)


def normalised_entropy(
    labels: ArrayLike, probabilities: ArrayLike, *, weights: ArrayLike | None = None
) -> float:
    """Below 1 when the probabilities say more than the average rate alone.

        NE = log loss / -(r ln r + (1 - r) ln(1 - r)), r = sum_i w_i y_i / sum_i w_i

    The denominator is the log loss of predicting `r` for every row, so tables with different rates
    can be compared, which log losses cannot.

    Args:
        labels: 0/1 or bool `[N]`, both of them with a positive weight.
        probabilities: In [0, 1], `[N]`; 0 and 1 are moved inwards as in `log_loss`.
        weights: Optional, not negative, `[N]`.

    Returns:
        The normalised entropy, >= 0.

    Raises:
        ValueError: As `log_loss`, or one class only.

    Reference:
        X. He et al., "Practical lessons from predicting clicks on ads at Facebook", ADKDD 2014,
        equation 1, with labels 0 and 1 in place of -1 and 1.

    Example:
        >>> normalised_entropy([1, 0, 0, 0], [0.25] * 4)
        1.0
    """
    loss = log_loss(labels, probabilities, weights=weights)
    positive = check_labels(labels)
    row_weights = check_weights(weights, positive.size)
    of_positives, total = float(row_weights[positive].sum()), float(row_weights.sum())
    if not 0 < of_positives < total:
        raise ValueError(
            "`labels` must hold both classes, each with a positive weight. Received: positives of "
            f"weight {of_positives:g} of {total:g}"
        )
    return loss / float(binary_entropy(of_positives / total))


def equal_mass_bins(values: Floats, weights: Floats, num_bins: int) -> Ints:
    """Cuts values into bins of about the same weight; equal values share a bin.

    A block of equal values goes, whole, to the bin in which the middle of its weight falls. So a
    bin can be heavier than the others, or empty.

    Args:
        values: `[N]`, no NaN.
        weights: `[N]`, not negative, not all 0.
        num_bins: At least 1.

    Returns:
        The bin of every row, `[N]`, from 0 to `num_bins - 1`, rising with the value.
    """
    order = np.argsort(values, kind="stable")
    in_order = values[order]
    starts = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
    mass = np.add.reduceat(weights[order], starts)
    middle = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
    bins = np.minimum((middle * num_bins).astype(np.int64), num_bins - 1)
    result = np.empty(values.size, np.int64)
    result[order] = np.repeat(bins, np.diff(starts, append=values.size))
    return result


class CalibrationCurve(NamedTuple):
    """Probabilities beside rates, one entry a bin that holds rows, from low to high.

    Attributes:
        low: `[B]`, the smallest probability in the bin.
        high: `[B]`, the largest.
        probability: `[B]`, the (weighted) mean probability.
        rate: `[B]`, the (weighted) share of positives.
        weight: `[B]`, the weight of its rows.
        rows: `[B]`, their number.
    """

    low: Floats
    high: Floats
    probability: Floats
    rate: Floats
    weight: Floats
    rows: Ints


def calibration_curve(
    labels: ArrayLike,
    probabilities: ArrayLike,
    *,
    num_bins: int = NUM_BINS,
    weights: ArrayLike | None = None,
) -> CalibrationCurve:
    """Mean probability and share of positives in bins of equal weight.

    Args:
        labels: 0/1 or bool `[N]`.
        probabilities: In [0, 1], `[N]`.
        num_bins: At least 1; see `equal_mass_bins` for ties.
        weights: Optional, not negative, `[N]`; rows of weight 0 are in no bin.

    Returns:
        The bins; at most `num_bins`.

    Raises:
        ValueError: As `log_loss`, or `num_bins` below 1.

    Example:
        >>> curve = calibration_curve([0, 1, 0, 1], [0.1, 0.1, 0.4, 0.8], num_bins=2)
        >>> curve.probability.round(9).tolist(), curve.rate.tolist()
        ([0.1, 0.6], [0.5, 0.5])
    """
    positive = check_labels(labels)
    values = check_probabilities(probabilities, positive.size)
    row_weights = check_weights(weights, positive.size)
    if num_bins < 1:
        raise ValueError(f"`num_bins` must be at least 1. Received: {num_bins}")
    if not row_weights.all():
        weighed = row_weights > 0
        if not weighed.any():
            raise ValueError("`weights` must not all be 0. Received: a sum of 0")
        positive, values, row_weights = positive[weighed], values[weighed], row_weights[weighed]
    bins = equal_mass_bins(values, row_weights, num_bins)
    weight = np.asarray(np.bincount(bins, row_weights, minlength=num_bins), np.float64)
    rows = np.bincount(bins, minlength=num_bins)
    low, high = np.full(num_bins, np.inf), np.full(num_bins, -np.inf)
    np.minimum.at(low, bins, values)
    np.maximum.at(high, bins, values)
    used = rows > 0
    of_probabilities = np.bincount(bins, row_weights * values, minlength=num_bins)
    of_positives = np.bincount(bins, row_weights * positive, minlength=num_bins)
    return CalibrationCurve(
        low=low[used],
        high=high[used],
        probability=of_probabilities[used] / weight[used],
        rate=of_positives[used] / weight[used],
        weight=weight[used],
        rows=rows[used],
    )


def expected_calibration_error(
    labels: ArrayLike,
    probabilities: ArrayLike,
    *,
    num_bins: int = NUM_BINS,
    weights: ArrayLike | None = None,
) -> float:
    """Small when, among rows of about the same probability, the positives' share is that much.

        ECE = sum_b W_b | rate_b - probability_b | / sum_b W_b over the bins b

    Bins have equal weight, not equal width: the probabilities of clicks crowd near 0, in what would
    be a single bin of equal width. Noise alone makes the error larger than 0, by about
    `0.8 sqrt(r B / N)` for a rate `r`, `B` bins and `N` rows, so compare only errors of the same
    rows and number of bins.

    Args:
        labels: 0/1 or bool `[N]`.
        probabilities: In [0, 1], `[N]`.
        num_bins: At least 1; see `equal_mass_bins` for ties.
        weights: Optional, not negative, `[N]`.

    Returns:
        The error in [0, 1].

    Raises:
        ValueError: As `calibration_curve`.

    Reference:
        M. P. Naeini, G. F. Cooper and M. Hauskrecht, "Obtaining well calibrated probabilities
        using Bayesian binning", AAAI 2015.

    Example:
        >>> round(expected_calibration_error([0, 1, 0, 1], [0.1, 0.1, 0.4, 0.8], num_bins=2), 9)
        0.25
    """
    curve = calibration_curve(labels, probabilities, num_bins=num_bins, weights=weights)
    return float(curve.weight @ np.abs(curve.rate - curve.probability) / curve.weight.sum())
