"""How well scores rank positives above negatives: AUC, AUC within groups, logarithmic loss.

Every function takes optional weights of the rows, and ties count one half exactly.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class GroupAuc(NamedTuple):
    """AUC of every group, in the order of the sorted group ids.

    Attributes:
        groups: `[G]`, the distinct group ids, sorted.
        auc: float64 `[G]`; NaN where the group has one class only.
        weight: float64 `[G]`, the group's rows (or the sum of their weights), single-class groups
            included.
    """

    groups: NDArray[Any]
    auc: Floats
    weight: Floats


def check_vector(name: str, values: ArrayLike, size: int | None = None) -> NDArray[Any]:
    """Returns `values` as an array `[N]`, N >= 1 and equal to `size` where that is given.

    Raises:
        ValueError: Any other shape.
    """
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or (size is not None and array.size != size):
        expected = "[N] with N >= 1" if size is None else f"[{size}], one value a label"
        raise ValueError(f"`{name}` must have the shape {expected}. Received: shape={array.shape}")
    return array


def check_labels(labels: ArrayLike) -> NDArray[np.bool_]:
    """Returns `labels` as bool `[N]`.

    Raises:
        ValueError: A shape other than `[N]`, or a value other than 0 and 1.
    """
    array = check_vector("labels", labels)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "iuf":
        raise ValueError(f"`labels` must be numbers or bools. Received: dtype={array.dtype}")
    positive = array == 1
    wrong = ~(positive | (array == 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"`labels` must be 0 or 1. Received: labels[{row}]={array[row]}")
    return positive


def check_scores(name: str, scores: ArrayLike, size: int) -> Floats:
    """Returns `scores` as float64 `[size]`; infinities are allowed, they have a rank.

    Raises:
        ValueError: Another shape, values that are no real numbers, or a NaN.
    """
    array = check_vector(name, scores, size)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"`{name}` must be real numbers. Received: dtype={array.dtype}")
    array = array.astype(np.float64)
    nan = np.isnan(array)
    if nan.any():
        raise ValueError(
            f"`{name}` must not be NaN. Received: {int(nan.sum())} NaN, first {name}"
            f"[{int(np.argmax(nan))}]"
        )
    return array


def check_weights(weights: ArrayLike | None, size: int) -> Floats:
    """Returns `weights` as float64 `[size]`, ones where `weights` is None.

    Raises:
        ValueError: Another shape, or a weight that is negative or not finite.
    """
    if weights is None:
        return np.ones(size)
    array = check_scores("weights", weights, size)
    wrong = (array < 0) | np.isinf(array)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"`weights` must be finite and not negative. Received: weights[{row}]={array[row]}"
        )
    return array


def check_probabilities(probabilities: ArrayLike, size: int) -> Floats:
    """Returns `probabilities` as float64 `[size]`.

    Raises:
        ValueError: Another shape, or values that are no real numbers in [0, 1].
    """
    values = check_scores("probabilities", probabilities, size)
    wrong = (values < 0) | (values > 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"`probabilities` must be in [0, 1]. Received: probabilities[{row}]={values[row]}"
        )
    return values


def group_codes(name: str, groups: ArrayLike, size: int) -> tuple[NDArray[Any], Ints]:
    """Returns the sorted distinct ids `[G]` and, for every row, the position of its id `[size]`.

    Raises:
        ValueError: Another shape, ids that cannot be sorted, or a missing id. A missing value is no
            group: it would join rows that have nothing in common.
    """
    array = check_vector(name, groups, size)
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(f"`{name}` must not be missing. Received: {np.isnan(array).sum()} NaN")
    if array.dtype.kind in "iu":
        wide = array.astype(np.uint64 if array.dtype == np.uint64 else np.int64)
        low, span = wide.min(), int(wide.max()) - int(wide.min())
        if span <= 4 * size:  # close together: no need to sort
            offsets = (wide - low).astype(np.int64)
            present = np.zeros(span + 1, np.bool_)
            present[offsets] = True
            ids = np.flatnonzero(present).astype(wide.dtype) + low
            return ids.astype(array.dtype), (np.cumsum(present) - 1)[offsets]
    try:
        distinct, codes = np.unique(array, return_inverse=True)
    except TypeError as error:
        raise ValueError(
            f"`{name}` must be ids of one kind, none missing. Received: dtype={array.dtype}, "
            f"{error}"
        ) from error
    return distinct, codes.astype(np.int64)


class ScoreBlocks(NamedTuple):
    """Rows by group and, within a group, by rising score; a block is a run of equal scores.

    Attributes:
        order: int64 `[N]`, the rows in that order.
        starts: int64 `[B]`, the position in `order` where each block starts.
        codes: int64 `[B]`, each block's group.
        group_starts: int64 `[G]`, the block that each group starts with.
    """

    order: Ints
    starts: Ints
    codes: Ints
    group_starts: Ints


def _stable_order(codes: Ints) -> Ints:
    """`argsort` of numbers from 0 to 2**32 - 1, two digits to base 2**16: numpy counts those."""
    order = np.argsort((codes & 0xFFFF).astype(np.uint16), kind="stable")
    high = (codes >> 16).astype(np.uint16)
    if high.any():
        order = order[np.argsort(high[order], kind="stable")]
    return order


def score_blocks(scores: Floats, codes: Ints) -> ScoreBlocks:
    """Sorts rows for a metric within groups that treats equal scores alike.

    Args:
        scores: `[N]`, no NaN.
        codes: `[N]`, the groups as numbers, at least 0.

    Returns:
        The blocks of equal scores.
    """
    # By score, then stably by group.
    order = np.argsort(scores, kind="stable")
    order = order[_stable_order(codes[order])]
    codes, scores = codes[order], scores[order]
    new_group = np.concatenate(([True], codes[1:] != codes[:-1]))
    new_block = new_group.copy()
    new_block[1:] |= scores[1:] != scores[:-1]
    starts = np.flatnonzero(new_block)
    return ScoreBlocks(order, starts, codes[starts], np.flatnonzero(new_group[starts]))


def _auc_by_code(
    labels: NDArray[np.bool_], scores: Floats, weights: Floats, codes: Ints, num_groups: int
) -> Floats:
    """AUC of each group 0..num_groups-1, all present; NaN where a class has no weight. `[G]`."""
    blocks = score_blocks(scores, codes)
    positive = np.where(labels, weights, 0.0)[blocks.order]
    negative = np.where(labels, 0.0, weights)[blocks.order]
    # A positive beats the negatives of its group's lower blocks and half of its own block: that is
    # the midrank, and exact under ties.
    block_positive = np.add.reduceat(positive, blocks.starts)
    block_negative = np.add.reduceat(negative, blocks.starts)
    group_starts = blocks.group_starts
    below = np.cumsum(block_negative) - block_negative
    below -= below[group_starts][blocks.codes]
    won = np.add.reduceat(block_positive * (below + 0.5 * block_negative), group_starts)
    pairs = np.add.reduceat(block_positive, group_starts) * np.add.reduceat(
        block_negative, group_starts
    )
    result = np.full(num_groups, np.nan)
    np.divide(won, pairs, out=result, where=pairs > 0)
    return result


def auc(labels: ArrayLike, scores: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The share of (positive, negative) pairs that the scores put in the right order.

        AUC = sum_{i: y_i = 1, j: y_j = 0} w_i w_j ( 1[s_i > s_j] + 1/2 1[s_i = s_j] )
              / sum_{i: y_i = 1, j: y_j = 0} w_i w_j

    Computed from one sort with midranks, so tied scores count one half exactly, in any row order.

    Args:
        labels: 0/1 or bool `[N]`.
        scores: Real numbers `[N]`; only their order matters.
        weights: Optional, not negative, `[N]`; a row of weight 2 counts like two equal rows.

    Returns:
        The AUC in [0, 1].

    Raises:
        ValueError: Wrong shapes, labels other than 0 and 1, NaN scores, negative weights, or a
            class without (weighted) rows.

    Example:
        >>> auc([0, 1, 0, 1], [0.1, 0.9, 0.5, 0.5])
        0.875
    """
    positive = check_labels(labels)
    size = positive.size
    values = check_scores("scores", scores, size)
    row_weights = check_weights(weights, size)
    codes = np.zeros(size, np.int64)
    result = float(_auc_by_code(positive, values, row_weights, codes, 1)[0])
    if np.isnan(result):
        raise ValueError(
            "`labels` must hold both classes, each with a positive weight. Received: "
            f"{int(positive.sum())} positives of weight {row_weights[positive].sum():g} and "
            f"{int((~positive).sum())} negatives of weight {row_weights[~positive].sum():g}"
        )
    return result


