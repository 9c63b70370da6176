"""The hidden state behind a simulated log: a long-tail catalogue and users with drifting interests.

Shape letters: I items, U users, D days, K interests a user has at once, C categories.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdenoise.data.simulation_spec import SimulationSpec

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

INTEREST_DECAY = 0.6
_BRANDS_PER_CATEGORY = 5
_NUM_SEGMENTS = 6
# Mandelbrot's shift: without it the first item alone would be twice as popular as the second, and
# no item could stand in for it at equal popularity.
_RANK_SHIFT = 10
ACTIVITY_LEVELS = ("low", "medium", "high")
_ACTIVITY_SHARES = np.array([0.5, 0.35, 0.15])
_ACTIVITY_FACTORS = np.array([0.5, 1.0, 8 / 3])  # mean 1 under the shares


@dataclass(frozen=True)
class Catalogue:
    """The items.

    Attributes:
        category: int64 `[I]`.
        brand: int64 `[I]`; a brand belongs to one category.
        price: float64 `[I]`, above 0.
        quality: float64 `[I]`, about standard normal; slightly higher for popular items.
        popularity: float64 `[I]`, sums to 1.
    """

    category: Ints
    brand: Ints
    price: Floats
    quality: Floats
    popularity: Floats


@dataclass(frozen=True)
class Population:
    """The users.

    Attributes:
        segment: int64 `[U]`; users of a segment lean towards the same categories.
        activity: int64 `[U]`, index into `ACTIVITY_LEVELS`.
        activity_factor: float64 `[U]`, multiplies every rate of the user; about 1 on average.
        bias: float64 `[U]`, standard normal.
        attention: int64 `[D, U, K + 1]`, distinct categories: the interests, strongest first, then
            the distraction: what the user is shown and tempted by without being interested.
    """

    segment: Ints
    activity: Ints
    activity_factor: Floats
    bias: Floats
    attention: Ints

    @property
    def strength(self) -> Floats:
        """Interest strength by place, float64 `[K]`, 1 for the first."""
        return INTEREST_DECAY ** np.arange(self.attention.shape[2] - 1, dtype=np.float64)

    def affinity(self, day: Ints, user: Ints, category: Ints) -> Floats:
        """Strength of each user's interest in a category on a day.

        Args:
            day: int64 `[N]`; days past the last count as the last.
            user: int64 `[N]`.
            category: int64 `[N]`.

        Returns:
            float64 `[N]` in [0, 1]; 0 outside the user's interests.
        """
        current = self.current(day, user)
        return np.asarray((current == category[:, None]) @ self.strength, dtype=np.float64)

    def current(self, day: Ints, user: Ints) -> Ints:
        """The interests of each user on a day: int64 `[N, K]` for `day` and `user` int64 `[N]`."""
        return self._on(day, user)[:, :-1]

    def distraction(self, day: Ints, user: Ints) -> Ints:
        """The distraction of each user on a day: int64 `[N]` for `day` and `user` int64 `[N]`."""
        return self._on(day, user)[:, -1]

    def _on(self, day: Ints, user: Ints) -> Ints:
        return self.attention[np.minimum(day, len(self.attention) - 1), user]


class CategorySampler:
    """Draws items of given categories in proportion to weights.

    Args:
        category: int64 `[I]`, every value of `range(C)` at least once.
        weight: float64 `[I]`, above 0.
    """

    def __init__(self, category: Ints, weight: Floats) -> None:
        self._order = np.argsort(category, kind="stable")
        self._end = np.cumsum(np.bincount(category))
        self._start = np.concatenate([[0], self._end[:-1]])
        # One cumulative sum over all categories; a category is a stretch of it.
        self._cumulative = np.concatenate([[0.0], np.cumsum(weight[self._order])])

    def draw(self, category: Ints, rng: np.random.Generator) -> Ints:
        """One item of each category: int64 `[N]` for int64 `[N]`."""
        start, end = self._start[category], self._end[category]
        low, high = self._cumulative[start], self._cumulative[end]
        point = low + (high - low) * rng.random(len(category))
        place = np.searchsorted(self._cumulative, point, side="right") - 1
        # Rounding may put the point on the stretch's end.
        return np.asarray(self._order[np.clip(place, start, end - 1)], dtype=np.int64)


def draw_catalogue(spec: SimulationSpec, rng: np.random.Generator) -> Catalogue:
    """Draws the items of a simulated log."""
    size = spec.num_items
    weight = (rng.permutation(size) + _RANK_SHIFT + 1.0) ** -spec.popularity_exponent
    popularity = weight / weight.sum()
    share = (np.arange(spec.num_categories) + 5.0) ** -0.5
    rest = rng.choice(spec.num_categories, size - spec.num_categories, p=share / share.sum())
    # Every category gets one item first, so that each can be drawn from.
    category = rng.permutation(np.concatenate([np.arange(spec.num_categories), rest]))
    brand_share = 1.0 / np.arange(1, _BRANDS_PER_CATEGORY + 1)
    brand = category * _BRANDS_PER_CATEGORY + rng.choice(
        _BRANDS_PER_CATEGORY, size, p=brand_share / brand_share.sum()
    )
    level = rng.normal(3.0, 0.6, spec.num_categories)
    price = np.round(np.exp(level[category] + rng.normal(0.0, 0.5, size)), 2) + 0.01
    log_weight = np.log(weight)
    spread = log_weight.std()
    centred = (log_weight - log_weight.mean()) / (spread if spread > 0 else 1.0)
    quality = 0.3 * centred + np.sqrt(1 - 0.3**2) * rng.normal(size=size)
    return Catalogue(
        category=category.astype(np.int64),
        brand=brand.astype(np.int64),
        price=price,
        quality=quality,
        popularity=popularity,
    )


def draw_population(
    spec: SimulationSpec,
    catalogue: Catalogue,
    users_rng: np.random.Generator,
    interests_rng: np.random.Generator,
) -> Population:
    """Draws the users of a simulated log and their interests on every day."""
    segment = users_rng.integers(_NUM_SEGMENTS, size=spec.num_users)
    activity = users_rng.choice(len(ACTIVITY_LEVELS), spec.num_users, p=_ACTIVITY_SHARES)
    bias = users_rng.normal(size=spec.num_users)
    mass = np.bincount(catalogue.category, catalogue.popularity)
    taste = users_rng.dirichlet(np.full(spec.num_categories, 0.5), _NUM_SEGMENTS)
    leaning = 0.5 * taste + 0.5 * mass
    return Population(
        segment=segment.astype(np.int64),
        activity=activity.astype(np.int64),
        activity_factor=_ACTIVITY_FACTORS[activity],
        bias=bias,
        attention=_draw_attention(spec, leaning, segment, interests_rng),
    )


def _draw_attention(
    spec: SimulationSpec, leaning: Floats, segment: Ints, rng: np.random.Generator
) -> Ints:
    """Attention `[D, U, K + 1]` from the segments' leaning `[S, C]` (rows sum to 1)."""
    places = spec.num_interests + 1
    # Gumbel's trick: the largest perturbed log-probabilities are draws without replacement.
    keys = np.log(leaning[segment]) + rng.gumbel(size=(spec.num_users, spec.num_categories))
    attention = np.empty((spec.num_days, spec.num_users, places), dtype=np.int64)
    attention[0] = np.argsort(-keys, axis=1)[:, :places]
    cumulative = np.cumsum(leaning, axis=1)
    for day in range(1, spec.num_days):
        attention[day] = attention[day - 1]
        for place in range(places):
            point = rng.random(spec.num_users)
            fresh = (point[:, None] > cumulative[segment, :-1]).sum(axis=1)
            drifts = rng.random(spec.num_users) < spec.drift_rate
            known = (attention[day] == fresh[:, None]).any(axis=1)
            # A category already there stays where it is: the places are distinct.
            attention[day, drifts & ~known, place] = fresh[drifts & ~known]
    return attention
