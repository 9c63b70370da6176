"""p values of many tests, corrected for there being many."""

import numpy as np
from numpy.typing import ArrayLike

from seqdenoise.evaluation.ranking import Floats


def holm(p_values: ArrayLike) -> Floats:
    """Adjusted so that any wrong finding at all is rare, whatever the tests' dependence.

    With the p values sorted, `p_(1) <= ... <= p_(m)`,

        adjusted_(i) = max_{j <= i} min(1, (m - j + 1) p_(j))

    Calling those below `a` found gives a wrong finding with a chance of at most `a`.

    Args:
        p_values: `[M]`.

    Returns:
        The adjusted p values `[M]`, in the order given.

    Reference:
        S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
        Statistics 6 (1979).

    Example:
        >>> holm([0.01, 0.04, 0.03]).round(9).tolist()
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(values.size, 0, -1)
    result = np.empty(values.size)
    result[order] = np.minimum(np.maximum.accumulate(factors * values[order]), 1.0)
    return result


def benjamini_hochberg(p_values: ArrayLike) -> Floats:
    """Adjusted so that few of the findings are wrong.

    With the p values sorted, `p_(1) <= ... <= p_(m)`,

        adjusted_(i) = min_{j >= i} min(1, m / j p_(j))

    Calling those below `a` found keeps the expected share of wrong ones among them below `a`, if
    the tests are independent or positively dependent, as slices of the same users tend to be.

    Args:
        p_values: `[M]`.

    Returns:
        The adjusted p values `[M]`, in the order given.

    Reference:
        Y. Benjamini and Y. Hochberg, "Controlling the false discovery rate", Journal of the Royal
        Statistical Society B 57 (1995).

    Example:
        >>> benjamini_hochberg([0.01, 0.04, 0.03]).round(9).tolist()
        [0.03, 0.04, 0.04]
    """
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values, kind="stable")[::-1]
    factors = values.size / np.arange(values.size, 0, -1)
    result = np.empty(values.size)
    result[order] = np.minimum(np.minimum.accumulate(factors * values[order]), 1.0)
    return result
