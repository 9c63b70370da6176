import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from seqdenoise.data.ordering import order_by, stable_order

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.int64, st.integers(0, 30), elements=st.integers(0, 5)),
    st.sampled_from([1, 2**40, 2**55, 2**57, 2**58, 2**59, 2**60]),
    st.sampled_from([0, -3, INT64_MIN, INT64_MAX - 5 * 2**60, 2**62]),
)
@example(np.array([5, 0, 5, 0]), 2**60, INT64_MIN)
@example(np.array([5, 0, 5, 0]), 1, 2**61 - 4)  # would wrap unless the lowest counts as 0
def test_stable_order_is_that_of_argsort(values, scale, low):
    """Small spans are packed beside positions, wide ones cannot be; ties keep their order."""
    values = np.minimum(values, (INT64_MAX - low) // scale if low > 0 else 5) * scale + low
    np.testing.assert_array_equal(stable_order(values), np.argsort(values, kind="stable"))


@pytest.mark.parametrize("ends", [(INT64_MIN, INT64_MAX), (INT64_MAX - 1, INT64_MAX)])
def test_the_ends_of_int64(ends):
    values = np.array([ends[1], ends[0], ends[1], ends[0]])
    assert stable_order(values).tolist() == [1, 3, 0, 2]


def test_sorted_values_keep_their_order():
    assert stable_order(np.array([2, 2, 3])).tolist() == [0, 1, 2]
    assert stable_order(np.array([], np.int64)).tolist() == []


@given(
    arrays(np.int64, 12, elements=st.integers(-2, 2)),
    arrays(np.int64, 12, elements=st.integers(-2, 2)),
)
def test_order_by_sorts_by_both(major, minor):
    np.testing.assert_array_equal(order_by(major, minor), np.lexsort((minor, major)))
