"""Noise events for a simulated log: clicks and carts that no interest is behind."""

from dataclasses import dataclass

import numpy as np

from seqdenoise.data.simulated_world import Catalogue, Floats, Ints, Population
from seqdenoise.data.simulation_spec import NOISE_KINDS, SimulationSpec

DAY_MS = 86_400_000
_JITTER_MS = 3_600_000


@dataclass(frozen=True)
class NoiseEvents:
    """Noise events of one type; every array is `[N]`.

    Attributes:
        user: int64.
        item: int64.
        offset: int64, milliseconds since the log's start.
        kind: int64, index into `NOISE_KINDS`.
    """

    user: Ints
    item: Ints
    offset: Ints
    kind: Ints


def num_noise_events(num_real: int, noise_rate: float) -> int:
    """How many noise events make up `noise_rate` of all events beside `num_real` real ones.

    Example:
        >>> num_noise_events(700, 0.3)
        300
    """
    return round(num_real * noise_rate / (1 - noise_rate))


def draw_noise(
    spec: SimulationSpec,
    catalogue: Catalogue,
    population: Population,
    *,
    user: Ints,
    item: Ints,
    offset: Ints,
    event_count: Ints,
    rng: np.random.Generator,
) -> NoiseEvents:
    """Draws the noise events that go with the real events of one type.

    Each noise event borrows user and time (within an hour) from a real event drawn at random, its
    host, so that neither how active a user is nor when betrays it.

    Args:
        spec: `noise_rate` and `noise_kinds` count here.
        catalogue: The items.
        population: The users and their interests.
        user: int64 `[R]`, users of the real events of this type.
        item: int64 `[R]`, their items.
        offset: int64 `[R]`, their times in milliseconds since the log's start.
        event_count: int64 `[I]`, how many real events of any noisy type each item has: what the
            popularity of an item looks like in the log.
        rng: The stream to draw from.

    Returns:
        The noise events, `noise_rate` of the type's events within rounding.
    """
    size = num_noise_events(len(user), spec.noise_rate)
    weights = np.array([spec.noise_kinds.get(kind, 0.0) for kind in NOISE_KINDS])
    if size == 0:
        empty = np.empty(0, dtype=np.int64)
        return NoiseEvents(user=empty, item=empty, offset=empty, kind=empty)
    host = rng.integers(len(user), size=size)
    jitter = rng.integers(-_JITTER_MS, _JITTER_MS, size=size, endpoint=True)
    noise_offset = np.maximum(offset[host] + jitter, 0)
    kind = rng.choice(len(NOISE_KINDS), size, p=weights / weights.sum()).astype(np.int64)

    drawn = np.empty(size, dtype=np.int64)
    of = {name: np.flatnonzero(kind == code) for code, name in enumerate(NOISE_KINDS)}
    drawn[of["random"]] = rng.integers(len(catalogue.category), size=len(of["random"]))
    drawn[of["popular"]] = rng.choice(
        len(catalogue.category), len(of["popular"]), p=catalogue.popularity
    )
    rows = of["matched"]
    drawn[rows] = draw_matched(
        item[host[rows]],
        population.distraction(noise_offset[rows] // DAY_MS, user[host[rows]]),
        category=catalogue.category,
        popularity=event_count,
        rng=rng,
    )
    return NoiseEvents(user=user[host], item=drawn, offset=noise_offset, kind=kind)


def draw_matched(
    host_item: Ints,
    target: Ints,
    *,
    category: Ints,
    popularity: Ints | Floats,
    rng: np.random.Generator,
) -> Ints:
    """Swaps each item for one of a target category at near-equal popularity rank.

    The two items of the category whose ranks enclose the host's are drawn with the odds that make
    the expected rank the host's own, so the swapped items are neither more nor less popular than
    the originals. Past the category's most or least popular item, that item is taken: the very head
    is a little thinner among swapped items.

    Args:
        host_item: int64 `[N]`.
        target: int64 `[N]`, the replacement's category; each has at least one item.
        category: int64 `[I]`.
        popularity: `[I]`, any scale; ties are broken at random.
        rng: The stream to draw from.

    Returns:
        int64 `[N]`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> draw_matched(
        ...     np.array([0]),
        ...     np.array([1]),
        ...     category=np.array([0, 1, 1, 1]),
        ...     popularity=np.array([9, 1, 8, 10]),
        ...     rng=rng,
        ... ).item() in (2, 3)
        True
    """
    size = len(category)
    by_rank = np.lexsort((rng.random(size), popularity))
    rank = np.empty(size, dtype=np.int64)
    rank[by_rank] = np.arange(size)
    key = category * size + rank
    order = np.argsort(key)
    end = np.cumsum(np.bincount(category))
    start = end - np.bincount(category)

    wanted = target * size + rank[host_item]
    upper = np.searchsorted(key[order], wanted)
    lower = np.clip(upper - 1, start[target], end[target] - 1)
    upper = np.clip(upper, start[target], end[target] - 1)
    gap = key[order[upper]] - key[order[lower]]
    odds = (wanted - key[order[lower]]) / np.maximum(gap, 1)
    return np.asarray(order[np.where(rng.random(len(odds)) < odds, upper, lower)], dtype=np.int64)
