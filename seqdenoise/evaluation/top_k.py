"""NDCG@k and recall@k within groups, exact under ties.

Tied rows have no order, and a sort would give them one that depends on the order of the input. Both
metrics are therefore expected values over all orders of the tied rows, in closed form.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdenoise.evaluation.ranking import (
    Floats,
    check_labels,
    check_scores,
    check_weights,
    group_codes,
    score_blocks,
)


class GroupTopK(NamedTuple):
    """A top-k metric of every group, in the order of the sorted group ids.

    Attributes:
        groups: `[G]`, the distinct group ids, sorted.
        value: float64 `[G]`; NaN where the group has no positive row.
        weight: float64 `[G]`, the group's rows (or the sum of their weights).
    """

    groups: NDArray[Any]
    value: Floats
    weight: Floats


def _by_group(
    labels: ArrayLike,
    scores: ArrayLike,
    groups: ArrayLike,
    weights: ArrayLike | None,
    gain_of_top: Floats,
    best_of_positives: Floats | None,
) -> GroupTopK:
    """The expected gain of each group's list, divided by the best that it could have.

    Args:
        labels: As the public functions.
        scores: As the public functions.
        groups: As the public functions.
        weights: As the public functions.
        gain_of_top: `[k + 1]`, entry n the gain of a list whose first n rows are positive.
        best_of_positives: `[k + 1]`, entry n the best gain of a list with n positives, or with k
            or more; None: the number of positives.
    """
    positive = check_labels(labels)
    size = positive.size
    values = check_scores("scores", scores, size)
    row_weights = check_weights(weights, size)
    distinct, codes = group_codes("groups", groups, size)
    weight = np.asarray(np.bincount(codes, row_weights, minlength=distinct.size), np.float64)
    result = np.full(distinct.size, np.nan)
    if not row_weights.all():
        shown = row_weights > 0
        positive, values, codes = positive[shown], values[shown], codes[shown]
    if not positive.any():
        return GroupTopK(distinct, result, weight)
    blocks = score_blocks(-values, codes)
    k = gain_of_top.size - 1
    sizes = np.diff(blocks.starts, append=positive.size)
    positives = np.add.reduceat(positive[blocks.order].astype(np.int64), blocks.starts)
    blocks_of_group = np.diff(blocks.group_starts, append=blocks.starts.size)
    above = blocks.starts - np.repeat(blocks.starts[blocks.group_starts], blocks_of_group)
    # A block's rows fill the places after those above it, each place positive in a share
    # `positives / sizes` of the orders.
    reached = gain_of_top[np.minimum(above + sizes, k)] - gain_of_top[np.minimum(above, k)]
    gain = np.add.reduceat(positives / sizes * reached, blocks.group_starts)
    total = np.add.reduceat(positives, blocks.group_starts)
    best = total if best_of_positives is None else best_of_positives[np.minimum(total, k)]
    present = blocks.codes[blocks.group_starts]
    defined = total > 0
    result[present[defined]] = gain[defined] / best[defined]
    return GroupTopK(distinct, result, weight)


def _check_k(k: int) -> None:
    if k < 1:
        raise ValueError(f"`k` must be at least 1. Received: {k}")


def _mean(name: str, by_group: GroupTopK) -> float:
    defined = ~np.isnan(by_group.value)
    weight = by_group.weight[defined]
    if not defined.any():
        raise ValueError(
            f"{name} needs at least one group with a positive row. Received: "
            f"{by_group.groups.size} groups without"
        )
    return float(weight @ by_group.value[defined] / weight.sum())


def group_ndcg_at_k(
    labels: ArrayLike,
    scores: ArrayLike,
    groups: ArrayLike,
    *,
    k: int,
    weights: ArrayLike | None = None,
) -> GroupTopK:
    """NDCG@k within every group; definition and arguments are those of `ndcg_at_k`.

    Returns:
        Ids, NDCG@k and weight of all groups. A group without a positive row has no ideal list: its
        NDCG is NaN, its weight is still reported.

    Raises:
        ValueError: As `ndcg_at_k`, but for the last.

    Example:
        >>> group_ndcg_at_k([1, 0, 0], [0.9, 0.1, 0.2], [7, 7, 9], k=10).value.tolist()
        [1.0, nan]
    """
    _check_k(k)
    discounts = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.concatenate(([0.0], np.cumsum(discounts)))
    return _by_group(labels, scores, groups, weights, ideal, ideal)


def ndcg_at_k(
    labels: ArrayLike,
    scores: ArrayLike,
    groups: ArrayLike,
    *,
    k: int,
    weights: ArrayLike | None = None,
) -> float:
    """Near 1 when each group's positives are at the top of its list: the mean NDCG@k of the groups.

        DCG_g  = sum_{i <= k} y_(i) / log2(i + 1), (i) the row with the i-th largest score
        NDCG_g = E[DCG_g] / max DCG_g
        NDCG@k = sum_g W_g NDCG_g / sum_g W_g over the groups g that have a positive

    The expectation E is over all orders of tied rows: a block of m tied rows, r of them positive,
    gives each of its places the gain r / m. `W_g` is the group's number of rows, as in `gauc` (the
    sum of their weights where weights are given). A group without a positive is left out of both
    sums; one of positives alone counts, with 1.

    Args:
        labels: 0/1 or bool `[N]`.
        scores: Real numbers `[N]`; only their order matters.
        groups: Ids `[N]`: the user, the request, or any other key.
        k: Places of the list that count, at least 1; a shorter list is taken whole.
        weights: Optional, not negative, `[N]`. They weigh the groups, not the places within: a row
            fills one place, and none if its weight is 0.

    Returns:
        The NDCG@k in [0, 1].

    Raises:
        ValueError: Wrong shapes, labels other than 0 and 1, NaN scores, negative weights, missing
            group ids, `k` below 1, or no group with a positive.

    Reference:
        F. McSherry and M. Najork, "Computing information retrieval performance measures
        efficiently in the presence of tied scores", ECIR 2008, section 2.6.

    Example:
        >>> round(ndcg_at_k([0, 1, 0], [0.9, 0.5, 0.5], ["a"] * 3, k=2), 4)  # half of 1 / log2(3)
        0.3155
    """
    return _mean(f"NDCG@{k}", group_ndcg_at_k(labels, scores, groups, k=k, weights=weights))


def group_recall_at_k(
    labels: ArrayLike,
    scores: ArrayLike,
    groups: ArrayLike,
    *,
    k: int,
    weights: ArrayLike | None = None,
) -> GroupTopK:
    """Recall@k within every group; definition and arguments are those of `recall_at_k`.

    Returns:
        Ids, recall@k and weight of all groups, NaN for groups without a positive row.

    Raises:
        ValueError: As `recall_at_k`, but for the last.

    Example:
        >>> group_recall_at_k([1, 1, 0], [0.9, 0.1, 0.2], [7, 7, 9], k=1).value.tolist()
        [0.5, nan]
    """
    _check_k(k)
    return _by_group(labels, scores, groups, weights, np.arange(k + 1.0), None)


def recall_at_k(
    labels: ArrayLike,
    scores: ArrayLike,
    groups: ArrayLike,
    *,
    k: int,
    weights: ArrayLike | None = None,
) -> float:
    """The share of a group's positives that are among its k best, as a mean over the groups.

        recall_g = E[sum_{i <= k} y_(i)] / sum_i y_(i), (i) the row with the i-th largest score
        recall@k = sum_g W_g recall_g / sum_g W_g over the groups g that have a positive

    Ties, groups and weights are treated as in `ndcg_at_k`. A group with more than k positives
    cannot reach 1.

    Args:
        labels: 0/1 or bool `[N]`.
        scores: Real numbers `[N]`; only their order matters.
        groups: Ids `[N]`: the user, the request, or any other key.
        k: Length of the list, at least 1.
        weights: Optional, not negative, `[N]`; they weigh the groups.

    Returns:
        The recall@k in [0, 1].

    Raises:
        ValueError: As `ndcg_at_k`.

    Example:
        >>> recall_at_k([0, 1, 0], [0.9, 0.5, 0.5], ["a"] * 3, k=2)
        0.5
    """
    return _mean(f"recall@{k}", group_recall_at_k(labels, scores, groups, k=k, weights=weights))
