"""What a simulated log looks like: every knob, its default and its range."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

NOISE_KINDS = ("random", "popular", "matched")


def _equal_kinds() -> Mapping[str, float]:
    return dict.fromkeys(NOISE_KINDS, 1.0)


@dataclass(frozen=True, kw_only=True)
class SimulationSpec:
    """The parameters of `simulate_log`.

    Attributes:
        seed: The one seed. Every component draws from its own child stream, so changing one
            component's parameters leaves the draws of the others as they were.
        num_users: Users; ids are 0 to `num_users - 1`.
        num_items: Items; ids are 0 to `num_items - 1`.
        num_categories: Categories, each with at least one item.
        num_days: Days in the log.
        pages_per_day: Mean number of pages shown to a user in a day. One page is `page_size`
            impressions with one time stamp.
        page_size: Impressions on a page.
        organic_per_day: Mean number of clicks in a day that come from no logged impression.
        search_per_day: Mean number of searches of a user in a day.
        num_interests: Categories a user is interested in at any time; the strength of the k-th is
            `0.6 ** k`.
        drift_rate: Probability that one interest, or the distraction, changes overnight.
        popularity_exponent: Item popularity is `(rank + 10) ** -popularity_exponent`.
        interest_tail: Within a category of interest an item is drawn in proportion to
            `popularity ** interest_tail`: below 1, interest reaches further into the tail than
            popularity-driven exposure does.
        interest_exposure: Share of impressions drawn from the user's interests of that day.
        distraction_exposure: Share of impressions drawn from the user's distraction of that day: a
            category outside the interests that drifts like them, and that matched noise comes
            from. It stands for what a recommender shows after it took noise for interest, and it
            is why noise misleads a ranker. The rest is drawn by popularity.
        click_bias: Logit of a click at no interest, average quality and average user.
        interest_effect: Added to the logit at full interest strength.
        quality_effect: Added per standard deviation of item quality.
        user_effect: Added per standard deviation of user bias.
        noise_rate: Share of all click events, and of all cart events, that are noise.
        noise_kinds: Weights of the kinds `random` (uniform items), `popular` (drawn by popularity)
            and `matched` (from the user's distraction, hence outside the interests, and as popular
            as the item of a real event). A kind left out has weight 0.

    Raises:
        ValueError: A value is out of range; the message names it.

    Example:
        >>> SimulationSpec(noise_rate=1.0)
        Traceback (most recent call last):
            ...
        ValueError: `noise_rate` must be at least 0 and below 1. Received: 1.0
    """

    seed: int = 0
    num_users: int = 4000
    num_items: int = 3000
    num_categories: int = 40
    num_days: int = 14
    pages_per_day: float = 0.32
    page_size: int = 4
    organic_per_day: float = 0.7
    search_per_day: float = 0.15
    num_interests: int = 3
    drift_rate: float = 0.08
    popularity_exponent: float = 1.0
    interest_tail: float = 0.7
    interest_exposure: float = 0.4
    distraction_exposure: float = 0.25
    click_bias: float = -2.0
    interest_effect: float = 2.5
    quality_effect: float = 0.5
    user_effect: float = 0.4
    noise_rate: float = 0.3
    noise_kinds: Mapping[str, float] = field(default_factory=_equal_kinds)

    def __post_init__(self) -> None:
        for name in ("num_users", "num_items", "num_categories", "num_days", "page_size"):
            self._require(name, "an integer of at least 1", lambda v: _is_int(v) and v >= 1)
        self._require("num_interests", "an integer of at least 1", lambda v: _is_int(v) and v >= 1)
        self._require("seed", "an integer of at least 0", lambda v: _is_int(v) and v >= 0)
        for name in ("pages_per_day", "organic_per_day", "search_per_day"):
            self._require(name, "finite and at least 0", lambda v: 0 <= v < math.inf)
        for name in ("popularity_exponent", "interest_tail"):
            self._require(name, "finite and at least 0", lambda v: 0 <= v < math.inf)
        for name in ("drift_rate", "interest_exposure", "distraction_exposure"):
            self._require(name, "between 0 and 1", lambda v: 0 <= v <= 1)
        for name in ("click_bias", "interest_effect", "quality_effect", "user_effect"):
            self._require(name, "finite", math.isfinite)
        self._require("noise_rate", "at least 0 and below 1", lambda v: 0 <= v < 1)
        if self.interest_exposure + self.distraction_exposure > 1:
            raise ValueError(
                "`interest_exposure` and `distraction_exposure` must not add up to more than 1. "
                f"Received: {self.interest_exposure} and {self.distraction_exposure}"
            )
        if self.num_categories <= self.num_interests:
            # The distraction is a category outside the interests.
            raise ValueError(
                "`num_categories` must be above `num_interests`. "
                f"Received: {self.num_categories} and {self.num_interests}"
            )
        if self.num_items < self.num_categories:
            raise ValueError(
                "`num_items` must be at least `num_categories`. "
                f"Received: {self.num_items} and {self.num_categories}"
            )
        weights = self.noise_kinds
        if (
            not isinstance(weights, Mapping)
            or not set(weights) <= set(NOISE_KINDS)
            or not all(0 <= weight < math.inf for weight in weights.values())
            or not sum(weights.values()) > 0
        ):
            raise ValueError(
                f"`noise_kinds` must map some of {', '.join(NOISE_KINDS)} to weights of at least 0 "
                f"that are not all 0. Received: {weights!r}"
            )

    def _require(self, name: str, expected: str, accepts: Callable[[float], bool]) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and accepts(value)):
            raise ValueError(f"`{name}` must be {expected}. Received: {value!r}")


def _is_int(value: float) -> bool:
    return isinstance(value, int)
