"""Simulated multi-behaviour logs in which the noise events are known.

Users have a few category interests that drift from day to day. Pages of impressions mix what is
popular with what interests the user; a click follows a logistic model of the user's current
interest in the item's category, the item's quality and the user's bias; carts and purchases follow
clicks. Organic clicks and searches come from current interest too. Noise clicks and carts are laid
over the finished log, so labels cannot depend on them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from seqdenoise.data.simulated_noise import DAY_MS, NoiseEvents, draw_noise
from seqdenoise.data.simulated_world import (
    ACTIVITY_LEVELS,
    Catalogue,
    CategorySampler,
    Floats,
    Ints,
    Population,
    draw_catalogue,
    draw_population,
)
from seqdenoise.data.simulation_spec import NOISE_KINDS, SimulationSpec

EVENT_TYPES = ("click", "cart", "purchase", "search")
NOISY_TYPES = ("click", "cart")
EPOCH_MS = 1_704_067_200_000
"""2024-01-01T00:00Z, when every simulated log starts."""

_HOUR_MS = 3_600_000
_DAYTIME = np.array(
    [2, 1, 1, 1, 1, 2, 3, 5, 6, 6, 6, 7, 8, 7, 6, 6, 6, 7, 8, 9, 10, 10, 8, 5], float
)
_SCENE_SHARES = np.array([0.6, 0.3, 0.1])
_SCENE_EFFECTS = np.array([0.0, 0.4, -0.6])
_EVENING_EFFECT = 0.2
_CART_BIAS, _CART_INTEREST = -1.4, 1.2
_PURCHASE_BIAS, _PURCHASE_QUALITY = -0.6, 0.3
_CLICK_DELAY_MS, _CART_DELAY_MS, _PURCHASE_DELAY_MS = 20_000.0, 120_000.0, 3_600_000.0


@dataclass(frozen=True)
class _Events:
    """Real events; every array is `[N]`; `offset` is milliseconds since the log's start."""

    user: Ints
    item: Ints
    type: Ints
    offset: Ints


@dataclass(frozen=True)
class _Pages:
    """Impressions; every array is `[N]`."""

    user: Ints
    item: Ints
    offset: Ints
    scene: Ints


def simulate_log(**parameters: Any) -> dict[str, pa.Table]:
    """Simulates a log whose noise events are known.

    Args:
        **parameters: The fields of `SimulationSpec`, which gives their meaning and defaults.

    Returns:
        Tables by the name of the file they belong in:

        - `events`: `user`, `item` int64, `type` string (`click`, `cart`, `purchase`, `search`),
          `timestamp` int64 in milliseconds; sorted by time.
        - `truth`: row i is about row i of `events`: `is_noise` bool, `noise_kind` string (empty
          for real events). Searches and purchases are never noise.
        - `impressions`: `user`, `item`, `timestamp` int64, labels `is_click` and `is_purchase`
          int8, context `hour` (UTC) and `scene` int64. An impression's own events carry its time
          stamp or a later one.
        - `truth_impressions`: row i is about row i of `impressions`: `click_probability` float64,
          what a perfect model would say.
        - `items`: `item`, `category`, `brand` int64, `price` float64.
        - `users`: `user`, `segment` int64, `activity` string.

        Same parameters, same tables. The real events, the impressions and the labels are the same
        whatever `noise_rate` and `noise_kinds` are.

    Raises:
        ValueError: A parameter is out of range.
        TypeError: A parameter is unknown.

    Example:
        >>> log = simulate_log(num_users=50, num_items=100, num_categories=8, seed=1)
        >>> sorted(log)
        ['events', 'impressions', 'items', 'truth', 'truth_impressions', 'users']
        >>> log["events"].num_rows == log["truth"].num_rows
        True
    """
    spec = SimulationSpec(**parameters)
    # The order is part of the contract with old seeds: append, never insert.
    names = ("items", "users", "interests", "pages", "outcomes", "organic", "search", "noise")
    children = np.random.SeedSequence(spec.seed).spawn(len(names))
    rngs = {name: np.random.default_rng(c) for name, c in zip(names, children, strict=True)}

    catalogue = draw_catalogue(spec, rngs["items"])
    population = draw_population(spec, catalogue, rngs["users"], rngs["interests"])
    sampler = CategorySampler(catalogue.category, catalogue.popularity**spec.interest_tail)

    pages = _draw_pages(spec, catalogue, population, sampler, rngs["pages"])
    probability = _click_probability(spec, catalogue, population, pages)
    click = rngs["outcomes"].random(len(probability)) < probability
    delay = _delays(len(click), _CLICK_DELAY_MS, rngs["outcomes"])
    # Half of the clicks are logged under the page's own time stamp: ties are ordinary.
    delay[rngs["outcomes"].random(len(click)) < 0.5] = 0
    answered, bought = _follow_up(
        catalogue,
        population,
        user=pages.user[click],
        item=pages.item[click],
        offset=(pages.offset + delay)[click],
        rng=rngs["outcomes"],
    )
    purchase = np.zeros(len(click), dtype=bool)
    purchase[click] = bought

    organic = _draw_organic(spec, catalogue, population, sampler, rngs["organic"])
    search = _draw_search(spec, population, sampler, rngs["search"])
    real = _concatenate(answered, organic, search)
    noise = _lay_noise(spec, catalogue, population, real, rngs["noise"])
    events, truth = _event_tables(real, noise)
    impressions, truth_impressions = _impression_tables(pages, probability, click, purchase)
    return {
        "events": events,
        "impressions": impressions,
        "items": pa.table(
            {
                "item": np.arange(spec.num_items, dtype=np.int64),
                "category": catalogue.category,
                "brand": catalogue.brand,
                "price": catalogue.price,
            }
        ),
        "users": pa.table(
            {
                "user": np.arange(spec.num_users, dtype=np.int64),
                "segment": population.segment,
                "activity": _strings(population.activity, ACTIVITY_LEVELS),
            }
        ),
        "truth": truth,
        "truth_impressions": truth_impressions,
    }


