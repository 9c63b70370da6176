"""How far a measured difference may be from the true one: variance parts, interval, power.

The difference of seed `s` on the users at hand is modelled as

    d_s = theta + u + e_s + a_s

with `u` the users' luck common to all seeds (variance `users`), `e_s` the users' luck with this
seed's two models (`users_by_seeds`) and `a_s` the seed's own effect, which more users would not
remove (`seeds`). The mean over S seeds then has the variance

    V = users + (users_by_seeds + seeds) / S.

Estimates. The user bootstrap gives the covariance matrix of (d_1, ..., d_S) over users: the mean
of its off-diagonal is `users`, the mean of its diagonal `users + users_by_seeds`. The variance
`s^2` of the measured d_s over the seeds (divisor S - 1) has the mean `users_by_seeds + seeds`. So

    V = users + s^2 / S,                                                                     (1)

where nothing is counted twice, and where the seeds' part is free of the factor (S - 1) / S by which
drawing few seeds with replacement understates it: the crossed bootstrap that draws users and seeds
is, in expectation, (1) with that factor and with `users_by_seeds` counted nearly twice.

The interval is `mean +- q sqrt(V)`. Two or three seeds leave `s^2` so uncertain that the normal
quantile is far too small, and the quantile of t with S - 1 degrees of freedom far too large where
users dominate. We use Cochran's approximation for a sum of two variance estimates,

    q = (users t_{U-1} + s^2/S t_{S-1}) / V,                                                 (2)

which is exact if either part vanishes and slightly conservative in between: at three seeds a 95 %
interval covers in 95 to 97 % of simulated A/Bs whatever the mix of the parts, where the crossed
percentile bootstrap ranges from 80 % (seeds dominate) to 99 % (no seed effect). When the seeds
happen to agree closely the interval can be narrower than the users alone would make it, as with any
t interval; not letting it be so was tried and raises the coverage to 98-99 %, at little gain.

Power. The difference found with power p at that quantile is `delta sqrt(V)`, `delta` weighted as
in (2) from the noncentrality of Student's t test at U - 1 and at S - 1 degrees of freedom. With k
times the users and S' seeds, `users / k + (users_by_seeds / k + seeds) / S'` takes the place of V.
All of this rests on estimates: at three seeds `s^2` itself is known to within a factor of a few.

Reference: W. G. Cochran, "Approximate significance levels of the Behrens-Fisher test", Biometrics
20 (1964), for (2); we apply it to user and seed parts instead of two samples.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from seqdenoise.evaluation.ranking import Floats

# No one would run more; past this "more of it does not settle the question" is the honest answer.
_MOST_USERS = 1e6
_MOST_SEEDS = 10_000
_MOST_SEEDS_WITH_USERS = 50


def _quantile(df: float, probability: float) -> float:
    return float(special.stdtrit(df, probability))


@lru_cache(maxsize=4096)
def _noncentrality(df: float, probability: float, power: float) -> float:
    """The true difference, in standard errors, a two-sided t test finds with this power."""
    quantile = _quantile(df, probability)
    if df > 200:
        # The two agree to 1e-3 from here on, and the inverse of nct is slow and fragile up there.
        return quantile + _quantile(df, power)
    return float(special.nctdtrinc(df, 1 - power, quantile))


@dataclass(frozen=True)
class Spread:
    """Variance parts of a mean difference over seeds; the module's text has the model.

    Attributes:
        num_users: U, at least 2.
        num_seeds: S, at least 1.
        users: Variance of the users' luck common to the seeds.
        users_by_seeds: Variance of the users' luck with one seed; 0 where S is 1.
        between_seeds: `s^2`, the variance of the measured differences over seeds; 0 where S is 1.
    """

    num_users: int
    num_seeds: int
    users: float
    users_by_seeds: float
    between_seeds: float

    @classmethod
    def estimate(cls, differences: Floats, resampled: Floats, num_users: int) -> "Spread":
        """Splits the spread of a user bootstrap and of the seeds.

        With one seed, all of the bootstrap's variance is called `users`, and the spread between
        seeds is not covered.

        Args:
            differences: `[S]`, measured per seed.
            resampled: `[R, S]`, the same under resampled users, R >= 2, no NaN.
            num_users: U, at least 2.

        Returns:
            The parts, each at least 0.
        """
        num_seeds = differences.size
        # A bootstrap of U users has (U - 1) / U of the variance it stands for.
        scale = num_users / (num_users - 1)
        covariance = np.atleast_2d(np.cov(resampled, rowvar=False)) * scale
        diagonal = float(np.trace(covariance)) / num_seeds
        if num_seeds == 1:
            return cls(num_users, 1, diagonal, 0.0, 0.0)
        common = (float(covariance.sum()) - diagonal * num_seeds) / (num_seeds * (num_seeds - 1))
        # A covariance may be estimated below 0; a variance is not.
        common = max(common, 0.0)
        return cls(
            num_users=num_users,
            num_seeds=num_seeds,
            users=common,
            users_by_seeds=max(diagonal - common, 0.0),
            between_seeds=float(np.var(differences, ddof=1)),
        )

    @property
    def seeds(self) -> float:
        """Variance of the seeds' own effect: `s^2` less what the users' luck explains of it."""
        return max(self.between_seeds - self.users_by_seeds, 0.0)

    @property
    def standard_error(self) -> float:
        """The square root of (1)."""
        return math.sqrt(self.users + self.between_seeds / self.num_seeds)

    def _weighted(self, value: Callable[[float], float]) -> float:
        """(2) for any function of the degrees of freedom."""
        if self.num_seeds == 1:
            return value(self.num_users - 1)
        from_seeds = self.between_seeds / self.num_seeds
        total = self.users + from_seeds
        share = from_seeds / total if total > 0 else 0.0
        result = share * value(self.num_seeds - 1) if share > 0 else 0.0
        return result + (1 - share) * value(self.num_users - 1) if share < 1 else result

    def half_width(self, confidence: float) -> float:
        """Half of the interval's length: `q sqrt(V)`."""
        return self._weighted(lambda df: _quantile(df, (1 + confidence) / 2)) * self.standard_error

    def p_value(self, difference: float) -> float:
        """How much lies outside the interval that ends at 0: two-sided, of no difference.

        Args:
            difference: The measured mean over seeds.

        Returns:
            The p value, below `1 - confidence` just where the interval excludes 0; where nothing
            varies, 1 for a difference of 0 and else 0.
        """
        error = self.standard_error
        if error == 0 or difference == 0:
            return float(difference == 0)
        ratio = abs(difference) / error

        def outside(df: float) -> float:
            return 2 * float(special.stdtr(df, -ratio))

        by_users = outside(self.num_users - 1)
        if self.num_seeds == 1:
            return by_users
        by_seeds = outside(self.num_seeds - 1)

        def excess(log_p: float) -> float:
            return ratio + self._weighted(lambda df: _quantile(df, math.exp(log_p) / 2))

        # (2) lies between the two t distributions that it weighs.
        low, high = sorted(math.log(max(p, 1e-300)) for p in (by_users, by_seeds))
        if excess(low) >= 0 or excess(high) <= 0:  # but for rounding, at an end
            return math.exp(low if excess(low) >= 0 else high)
        return math.exp(optimize.brentq(excess, low, high, xtol=1e-12))

    def detectable(self, confidence: float, power: float = 0.8) -> float:
        """The true difference whose interval excludes 0, on its own side, with this power."""
        probability = (1 + confidence) / 2
        return (
            self._weighted(lambda df: _noncentrality(df, probability, power)) * self.standard_error
        )

    def with_more(self, users: float, num_seeds: int) -> "Spread":
        """The spread to expect from `users` times the users and `num_seeds` seeds."""
        return Spread(
            num_users=math.ceil(self.num_users * users),
            num_seeds=num_seeds,
            users=self.users / users,
            users_by_seeds=self.users_by_seeds / users,
            between_seeds=self.users_by_seeds / users + self.seeds,
        )

    def users_needed(
        self, difference: float, confidence: float, num_seeds: int | None = None
    ) -> float | None:
        """How many times the users make `difference` detectable at 80 % power.

        Args:
            difference: The true difference to be found; its sign does not matter.
            confidence: Of the interval.
            num_seeds: With so many seeds; as many as now where None.

        Returns:
            The factor, at least 1, within 1 %; None if no factor up to a million is enough.
        """
        target = abs(difference)

        def enough(factor: float) -> bool:
            more = self.with_more(factor, num_seeds or self.num_seeds)
            return more.detectable(confidence) <= target

        if enough(1.0):
            return 1.0
        if not enough(_MOST_USERS):
            return None
        low, high = 1.0, _MOST_USERS
        while high / low > 1.01:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def seeds_needed(self, difference: float, confidence: float) -> int | None:
        """How many seeds, on the same users, make `difference` detectable at 80 % power.

        Returns:
            The number of seeds, at least S; None if no number up to ten thousand is enough, or if
            there is only one seed, from which the spread between seeds cannot be told.
        """
        target = abs(difference)
        if self.num_seeds == 1:
            return None

        def enough(num_seeds: int) -> bool:
            return self.with_more(1.0, num_seeds).detectable(confidence) <= target

        if enough(self.num_seeds):
            return self.num_seeds
        if not enough(_MOST_SEEDS):
            return None
        low, high = self.num_seeds, _MOST_SEEDS
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def both_needed(self, difference: float, confidence: float) -> tuple[float, int] | None:
        """The cheapest way to make `difference` detectable at 80 % power with more of both.

        Returns:
            How many times the users, and how many seeds, with the smallest product, of up to fifty
            seeds; None if that is not enough, or if there is only one seed.
        """
        if self.num_seeds == 1:
            return None
        ways = [
            (factor, num_seeds)
            for num_seeds in range(self.num_seeds + 1, _MOST_SEEDS_WITH_USERS + 1)
            if (factor := self.users_needed(difference, confidence, num_seeds)) is not None
        ]
        return min(ways, key=lambda way: way[0] * way[1], default=None)