def group_auc(
    labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, *, weights: ArrayLike | None = None
) -> GroupAuc:
    """AUC within every group, for instance every user; the definition is that of `auc`.

    Args:
        labels: 0/1 or bool `[N]`.
        scores: Real numbers `[N]`.
        groups: Ids `[N]` of any type that sorts: integers, strings.
        weights: Optional row weights, not negative, `[N]`.

    Returns:
        Ids, AUC and weight of all groups. A group of one class has no pair to order: its AUC is
        NaN, its weight is still reported.

    Raises:
        ValueError: Wrong shapes, labels other than 0 and 1, NaN scores, negative weights, missing
            group ids.

    Example:
        >>> by_user = group_auc([0, 1, 1, 0, 1], [0.1, 0.9, 0.2, 0.5, 0.5], [7, 7, 9, 7, 9])
        >>> by_user.groups.tolist(), by_user.auc.tolist(), by_user.weight.tolist()
        ([7, 9], [1.0, nan], [3.0, 2.0])
    """
    positive = check_labels(labels)
    size = positive.size
    values = check_scores("scores", scores, size)
    row_weights = check_weights(weights, size)
    distinct, codes = group_codes("groups", groups, size)
    return GroupAuc(
        groups=distinct,
        auc=_auc_by_code(positive, values, row_weights, codes, distinct.size),
        weight=np.asarray(np.bincount(codes, row_weights, minlength=distinct.size), np.float64),
    )


