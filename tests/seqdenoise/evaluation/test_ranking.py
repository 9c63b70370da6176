import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from sklearn.metrics import log_loss as sk_log_loss
from sklearn.metrics import roc_auc_score

from seqdenoise.evaluation.ranking import (
    auc,
    gauc,
    group_auc,
    group_codes,
    log_loss,
    score_blocks,
)

# Few distinct scores, so that ties abound; infinities and both zeros belong to the order.
SCORES = st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 0.25, 0.5, 1e300, math.inf])
FINITE = st.sampled_from([-1e9, -1.5, -0.0, 0.0, 0.25, 0.5, 0.75, 1e300])


@st.composite
def tables(draw, scores=SCORES, num_groups=4):
    size = draw(st.integers(2, 30))
    labels = draw(npst.arrays(np.int8, size, elements=st.integers(0, 1)))
    values = draw(npst.arrays(np.float64, size, elements=scores))
    groups = draw(npst.arrays(np.int64, size, elements=st.integers(0, num_groups - 1)))
    weights = draw(npst.arrays(np.int64, size, elements=st.integers(0, 3)))
    return labels, values, groups, weights


def loop_auc(labels, scores, weights):
    """The definition over all pairs, in exact arithmetic; None without a pair."""
    won, pairs = Fraction(0), Fraction(0)
    for label_i, score_i, weight_i in zip(labels, scores, weights, strict=True):
        for label_j, score_j, weight_j in zip(labels, scores, weights, strict=True):
            if label_i == 1 and label_j == 0:
                weight = Fraction(float(weight_i)) * Fraction(float(weight_j))
                pairs += weight
                if score_i > score_j:
                    won += weight
                elif score_i == score_j:
                    won += weight / 2
    return None if pairs == 0 else won / pairs


def loop_gauc(labels, scores, groups, weights):
    top, bottom = Fraction(0), Fraction(0)
    for group in set(groups.tolist()):
        rows = groups == group
        one = loop_auc(labels[rows], scores[rows], weights[rows])
        if one is not None:
            weight = sum(Fraction(float(w)) for w in weights[rows])
            top += weight * one
            bottom += weight
    return None if bottom == 0 else top / bottom


@settings(max_examples=100)
@given(tables())
def test_auc_is_the_share_of_ordered_pairs(table):
    labels, scores, _, weights = table
    for each in (None, weights):
        expected = loop_auc(labels, scores, np.ones(labels.size) if each is None else each)
        if expected is None:
            with pytest.raises(ValueError, match=r"both classes.*Received:"):
                auc(labels, scores, weights=each)
        else:
            np.testing.assert_allclose(
                auc(labels, scores, weights=each), float(expected), rtol=1e-14
            )


@settings(max_examples=100)
@given(tables())
def test_gauc_is_the_weighted_mean_over_groups(table):
    labels, scores, groups, weights = table
    for each in (None, weights):
        full = np.ones(labels.size) if each is None else each
        expected = loop_gauc(labels, scores, groups, full)
        if expected is None:
            with pytest.raises(ValueError, match=r"both classes.*Received:"):
                gauc(labels, scores, groups, weights=each)
        else:
            np.testing.assert_allclose(
                gauc(labels, scores, groups, weights=each), float(expected), rtol=1e-14
            )


@given(tables(scores=FINITE))
def test_auc_equals_scikit_learn(table):
    labels, scores, _, weights = table
    weights = weights + 0.5
    if labels.min() == labels.max():
        return
    np.testing.assert_allclose(auc(labels, scores), roc_auc_score(labels, scores), rtol=1e-12)
    np.testing.assert_allclose(
        auc(labels, scores, weights=weights),
        roc_auc_score(labels, scores, sample_weight=weights),
        rtol=1e-12,
    )


