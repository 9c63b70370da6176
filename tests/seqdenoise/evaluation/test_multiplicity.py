import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from seqdenoise.evaluation.multiplicity import benjamini_hochberg, holm

P_VALUES = npst.arrays(
    np.float64, st.integers(1, 7), elements=st.sampled_from([0.0, 1e-9, 0.001, 0.01, 0.04, 0.3, 1])
)


@given(P_VALUES)
def test_holm_is_the_closed_test_of_bonferroni(p_values):
    """A test is found if every intersection with it is: the principle that Holm's steps shorten."""
    numbers = range(p_values.size)
    subsets = [
        s for size in range(1, p_values.size + 1) for s in itertools.combinations(numbers, size)
    ]
    expected = [
        max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in subsets if i in s)
        for i in numbers
    ]
    np.testing.assert_allclose(holm(p_values), expected, rtol=1e-14)


@given(P_VALUES)
def test_benjamini_hochberg_equals_scipy(p_values):
    np.testing.assert_allclose(
        benjamini_hochberg(p_values), stats.false_discovery_control(p_values), rtol=1e-14
    )


@pytest.mark.parametrize("correct", [holm, benjamini_hochberg])
def test_one_test_needs_no_correction(correct):
    np.testing.assert_array_equal(correct([0.03]), [0.03])
    assert correct([]).shape == (0,)
