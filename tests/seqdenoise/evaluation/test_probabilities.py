import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from sklearn.metrics import log_loss as sk_log_loss

from seqdenoise.evaluation.probabilities import (
    calibration_curve,
    equal_mass_bins,
    expected_calibration_error,
    normalised_entropy,
)

# Multiples of 1/8 add up exactly in any order.
EIGHTHS = st.integers(0, 8).map(lambda number: number / 8)


@st.composite
def tables(draw):
    size = draw(st.integers(1, 25))
    labels = draw(npst.arrays(np.int8, size, elements=st.integers(0, 1)))
    values = draw(npst.arrays(np.float64, size, elements=EIGHTHS))
    weights = draw(npst.arrays(np.int64, size, elements=st.integers(0, 3)))
    weights[0] = max(1, weights[0])
    return labels, values, weights, draw(st.integers(1, 6))


def test_normalised_entropy_is_log_loss_over_that_of_the_average_rate():
    rng = np.random.default_rng(0)
    labels = rng.random(300) < 0.2
    probabilities = rng.random(300)
    for weights in (None, rng.gamma(2.0, size=300)):
        rate = np.average(labels, weights=weights)
        expected = sk_log_loss(labels, probabilities, sample_weight=weights) / sk_log_loss(
            labels, np.full(300, rate), sample_weight=weights
        )
        np.testing.assert_allclose(
            normalised_entropy(labels, probabilities, weights=weights), expected, rtol=1e-12
        )


@pytest.mark.parametrize("weights", [None, [0, 1]])
def test_normalised_entropy_wants_both_classes(weights):
    labels = [1, 1] if weights is None else [0, 1]
    with pytest.raises(ValueError, match=r"both classes.*Received:"):
        normalised_entropy(labels, [0.5, 0.5], weights=weights)


def loop_bins(values, weights, num_bins):
    """The bin in which the middle of each distinct value's weight falls."""
    bins, below = {}, 0.0
    for value in sorted(set(values.tolist())):
        mass = weights[values == value].sum()
        bins[value] = min(int((below + mass / 2) / weights.sum() * num_bins), num_bins - 1)
        below += mass
    return [bins[value] for value in values.tolist()]


@given(tables())
def test_calibration_error_by_a_loop(table):
    labels, values, weights, num_bins = table
    for row_weights in (None, weights):
        each = np.ones(labels.size) if row_weights is None else row_weights.astype(float)
        bins = np.array(loop_bins(values, each, num_bins))
        np.testing.assert_array_equal(
            equal_mass_bins(values, each, num_bins)[each > 0], bins[each > 0]
        )
        error = 0.0
        for number in range(num_bins):
            rows = (bins == number) & (each > 0)
            if rows.any():
                rate = np.average(labels[rows], weights=each[rows])
                mean = np.average(values[rows], weights=each[rows])
                error += each[rows].sum() / each.sum() * abs(rate - mean)
        found = expected_calibration_error(labels, values, num_bins=num_bins, weights=row_weights)
        np.testing.assert_allclose(found, error, atol=1e-14)


@given(tables(), st.randoms(use_true_random=False))
def test_neither_row_order_nor_repeating_rows_matters(table, random):
    labels, values, weights, num_bins = table
    before = calibration_curve(labels, values, num_bins=num_bins, weights=weights)
    rows = np.repeat(np.arange(labels.size), weights)
    rows = rows[random.sample(range(rows.size), rows.size)]
    after = calibration_curve(labels[rows], values[rows], num_bins=num_bins)
    for name in ("low", "high", "probability", "rate", "weight"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    assert after.rows.sum() == rows.size


def test_bins_of_distinct_values_have_equal_weight():
    rng = np.random.default_rng(0)
    values = rng.random(1000) ** 5
    np.testing.assert_array_equal(np.bincount(equal_mass_bins(values, np.ones(1000), 20)), 50)
    curve = calibration_curve(rng.random(1000) < values, values, num_bins=20)
    np.testing.assert_array_equal(curve.rows, 50)
    assert (curve.low[1:] > curve.high[:-1]).all()
    assert ((curve.low <= curve.probability) & (curve.probability <= curve.high)).all()
    np.testing.assert_allclose(curve.weight @ curve.rate / 1000, np.mean(curve.rate))


def test_a_large_tie_stays_whole():
    values = np.array([0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.9])
    np.testing.assert_array_equal(equal_mass_bins(values, np.ones(8), 4), [0, 2, 2, 2, 2, 2, 2, 3])


def test_a_calibrated_table_has_the_error_of_noise_alone():
    rng = np.random.default_rng(0)
    values = rng.beta(1, 9, 100_000)
    labels = rng.random(values.size) < values
    expected = 0.8 * math.sqrt(labels.mean() * 15 / labels.size)
    np.testing.assert_allclose(expected_calibration_error(labels, values), expected, rtol=0.3)
    shifted = expected_calibration_error(labels, np.clip(values + 0.05, 0, 1))
    np.testing.assert_allclose(shifted, 0.05, rtol=0.03)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_bins": 0}, "`num_bins`"),
        ({"probabilities": [0.5, 1.5]}, r"in \[0, 1\]"),
        ({"probabilities": [0.5]}, "`probabilities` must have the shape"),
        ({"labels": [0, 3]}, "0 or 1"),
        ({"weights": [0, 0]}, "all be 0"),
    ],
)
def test_bad_input_is_refused(change, message):
    arguments = {"labels": [0, 1], "probabilities": [0.1, 0.2]} | change
    with pytest.raises(ValueError, match=rf"(?s){message}.*Received:"):
        expected_calibration_error(**arguments)
