"""An interval for a median, of any distribution."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import binom


def median_interval(
    values: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float]:
    """Two of the values that the true median lies between.

    How many independent values are below their median is binomial, whatever their distribution, so
    the k-th smallest and the k-th largest hold it between them with a known probability. The
    largest `k` that keeps the confidence is taken.

    Args:
        values: At least one.
        confidence: Wanted probability that the interval holds the median.

    Returns:
        Lowest, highest, and the probability that they hold the median. With fewer values than the
        confidence needs (6 for 0.95) these are the extremes, and the probability is smaller.

    Raises:
        ValueError: There are no values.

    Example:
        >>> low, high, held = median_interval([3.0, 1.0, 2.0, 5.0, 4.0, 6.0])
        >>> low, high, round(held, 3)
        (1.0, 6.0, 0.969)
    """
    ordered = np.sort(np.asarray(values, np.float64))
    number = ordered.size
    if not number:
        raise ValueError("expected at least one value. Received: none")
    below = max(1, int(binom.ppf((1 - confidence) / 2, number, 0.5)))
    held = 1 - 2 * float(binom.cdf(below - 1, number, 0.5))
    return float(ordered[below - 1]), float(ordered[number - below]), max(held, 0.0)
