"""How a cost grows: a power of the size, fitted on logarithms."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PowerLaw:
    """`cost = scale * size**exponent`, the line of least squares through the logarithms.

    Attributes:
        exponent: The slope.
        standard_error: Of the exponent, from how far the points lie from the line: noise, and a
            cost that is no power of the size. None with two points.
        scale: The cost at size 1.
        num_points: How many points were fitted.
        last_exponent: The slope between the two largest sizes, which a part of the cost that does
            not grow disturbs least.
    """

    exponent: float
    standard_error: float | None
    scale: float
    num_points: int
    last_exponent: float


def fit_power_law(sizes: Sequence[float], costs: Sequence[float]) -> PowerLaw | None:
    """Fits a power law to the points with a positive cost; the others have no logarithm.

    Args:
        sizes: Positive and different, in increasing order.
        costs: As many.

    Returns:
        The fit, or None where fewer than two points are left.

    Raises:
        ValueError: Not as many costs as sizes, or sizes are not positive and increasing.
    """
    if (
        len(sizes) != len(costs)
        or min(sizes, default=0) <= 0
        or min(np.diff(sizes), default=1) <= 0
    ):
        raise ValueError(
            "expected increasing sizes above 0, and as many costs. "
            f"Received: sizes={list(sizes)}, costs={list(costs)}"
        )
    points = [(size, cost) for size, cost in zip(sizes, costs, strict=True) if cost > 0]
    if len(points) < 2:
        return None
    x, y = np.log(np.array(points, np.float64)).T
    error = None
    if len(points) > 2:
        # Not SciPy's `linregress`, whose error is NaN where all costs are the same.
        (slope, intercept), covariance = np.polyfit(x, y, 1, cov=True)
        error = float(np.sqrt(covariance[0, 0]))
    else:
        slope, intercept = np.polyfit(x, y, 1)
    return PowerLaw(
        exponent=float(slope),
        standard_error=error,
        scale=float(np.exp(intercept)),
        num_points=len(points),
        last_exponent=float((y[-1] - y[-2]) / (x[-1] - x[-2])),
    )