@given(tables(scores=FINITE))
def test_gauc_of_any_table_equals_a_loop_over_scikit_learn(table):
    labels, scores, groups, _ = table
    won = rows_won = 0.0
    for group in np.unique(groups):
        rows = groups == group
        if len(set(labels[rows].tolist())) == 2:
            won += rows.sum() * roc_auc_score(labels[rows], scores[rows])
            rows_won += rows.sum()
    if rows_won:
        np.testing.assert_allclose(gauc(labels, scores, groups), won / rows_won, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_gauc_equals_a_loop_over_scikit_learn(dtype, weighted):
    rng = np.random.default_rng(1)
    size = 4000
    users = rng.zipf(1.4, size) % 700  # a few heavy users, many of one row or one class
    labels = rng.random(size) < 0.15
    scores = np.round(labels + rng.normal(0, 1.5, size), 1).astype(dtype)
    weights = rng.gamma(2.0, size=size) if weighted else None
    expected_auc, expected_weight, single = [], [], 0
    for user in np.unique(users):
        rows = users == user
        if labels[rows].min() == labels[rows].max():
            single += 1
            continue
        sample_weight = None if weights is None else weights[rows]
        expected_auc.append(roc_auc_score(labels[rows], scores[rows], sample_weight=sample_weight))
        expected_weight.append(rows.sum() if weights is None else weights[rows].sum())
    assert single > 100
    assert len(expected_auc) > 80

    by_user = group_auc(labels, scores, users, weights=weights)
    both = ~np.isnan(by_user.auc)
    np.testing.assert_array_equal(by_user.groups, np.unique(users))
    np.testing.assert_allclose(by_user.auc[both], expected_auc, rtol=1e-10)
    np.testing.assert_allclose(by_user.weight[both], expected_weight, rtol=1e-12)
    np.testing.assert_allclose(by_user.weight.sum(), size if weights is None else weights.sum())
    np.testing.assert_allclose(
        gauc(labels, scores, users, weights=weights),
        np.average(expected_auc, weights=expected_weight),
        rtol=1e-11,
    )


def test_a_table_worked_by_hand():
    #  user a: positives 0.9, 0.5; negatives 0.5, 0.1  -> (1 + 1 + 1/2 + 1) / 4 = 7/8, 4 rows
    #  user b: positive 0.2; negatives 0.3, 0.1        -> (0 + 1) / 2 = 1/2, 3 rows
    #  user c: positives only                          -> none
    labels = [1, 1, 0, 0, 1, 0, 0, 1, 1]
    scores = [0.9, 0.5, 0.5, 0.1, 0.2, 0.3, 0.1, 0.7, 0.8]
    users = list("aaaabbbcc")
    by_user = group_auc(labels, scores, users)
    assert by_user.groups.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(by_user.auc, [7 / 8, 1 / 2, np.nan])
    np.testing.assert_array_equal(by_user.weight, [4, 3, 2])
    assert gauc(labels, scores, users) == (4 * 7 / 8 + 3 * 1 / 2) / 7


@given(tables(), st.randoms(use_true_random=False))
def test_row_order_does_not_matter(table, random):
    labels, scores, groups, _ = table
    order = np.array(random.sample(range(labels.size), labels.size))
    before = group_auc(labels, scores, groups)
    after = group_auc(labels[order], scores[order], groups[order])
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.int64, np.uint64, np.bool_, np.float32, "U3"]
)
@pytest.mark.parametrize("ids", [[5, 3, 5, 100, 3], [7], [127, 0, 127], [1, 0, 0]])
def test_group_codes_equal_numpy_unique(dtype, ids):
    groups = np.array(ids).astype(dtype)
    for array in (groups, np.array(groups.tolist(), object)):
        distinct, codes = group_codes("groups", array, array.size)
        expected, inverse = np.unique(array, return_inverse=True)
        np.testing.assert_array_equal(distinct, expected)
        assert distinct.dtype == expected.dtype
        np.testing.assert_array_equal(codes, inverse)
        assert codes.dtype == np.int64


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint64])
def test_group_codes_at_the_ends_of_a_type(dtype):
    ends = np.iinfo(dtype)
    for ids in ([ends.min, ends.min + 2], [ends.max, ends.max - 1], [ends.max, ends.min, ends.max]):
        groups = np.array(ids * 40, dtype)
        distinct, codes = group_codes("groups", groups, groups.size)
        np.testing.assert_array_equal(distinct, sorted(set(ids)))
        np.testing.assert_array_equal(distinct[codes], groups)


