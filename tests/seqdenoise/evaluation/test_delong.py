import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from seqdenoise.evaluation.delong import delong

SCORES = st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 0.25, 0.5, math.inf])


def psi(x, y):
    return 1.0 if x > y else 0.5 if x == y else 0.0


def double_loop(labels, first, second):
    """The paper's definition: structural components, covariance matrices, the contrast (-1, 1)."""
    m, n = int(sum(labels)), int(len(labels) - sum(labels))
    aucs, v10, v01 = [], [], []
    for scores in (first, second):
        xs = [score for score, label in zip(scores, labels, strict=True) if label]
        ys = [score for score, label in zip(scores, labels, strict=True) if not label]
        aucs.append(sum(psi(x, y) for x in xs for y in ys) / (m * n))
        v10.append([sum(psi(x, y) for y in ys) / n for x in xs])
        v01.append([sum(psi(x, y) for x in xs) / m for y in ys])

    def covariance(components, r, s, size):
        return sum(
            (components[r][i] - aucs[r]) * (components[s][i] - aucs[s]) for i in range(size)
        ) / (size - 1)

    variance = 0.0
    for r, one in enumerate((-1, 1)):
        for s, other in enumerate((-1, 1)):
            variance += one * other * (covariance(v10, r, s, m) / m + covariance(v01, r, s, n) / n)
    return aucs[0], aucs[1], variance


@st.composite
def tables(draw):
    size = draw(st.integers(4, 25))
    labels = draw(npst.arrays(np.int8, size, elements=st.integers(0, 1)))
    return labels, *(draw(npst.arrays(np.float64, size, elements=SCORES)) for _ in range(2))


@settings(max_examples=150)
@given(tables())
def test_equals_the_double_loop_under_ties(table):
    labels, first, second = table
    assume(2 <= labels.sum() <= labels.size - 2)
    result = delong(labels, first, second)
    auc_first, auc_second, variance = double_loop(labels, first, second)
    np.testing.assert_allclose([result.first, result.second], [auc_first, auc_second], rtol=1e-13)
    np.testing.assert_allclose(result.variance, variance, rtol=1e-10, atol=1e-15)


def test_equals_the_double_loop_on_random_scores():
    rng = np.random.default_rng(0)
    labels = rng.random(200) < 0.3
    first = np.round(labels + rng.normal(0, 2.0, 200), 1)
    second = np.round(first + labels + rng.normal(0, 1.0, 200), 1)
    result = delong(labels, first, second, confidence=0.9)
    auc_first, auc_second, variance = double_loop(labels, first, second)
    difference = auc_second - auc_first
    np.testing.assert_allclose(
        [result.first, result.second, result.difference, result.variance],
        [auc_first, auc_second, difference, variance],
        rtol=1e-12,
    )
    normal = stats.norm(difference, math.sqrt(variance))
    np.testing.assert_allclose([result.low, result.high], normal.interval(0.9))
    np.testing.assert_allclose(result.p_value, 2 * stats.norm.sf(difference / math.sqrt(variance)))


def test_a_table_by_hand():
    #             x1  x2   y1  y2
    #  labels      1   1    0   0
    #  first       3   1    2   1    V10 = (1, 1/4)  V01 = (1/2, 3/4)  AUC 5/8
    #  second      3   2    1   1    V10 = (1, 1)    V01 = (1, 1)      AUC 1
    #  less                          D10 = (0, 3/4)  D01 = (1/2, 1/4)  3/8
    #  variances, divisor 1: of D10 9/32, of D01 1/32; so 9/32 / 2 + 1/32 / 2 = 5/32
    result = delong([1, 1, 0, 0], [3, 1, 2, 1], [3, 2, 1, 1])
    assert (result.first, result.second, result.difference) == (5 / 8, 1, 3 / 8)
    assert result.variance == 5 / 32
    np.testing.assert_allclose(result.p_value, 2 * stats.norm.sf((3 / 8) / math.sqrt(5 / 32)))
    np.testing.assert_allclose(result.low, 3 / 8 - 1.959964 * math.sqrt(5 / 32), rtol=1e-6)


def test_covers_where_rows_are_independent():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        labels = np.arange(120) < 40
        shared = labels + rng.normal(size=120)
        first, second = shared + rng.normal(0, 0.7, (2, 120))
        result = delong(labels, first, second)
        covered += result.low <= 0 <= result.high
    assert 0.93 < covered / 1000 < 0.97


def test_nothing_differs():
    same = delong([1, 1, 0, 0], [3, 1, 2, 1], [30, 10, 20, 10])
    assert (same.difference, same.variance, same.p_value) == (0, 0, 1)
    certain = delong([1, 1, 0, 0], [1, 1, 2, 2], [2, 2, 1, 1])
    assert (certain.difference, certain.variance, certain.p_value) == (1, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [1, 1, 1, 1]}, "not defined for weighted rows"),
        ({"labels": [1, 0, 0, 0]}, "two rows of each class.*1 positives and 3 negatives"),
        ({"second": [0.1, 0.2, 0.3]}, "`second` must have the shape"),
        ({"first": [0.1, 0.2, 0.3, math.nan]}, "`first` must not be NaN"),
        ({"confidence": 95}, "`confidence`"),
    ],
)
def test_bad_input_is_refused(change, message):
    arguments = {"labels": [1, 1, 0, 0], "first": [3, 1, 2, 1], "second": [3, 2, 1, 1]} | change
    with pytest.raises(ValueError, match=rf"(?s)(?=.*{message}).*Received:"):
        delong(**arguments)
