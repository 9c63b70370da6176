"""Stable sorting of integers, faster than `np.argsort`."""

import numpy as np

from seqdenoise.data.columns import IntArray


def stable_order(values: IntArray) -> IntArray:
    """What `np.argsort(values, kind="stable")` gives.

    Several times faster where a value and its position share one int64, because plain sorting is;
    that is where `(max - min) * len < 2**62`. Sorted input is only looked at.

    Args:
        values: int64 `[n]`.

    Returns:
        int64 `[n]`.

    Example:
        >>> stable_order(np.array([7, 5, 7, 5]))
        array([1, 3, 0, 2])
    """
    count = len(values)
    if not count or (values[1:] >= values[:-1]).all():
        return np.arange(count)
    bits = count.bit_length()
    low, high = int(values.min()), int(values.max())
    if (high - low) >> (63 - bits):
        return np.argsort(values, kind="stable")
    packed = values - low
    packed <<= bits
    packed |= np.arange(count)
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def order_by(major: IntArray, minor: IntArray) -> IntArray:
    """The stable order by `major`, and by `minor` where that is equal; int64, like theirs."""
    by_minor = stable_order(minor)
    return by_minor[stable_order(major[by_minor])]