def test_many_groups_are_sorted_like_few():
    rng = np.random.default_rng(0)
    codes = rng.choice([0, 1, 65_535, 65_536, 65_537, 200_000, 2**32 - 1], 500)
    scores = rng.integers(0, 3, 500).astype(float)
    np.testing.assert_array_equal(score_blocks(scores, codes).order, np.lexsort((scores, codes)))


def test_constant_scores_are_exactly_one_half():
    rng = np.random.default_rng(0)
    labels = rng.random(1000) < 0.1
    assert auc(labels, np.full(1000, 0.1, np.float32)) == 0.5
    assert gauc(labels, np.full(1000, 0.1), rng.integers(0, 20, 1000)) == 0.5


def test_log_loss_equals_scikit_learn():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 500)
    weights = rng.gamma(2.0, size=500)
    probabilities = rng.random(500)
    np.testing.assert_allclose(
        log_loss(labels, probabilities), sk_log_loss(labels, probabilities), rtol=1e-12
    )
    np.testing.assert_allclose(
        log_loss(labels, probabilities, weights=weights),
        sk_log_loss(labels, probabilities, sample_weight=weights),
        rtol=1e-12,
    )


@pytest.mark.parametrize(("dtype", "bits"), [(np.float32, 23), (np.float64, 52)])
def test_log_loss_of_a_saturated_probability_is_finite(dtype, bits):
    np.testing.assert_allclose(
        log_loss([0, 1], np.array([1, 0], dtype)), bits * math.log(2), rtol=1e-6
    )
    assert log_loss([1, 1], np.array([1, 1], dtype)) < 2e-7  # one class alone is fine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], []), "`labels` must have the shape"),
        (([[0, 1]], [0.1, 0.2], [1, 1]), "`labels` must have the shape"),
        (([0, 1], [[0.1, 0.2]], [1, 1]), "`scores` must have the shape"),
        (([0, 1], [0.1, 0.2, 0.3], [1, 1]), "`scores` must have the shape"),
        (([0, 1], [0.1, 0.2], [1]), "`groups` must have the shape"),
        (([0, 2], [0.1, 0.2], [1, 1]), "0 or 1"),
        (([0.0, 0.5], [0.1, 0.2], [1, 1]), "0 or 1"),
        (([0.0, math.nan], [0.1, 0.2], [1, 1]), "0 or 1"),
        ((["0", "1"], [0.1, 0.2], [1, 1]), "numbers or bools"),
        (([0, 1], [0.1, math.nan], [1, 1]), "NaN"),
        (([0, 1], ["a", "b"], [1, 1]), "real numbers"),
        (([0, 1], [0.1, 0.2], [1.0, math.nan]), "missing"),
        (([0, 1], [0.1, 0.2], np.array([1, None], object)), "none missing"),
        (([0, 1], [0.1, 0.2], [1, 2]), "both classes"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=rf"(?s){message}.*Received:"):
        gauc(*arguments)


@pytest.mark.parametrize("weights", [[1, -1], [1, math.inf], [1, math.nan], [1], [[1, 1]]])
@pytest.mark.parametrize("metric", [auc, log_loss])
def test_bad_weights_are_refused(metric, weights):
    with pytest.raises(ValueError, match=r"`weights`.*Received:"):
        metric([0, 1], [0.1, 0.2], weights=weights)


@pytest.mark.parametrize("labels", [[0, 0], [1, 1]])
def test_one_class_has_no_auc(labels):
    with pytest.raises(ValueError, match=r"both classes.*Received:"):
        auc(labels, [0.1, 0.2])


@pytest.mark.parametrize("probabilities", [[0.5, 1.1], [-0.1, 0.5], [0.5, math.nan]])
def test_log_loss_wants_probabilities(probabilities):
    with pytest.raises(ValueError, match=r"`probabilities`.*Received:"):
        log_loss([0, 1], probabilities)


def test_log_loss_wants_some_weight():
    with pytest.raises(ValueError, match=r"all be 0.*Received:"):
        log_loss([0, 1], [0.5, 0.5], weights=[0, 0])
