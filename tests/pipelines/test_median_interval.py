from itertools import product

import numpy as np
import pytest

from pipelines.median_interval import median_interval


@pytest.mark.parametrize("number", [1, 3, 5, 6, 9, 12])
def test_the_median_is_held_as_often_as_promised(number):
    """Every way in which values can lie below (-) and above (+) the median, all equally likely."""
    held = []
    for signs in product((-1.0, 1.0), repeat=number):
        low, high, confidence = median_interval([sign * (2 + i) for i, sign in enumerate(signs)])
        held.append(low < 0 < high)
    assert np.mean(held) == pytest.approx(confidence)
    if number >= 6:
        assert confidence >= 0.95


def test_it_is_as_short_as_the_confidence_allows():
    values = np.random.default_rng(0).permutation(30) + 1.0
    low, high, confidence = median_interval(values)
    assert (low, high) == (10, 21)
    assert confidence == pytest.approx(0.957, abs=5e-4)
    assert median_interval(values, 0.5)[:2] == (13, 18)


def test_no_values_are_refused():
    with pytest.raises(ValueError, match="expected at least one value"):
        median_interval([])