def _sigmoid(logit: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-logit)), dtype=np.float64)


def _delays(size: int, mean_ms: float, rng: np.random.Generator) -> Ints:
    return rng.exponential(mean_ms, size).astype(np.int64)


def _draw_visits(
    spec: SimulationSpec, population: Population, rate: float, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Users and times `[N]` of visits at a mean of `rate` a day, more in the evening."""
    count = rng.poisson(rate * population.activity_factor, (spec.num_days, spec.num_users))
    day, user = np.divmod(np.repeat(np.arange(count.size), count.ravel()), spec.num_users)
    hour = rng.choice(24, len(day), p=_DAYTIME / _DAYTIME.sum())
    return user, day * DAY_MS + hour * _HOUR_MS + rng.integers(_HOUR_MS, size=len(day))


def _interest_category(
    population: Population, user: Ints, offset: Ints, rng: np.random.Generator
) -> Ints:
    """A category of current interest for each row, in proportion to its strength."""
    strength = population.strength
    place = rng.choice(len(strength), len(user), p=strength / strength.sum())
    current = population.current(offset // DAY_MS, user)
    return np.asarray(current[np.arange(len(user)), place], dtype=np.int64)


def _draw_pages(
    spec: SimulationSpec,
    catalogue: Catalogue,
    population: Population,
    sampler: CategorySampler,
    rng: np.random.Generator,
) -> _Pages:
    user, offset = _draw_visits(spec, population, spec.pages_per_day, rng)
    scene = rng.choice(len(_SCENE_SHARES), len(user), p=_SCENE_SHARES)
    user, offset, scene = (np.repeat(x, spec.page_size) for x in (user, offset, scene))
    liked = sampler.draw(_interest_category(population, user, offset, rng), rng)
    tempting = sampler.draw(population.distraction(offset // DAY_MS, user), rng)
    popular = rng.choice(len(catalogue.category), len(user), p=catalogue.popularity)
    source = rng.random(len(user))
    shown = spec.interest_exposure + spec.distraction_exposure
    item = np.where(source < shown, tempting, popular)
    item = np.where(source < spec.interest_exposure, liked, item)
    # A page shows an item once; and rows come out in order of time.
    _, first = np.unique(np.stack([offset, user, item]), axis=1, return_index=True)
    return _Pages(user=user[first], item=item[first], offset=offset[first], scene=scene[first])


def _click_probability(
    spec: SimulationSpec, catalogue: Catalogue, population: Population, pages: _Pages
) -> Floats:
    affinity = population.affinity(
        pages.offset // DAY_MS, pages.user, catalogue.category[pages.item]
    )
    evening = pages.offset // _HOUR_MS % 24 >= 18
    return _sigmoid(
        spec.click_bias
        + spec.interest_effect * affinity
        + spec.quality_effect * catalogue.quality[pages.item]
        + spec.user_effect * population.bias[pages.user]
        + _SCENE_EFFECTS[pages.scene]
        + _EVENING_EFFECT * evening
    )


def _follow_up(
    catalogue: Catalogue,
    population: Population,
    *,
    user: Ints,
    item: Ints,
    offset: Ints,
    rng: np.random.Generator,
) -> tuple[_Events, NDArray[np.bool_]]:
    """Clicks with the carts and purchases they lead to; and for each click, was it a purchase."""
    size = len(user)
    affinity = population.affinity(offset // DAY_MS, user, catalogue.category[item])
    cart = rng.random(size) < _sigmoid(_CART_BIAS + _CART_INTEREST * affinity)
    cart_offset = offset + _delays(size, _CART_DELAY_MS, rng)
    buys = rng.random(size) < _sigmoid(_PURCHASE_BIAS + _PURCHASE_QUALITY * catalogue.quality[item])
    purchase = cart & buys
    purchase_offset = cart_offset + _delays(size, _PURCHASE_DELAY_MS, rng)
    parts = [
        _of_type("click", user, item, offset),
        _of_type("cart", user[cart], item[cart], cart_offset[cart]),
        _of_type("purchase", user[purchase], item[purchase], purchase_offset[purchase]),
    ]
    return _concatenate(*parts), purchase


def _draw_organic(
    spec: SimulationSpec,
    catalogue: Catalogue,
    population: Population,
    sampler: CategorySampler,
    rng: np.random.Generator,
) -> _Events:
    user, offset = _draw_visits(spec, population, spec.organic_per_day, rng)
    item = sampler.draw(_interest_category(population, user, offset, rng), rng)
    events, _ = _follow_up(catalogue, population, user=user, item=item, offset=offset, rng=rng)
    return events


def _draw_search(
    spec: SimulationSpec,
    population: Population,
    sampler: CategorySampler,
    rng: np.random.Generator,
) -> _Events:
    user, offset = _draw_visits(spec, population, spec.search_per_day, rng)
    # A search states an intent: always the strongest interest.
    strongest = population.current(offset // DAY_MS, user)[:, 0]
    return _of_type("search", user, sampler.draw(strongest, rng), offset)


def _of_type(name: str, user: Ints, item: Ints, offset: Ints) -> _Events:
    code = np.full(len(user), EVENT_TYPES.index(name), dtype=np.int64)
    return _Events(user=user, item=item, type=code, offset=offset)


def _concatenate(*parts: _Events) -> _Events:
    return _Events(
        user=np.concatenate([part.user for part in parts]),
        item=np.concatenate([part.item for part in parts]),
        type=np.concatenate([part.type for part in parts]),
        offset=np.concatenate([part.offset for part in parts]),
    )


def _lay_noise(
    spec: SimulationSpec,
    catalogue: Catalogue,
    population: Population,
    real: _Events,
    rng: np.random.Generator,
) -> dict[str, NoiseEvents]:
    codes = [EVENT_TYPES.index(name) for name in NOISY_TYPES]
    event_count = np.bincount(
        real.item[np.isin(real.type, codes)], minlength=len(catalogue.category)
    )
    noise = {}
    for name, code in zip(NOISY_TYPES, codes, strict=True):
        of_type = real.type == code
        noise[name] = draw_noise(
            spec,
            catalogue,
            population,
            user=real.user[of_type],
            item=real.item[of_type],
            offset=real.offset[of_type],
            event_count=event_count,
            rng=rng,
        )
    return noise


def _strings(code: Ints, names: tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(code), pa.array(names)).cast(pa.string())


def _event_tables(real: _Events, noise: dict[str, NoiseEvents]) -> tuple[pa.Table, pa.Table]:
    laid = [_of_type(name, part.user, part.item, part.offset) for name, part in noise.items()]
    events = _concatenate(real, *laid)
    kind = np.concatenate(
        [np.zeros(len(real.user), dtype=np.int64), *(part.kind + 1 for part in noise.values())]
    )
    # Sorted by content, so that no row's place says whether it was laid on last.
    order = np.lexsort((kind, events.item, events.type, events.user, events.offset))
    kind = kind[order]
    table = pa.table(
        {
            "user": events.user[order],
            "item": events.item[order],
            "type": _strings(events.type[order], EVENT_TYPES),
            "timestamp": EPOCH_MS + events.offset[order],
        }
    )
    truth = pa.table({"is_noise": kind > 0, "noise_kind": _strings(kind, ("", *NOISE_KINDS))})
    return table, truth


def _impression_tables(
    pages: _Pages, probability: Floats, click: NDArray[np.bool_], purchase: NDArray[np.bool_]
) -> tuple[pa.Table, pa.Table]:
    impressions = pa.table(
        {
            "user": pages.user,
            "item": pages.item,
            "timestamp": EPOCH_MS + pages.offset,
            "is_click": click.astype(np.int8),
            "is_purchase": purchase.astype(np.int8),
            "hour": pages.offset // _HOUR_MS % 24,
            "scene": pages.scene.astype(np.int64),
        }
    )
    return impressions, pa.table({"click_probability": probability})
