import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from sklearn.metrics import ndcg_score

from seqdenoise.evaluation.top_k import (
    group_ndcg_at_k,
    group_recall_at_k,
    ndcg_at_k,
    recall_at_k,
)

SCORES = st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 0.5, math.inf])


@st.composite
def tables(draw):
    size = draw(st.integers(1, 12))
    labels = draw(npst.arrays(np.int8, size, elements=st.integers(0, 1)))
    scores = draw(npst.arrays(np.float64, size, elements=SCORES))
    groups = draw(npst.arrays(np.int64, size, elements=st.integers(0, 3)))
    weights = draw(npst.arrays(np.int64, size, elements=st.integers(0, 2)))
    return labels, scores, groups, weights


def lists_of(labels, scores):
    """The labels in every order that sorts the scores, ties in all their orders."""
    blocks = [labels[scores == score].tolist() for score in sorted(set(scores.tolist()))[::-1]]
    for orders in itertools.product(*map(itertools.permutations, blocks)):
        yield [label for block in orders for label in block]


def expected_values(labels, scores, k):
    """NDCG and recall of one group: means over all orders of the ties."""

    def dcg(listed):
        return sum(label / math.log2(place + 2) for place, label in enumerate(listed[:k]))

    best = dcg(sorted(labels.tolist(), reverse=True))
    lists = list(lists_of(labels, scores))
    ndcg = sum(dcg(listed) / best for listed in lists) / len(lists)
    return ndcg, sum(sum(listed[:k]) / labels.sum() for listed in lists) / len(lists)


@settings(max_examples=150)
@given(tables(), st.integers(1, 5))
def test_means_over_all_orders_of_the_ties(table, k):
    labels, scores, groups, weights = table
    for row_weights in (None, weights):
        shown = np.ones(labels.size) if row_weights is None else row_weights
        total = np.zeros(3)
        for group in set(groups.tolist()):
            rows = (groups == group) & (shown > 0)
            # Seven ties of one group have 5,040 orders.
            if labels[rows].any() and rows.sum() <= 6:
                values = expected_values(labels[rows], scores[rows], k)
                total += np.array([*values, 1.0]) * shown[rows].sum()
            elif labels[rows].any():
                return
        if total[2] == 0:
            for metric in (ndcg_at_k, recall_at_k):
                with pytest.raises(ValueError, match=r"positive row.*Received:"):
                    metric(labels, scores, groups, k=k, weights=row_weights)
            continue
        np.testing.assert_allclose(
            [
                ndcg_at_k(labels, scores, groups, k=k, weights=row_weights),
                recall_at_k(labels, scores, groups, k=k, weights=row_weights),
            ],
            total[:2] / total[2],
            rtol=1e-12,
        )


def test_ndcg_equals_scikit_learn():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), rng.integers(2, 30, 40))
    labels = rng.random(groups.size) < 0.3
    scores = rng.integers(0, 8, groups.size) / 8
    by_group = group_ndcg_at_k(labels, scores, groups, k=10)
    seen = 0
    for group, value in zip(by_group.groups, by_group.value, strict=True):
        rows = groups == group
        if labels[rows].any():
            expected = ndcg_score([labels[rows]], [scores[rows]], k=10)
            np.testing.assert_allclose(value, expected, rtol=1e-12)
            seen += 1
        else:
            assert np.isnan(value)
    assert 30 < seen < 40


def test_a_table_by_hand():
    #  user a, best first: 0, 1, 1  -> DCG@2 = 1/log2(3), best 1 + 1/log2(3); recall@2 1/2; 3 rows
    #  user b, two tied:   {0, 1}   -> DCG@2 = (1 + 1/log2(3)) / 2, best 1;   recall@2 1;   2 rows
    #  user c: no positive          -> none
    labels = [0, 1, 1, 0, 1, 0]
    scores = [0.9, 0.8, 0.7, 0.5, 0.5, 0.1]
    users = list("aaabbc")
    second = 1 / math.log2(3)
    by_user = group_ndcg_at_k(labels, scores, users, k=2)
    np.testing.assert_allclose(by_user.value, [second / (1 + second), (1 + second) / 2, np.nan])
    np.testing.assert_array_equal(by_user.weight, [3, 2, 1])
    np.testing.assert_allclose(
        ndcg_at_k(labels, scores, users, k=2),
        (3 * second / (1 + second) + 2 * (1 + second) / 2) / 5,
    )
    recall = group_recall_at_k(labels, scores, users, k=2)
    np.testing.assert_array_equal(recall.value, [0.5, 1.0, np.nan])
    assert recall_at_k(labels, scores, users, k=2) == (3 * 0.5 + 2 * 1.0) / 5


@given(tables(), st.randoms(use_true_random=False))
def test_row_order_does_not_matter(table, random):
    labels, scores, groups, weights = table
    rows = np.array(random.sample(range(labels.size), labels.size))
    before = group_ndcg_at_k(labels, scores, groups, k=3, weights=weights)
    after = group_ndcg_at_k(labels[rows], scores[rows], groups[rows], k=3, weights=weights[rows])
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_row_of_weight_0_fills_no_place():
    weighted = group_recall_at_k([0, 1, 0], [0.9, 0.5, 0.1], [1, 1, 2], k=1, weights=[0, 1, 0])
    np.testing.assert_array_equal(weighted.groups, [1, 2])
    np.testing.assert_array_equal(weighted.value, [1.0, np.nan])
    np.testing.assert_array_equal(weighted.weight, [1.0, 0.0])


@pytest.mark.parametrize("metric", [ndcg_at_k, recall_at_k])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "`k`"),
        ({"labels": [0, 2]}, "0 or 1"),
        ({"labels": [0, 0]}, "positive row"),
        ({"scores": [0.1, math.nan]}, "NaN"),
        ({"groups": [1]}, "`groups` must have the shape"),
        ({"weights": [1, -1]}, "`weights`"),
    ],
)
def test_bad_input_is_refused(metric, change, message):
    arguments = {"labels": [0, 1], "scores": [0.1, 0.2], "groups": [1, 1], "k": 3} | change
    with pytest.raises(ValueError, match=rf"(?s){message}.*Received:"):
        metric(**arguments)
