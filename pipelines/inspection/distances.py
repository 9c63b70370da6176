"""Exact optimal-transport distances between the types of events, by POT."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# POT loads every framework it finds; these distances are NumPy's.
os.environ.setdefault("POT_BACKEND_DISABLE_TENSORFLOW", "1")
import ot

Floats = npt.NDArray[np.float64]


class Cloud(NamedTuple):
    """The embedded events of one type in some rows.

    Attributes:
        events: float `[R, L, D]`.
        mask: bool `[R, L]`, True for a real event.
    """

    events: npt.NDArray[np.floating]
    mask: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TypeDistance:
    """How far the events of one type lie from those of another.

    Attributes:
        noisy: The one type.
        trusted: The other.
        num_rows: Rows that have events of both.
        own: Mean over these rows of the distance between their events.
        others: The same with the trusted events of the next such row, so of another user. NaN for
            fewer than two rows.
        num_events: Events of either type that the pooled distance is between.
        pooled: The distance between drawn events of all rows.
    """

    noisy: str
    trusted: str
    num_rows: int
    own: float
    others: float
    num_events: tuple[int, int]
    pooled: float


def exact_distance(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    r"""The exact optimal-transport cost between two sets of vectors, all of one weight.

    $$ \min_P \sum_{ij} P_{ij} (1 - \cos(x_i, y_j)), \quad P 1 = 1/n, \quad P^T 1 = 1/m $$

    A zero vector has no direction and costs 1 to every other.

    Args:
        x: float `[n, D]`, n >= 1.
        y: float `[m, D]`, m >= 1.

    Returns:
        The cost, in [0, 2].

    Example:
        >>> round(exact_distance([[1.0, 0.0], [0.0, 1.0]], [[0.0, 3.0]]), 6)
        0.5
    """
    cost = 1 - _unit(x) @ _unit(y).T
    return float(ot.emd2([], [], np.maximum(cost, 0), numItermax=10_000_000))


def _unit(x: npt.ArrayLike) -> Floats:
    array = np.asarray(x, np.float64)
    norm = np.linalg.norm(array, axis=-1, keepdims=True)
    return np.divide(array, norm, out=np.zeros_like(array), where=norm > 0)


def type_distances(
    clouds: Mapping[str, Cloud],
    pairs: Sequence[tuple[str, str]],
    *,
    max_events: int = 500,
    seed: int = 0,
) -> list[TypeDistance]:
    """Distances between types, row by row and over all rows.

    Args:
        clouds: By type, the events of the same rows, one row a user.
        pairs: A noisy and a trusted type each.
        max_events: How many events of a type are drawn for the pooled distance.
        seed: Seed of that draw.

    Returns:
        One entry a pair. A distance without events on either side is NaN.
    """
    return [_distance(clouds, *pair, max_events, seed) for pair in pairs]


def _distance(
    clouds: Mapping[str, Cloud], noisy: str, trusted: str, max_events: int, seed: int
) -> TypeDistance:
    one, other = clouds[noisy], clouds[trusted]
    both = np.flatnonzero(one.mask.any(axis=1) & other.mask.any(axis=1))

    def mean(trusted_rows: npt.NDArray[np.int64]) -> float:
        if not len(both):
            return np.nan
        return float(
            np.mean(
                [
                    exact_distance(one.events[i][one.mask[i]], other.events[j][other.mask[j]])
                    for i, j in zip(both, trusted_rows, strict=True)
                ]
            )
        )

    random = np.random.default_rng(seed)
    drawn = [random.permutation(cloud.events[cloud.mask])[:max_events] for cloud in (one, other)]
    return TypeDistance(
        noisy=noisy,
        trusted=trusted,
        num_rows=len(both),
        own=mean(both),
        others=mean(np.roll(both, -1)) if len(both) > 1 else np.nan,
        num_events=(len(drawn[0]), len(drawn[1])),
        pooled=exact_distance(*drawn) if all(map(len, drawn)) else np.nan,
    )
