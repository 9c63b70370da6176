"""How much each field of an event says about each other one, from counts."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqdenoise.data.columns import IntArray, decoded
from seqdenoise.data.vocabulary import Column


def mutual_information(
    columns: Mapping[str, Column], *, counts: IntArray | None = None, num_bins: int = 16
) -> dict[str, dict[str, float]]:
    r"""The mutual information of every two columns, in nats.

    $$ I(x, y) = \sum_{u, v} p(u, v) \log \frac{p(u, v)}{p(x = u)\, p(y = v)} $$

    with the observed shares for `p`. Of a column with itself it is the column's entropy. The shares
    overstate what columns of many rare values know about each other, the more the fewer rows there
    are; a column that determines another (an item its brand) is exact.

    Integers, booleans and strings count as categories. Floats are cut into bins of about equally
    many rows, equal values together. Null is a value of its own, and so is NaN, the same one.

    Args:
        columns: Mapping from name to a flat column, all of the same number of rows.
        counts: Optional int64 `[rows]`, how often each row counts, at least 0.
        num_bins: Number of bins of a float column.

    Returns:
        Mapping from name to name to nats to 12 places, at least 0 and symmetric; 0 without rows.

    Raises:
        ValueError: The columns differ in their number of rows.

    References:
        Yao et al. (2021), "Self-supervised Learning for Large-scale Item Recommendations", equation
        4, with the shares of a log for probabilities, and with bins for floats.

    Example:
        >>> known = mutual_information(
        ...     {"item": np.array([1, 1, 2, 3]), "brand": pa.array(["x", "x", "x", None])}
        ... )
        >>> round(known["item"]["brand"], 4), known["brand"]["item"] == known["brand"]["brand"]
        (0.5623, True)
    """
    arrays = {name: _to_arrow(column) for name, column in columns.items()}
    rows = {name: len(array) for name, array in arrays.items()}
    if counts is None:
        counts = np.ones(next(iter(rows.values()), 0), np.int64)
    if set(rows.values()) - {len(counts)}:
        raise ValueError(
            f"The columns and `counts` must have one length. Received: {rows}, counts {len(counts)}"
        )
    codes = {name: _codes(array, counts, num_bins) for name, array in arrays.items()}
    result: dict[str, dict[str, float]] = {name: {} for name in codes}
    names = list(codes)
    for place, name in enumerate(names):
        for other in names[place:]:
            nats = _of_codes(codes[name], codes[other], counts)
            result[name][other] = result[other][name] = nats
    return {name: {other: result[name][other] for other in names} for name in names}


def _to_arrow(column: Column) -> pa.Array:
    return pa.array(column) if isinstance(column, np.ndarray) else decoded(column)


def _codes(column: pa.Array, counts: IntArray, num_bins: int) -> IntArray:
    """The number of each row's value or bin, from 0 on."""
    if not pa.types.is_floating(column.type):
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    missing = np.isnan(values)  # Nulls are NaN by now.
    codes = np.full(len(values), num_bins)
    distinct, number = np.unique(values[~missing], return_inverse=True)
    weights = np.bincount(number, counts[~missing], len(distinct))
    # A value belongs to the bin of its middle row, so that bins stay equal where values are many
    # and a frequent value keeps one to itself.
    middle = np.cumsum(weights) - weights / 2
    total = max(weights.sum(), 1)
    codes[~missing] = (middle * num_bins / total).astype(np.int64)[number]
    return codes


def _of_codes(first: IntArray, second: IntArray, counts: IntArray) -> float:
    total = int(counts.sum())
    if not total:
        return 0.0
    size = int(second.max()) + 1
    pairs, number = np.unique(first * size + second, return_inverse=True)
    joint = np.bincount(number, counts, len(pairs))
    of_first = np.bincount(first, counts)[pairs // size]
    of_second = np.bincount(second, counts)[pairs % size]
    seen = joint > 0
    joint, of_first, of_second = joint[seen], of_first[seen], of_second[seen]
    # log(n_uv N / (n_u n_v)) of whole numbers; their products may exceed 2^53, their logs do not.
    logs = np.log(joint) + np.log(total) - np.log(of_first) - np.log(of_second)
    # Fields that both determine a third tie, whatever the order of the sums above.
    return round(max(float(joint @ logs) / total, 0.0), 12)
