"""Users dealt evenly, and the same way on every machine: into buckets, or into a sample."""

import numpy as np
import numpy.typing as npt

from seqdenoise.data.columns import IntArray
from seqdenoise.data.mixing import mix64


def user_buckets(users: IntArray, num_buckets: int) -> npt.NDArray[np.int32]:
    """The bucket of each user, by a hash: all rows of a user share one.

    Args:
        users: int64 of any shape.
        num_buckets: From 1 to 2**31 - 1.

    Returns:
        int32 of the same shape, in `[0, num_buckets)`.

    Raises:
        ValueError: `num_buckets` is out of range.

    Example:
        >>> user_buckets(np.array([7, -1, 7, 8]), 4)
        array([1, 3, 1, 2], dtype=int32)
    """
    if not 1 <= num_buckets < 2**31:
        raise ValueError(f"expected 1 <= num_buckets < 2**31. Received: {num_buckets}")
    # The high half times the number of buckets, shifted: even, and without a division.
    high = mix64(users.astype(np.uint64)) >> np.uint64(32)
    return ((high * np.uint64(num_buckets)) >> np.uint64(32)).astype(np.int32)


def user_fraction(users: IntArray) -> npt.NDArray[np.float64]:
    """A number for each user, spread evenly over [0, 1): users below `x` are a sample of share `x`.

    Args:
        users: int64 of any shape.

    Returns:
        float64 of the same shape.

    Example:
        >>> kept = user_fraction(np.arange(10_000)) < 0.1
        >>> float(kept.mean())
        0.0999
    """
    return (mix64(users.astype(np.uint64)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
