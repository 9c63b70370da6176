"""A hash of 64-bit numbers: fast, without keys, the same on every machine."""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def mix64(x: Words) -> Words:
    """One step of SplitMix64: a bijection in which every input bit moves every output bit.

    Args:
        x: uint64 of any shape.

    Returns:
        uint64 of the same shape.

    References:
        Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014,
        section 4.

    Example:
        >>> mix64(np.array([1234567], np.uint64))
        array([6457827717110365317], dtype=uint64)
    """
    return finalise64(x + np.uint64(0x9E3779B97F4A7C15))


def finalise64(x: Words) -> Words:
    """The last part of `mix64` alone, which leaves 0 as it is.

    Args:
        x: uint64 of any shape.

    Returns:
        uint64 of the same shape.
    """
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x