def gauc(
    labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, *, weights: ArrayLike | None = None
) -> float:
    """The mean of the groups' AUC, weighted by impressions: ranking quality within a user.

        GAUC = sum_g W_g AUC_g / sum_g W_g over the groups g that have both classes

    `W_g` is the group's number of rows (the sum of their weights where weights are given), positive
    and negative rows alike. A group of one class has no AUC and is left out of both sums: it says
    nothing about order, and giving it 0.5 or 1 would only pull the figure towards a constant.

    Args:
        labels: 0/1 or bool `[N]`.
        scores: Real numbers `[N]`.
        groups: Ids `[N]`, usually the user.
        weights: Optional row weights, not negative, `[N]`; they weigh the pairs within a group and
            the groups.

    Returns:
        The GAUC in [0, 1].

    Raises:
        ValueError: As `group_auc`, or no group has both classes.

    Example:
        >>> gauc([0, 1, 1, 0, 1], [0.1, 0.9, 0.2, 0.5, 0.5], ["a", "a", "b", "a", "b"])
        1.0
    """
    by_group = group_auc(labels, scores, groups, weights=weights)
    both = ~np.isnan(by_group.auc)
    if not both.any():
        raise ValueError(
            "GAUC needs at least one group with both classes. Received: "
            f"{by_group.groups.size} groups of one class each"
        )
    weight = by_group.weight[both]
    return float(weight @ by_group.auc[both] / weight.sum())


def spacing_at_one(probabilities: ArrayLike) -> float:
    """The distance from 1 to the next larger number of the same dtype; float64's for integers."""
    dtype = np.asarray(probabilities).dtype
    return float(np.finfo(dtype if dtype.kind == "f" else np.float64).eps)


def log_losses(positive: NDArray[np.bool_], probabilities: Floats, inward: float) -> Floats:
    """The negative log likelihood `[N]` of each row, probabilities kept `inward` of 0 and 1."""
    values = np.clip(probabilities, inward, 1 - inward)
    return -np.where(positive, np.log(values), np.log1p(-values))


def log_loss(
    labels: ArrayLike, probabilities: ArrayLike, *, weights: ArrayLike | None = None
) -> float:
    """Small when the probabilities are close to the labels: the mean negative log likelihood.

        -sum_i w_i ( y_i ln p_i + (1 - y_i) ln(1 - p_i) ) / sum_i w_i

    A probability of exactly 0 or 1 is moved inwards by the spacing of its own dtype at 1 (1.2e-7
    for float32), so that a saturated float32 sigmoid costs at most 15.9 and not infinity.

    Args:
        labels: 0/1 or bool `[N]`; one class alone is fine here.
        probabilities: In [0, 1], `[N]`.
        weights: Optional, not negative, `[N]`.

    Returns:
        The loss in nats, >= 0.

    Raises:
        ValueError: Wrong shapes, labels other than 0 and 1, probabilities outside [0, 1] or NaN,
            weights negative or all 0.

    Example:
        >>> round(log_loss([1, 0], [0.5, 0.5]), 4)
        0.6931
    """
    positive = check_labels(labels)
    values = check_probabilities(probabilities, positive.size)
    row_weights = check_weights(weights, positive.size)
    total = row_weights.sum()
    if total == 0:
        raise ValueError("`weights` must not all be 0. Received: a sum of 0")
    losses = log_losses(positive, values, spacing_at_one(probabilities))
    return float(row_weights @ losses / total)
