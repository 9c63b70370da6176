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
users dominate. With `w = (s^2 / S) / V`, the seeds' share of the variance,

    q = t_{U-1} + w^{3/2} (t_{S-1} - t_{U-1}),                                               (2)

which is exact if either part vanishes. Cochran's approximation for a sum of two variance estimates
is the same with the exponent 1; Welch's and Satterthwaite's gives t the degrees of freedom
`1 / (w^2 / (S - 1) + (1 - w)^2 / (U - 1))`. With Gaussian parts and 150 users, 95 % intervals
cover, over all mixes of the parts,

    seeds      (2)             Cochran         Satterthwaite
    2          92.3 - 96.6 %   93.9 - 97.8 %   87.4 - 95.1 %
    3          94.3 - 96.0 %   95.0 - 97.2 %   92.2 - 95.0 %
    5          94.9 - 95.6 %   95.0 - 96.4 %   94.1 - 95.0 %
    10         95.0 - 95.3 %   95.0 - 95.7 %   94.8 - 95.0 %

and the crossed percentile bootstrap from 80 % (seeds dominate) to 99 % (no seed effect) at three.
When the seeds happen to agree closely the interval can be narrower than the users alone would make
it, as with any t interval; not letting it be so was tried and raises the coverage to 98-99 %.

Power. `mean` is Gaussian about the true difference with variance V, and the two estimates in (1)
are V's parts times chi-square variables over their degrees of freedom, U - 1 and S - 1; the power
is the probability that `mean > q sqrt(V)`, integrated over both. With k times the users and S'
seeds, `users / k + (users_by_seeds / k + seeds) / S'` takes the place of V. All of this rests on
estimates: at three seeds `s^2` itself is known to within a factor of a few.

References: W. G. Cochran, "Approximate significance levels of the Behrens-Fisher test", Biometrics
20 (1964); F. E. Satterthwaite, "An approximate distribution of estimates of variance components",
Biometrics Bulletin 2 (1946). Both are about sums of independent variance estimates, which we apply
to user and seed parts; the exponent in (2) was chosen for the table above.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from seqdenoise.evaluation.ranking import Floats

# No one would run more; past this "more of it does not settle the question" is the honest answer.
_MOST_USERS = 1e6
_MOST_SEEDS = 10_000
_MOST_SEEDS_WITH_USERS = 50

POWER = 0.8  # with which a difference counts as detectable

_EXPONENT = 1.5
# Degrees of freedom past which a variance estimate counts as known: off by 3e-4 in power at most.
_MANY = 1000


def _t(df: float, tail: float) -> float:
    """Student's quantile with a probability `tail` above it."""
    return -float(special.stdtrit(df, tail))


@lru_cache(maxsize=1024)
def _variance_estimates(df: float, number: int) -> tuple[Floats, Floats]:
    """Nodes and weights that integrate over an estimate of a variance of 1."""
    if df > _MANY:
        return np.ones(1), np.ones(1)
    nodes, weights = np.polynomial.legendre.leggauss(number)
    return special.chdtri(df, (1 - nodes) / 2) / df, weights / 2


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

    def _quantile(self, tail: float, users: Floats, from_seeds: Floats) -> Floats:
        """(2), for a probability `tail` above it and V's two parts, of one shape."""
        by_users = _t(self.num_users - 1, tail)
        if self.num_seeds == 1:
            return np.full(users.shape, by_users)
        variance = users + from_seeds
        share = np.divide(from_seeds, variance, where=variance > 0, out=np.zeros(variance.shape))
        return by_users + share**_EXPONENT * (_t(self.num_seeds - 1, tail) - by_users)

    def _quantile_here(self, tail: float) -> float:
        parts = np.array([self.users]), np.array([self.between_seeds / self.num_seeds])
        return float(self._quantile(tail, *parts)[0])

    def half_width(self, confidence: float) -> float:
        """Half of the interval's length: `q sqrt(V)`."""
        return self._quantile_here((1 - confidence) / 2) * self.standard_error

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

        def excess(log_p: float) -> float:
            return ratio - self._quantile_here(math.exp(log_p) / 2)

        # (2) lies between the two t distributions.
        ends = (by_users, outside(self.num_seeds - 1))
        low, high = sorted(math.log(max(p, 1e-300)) for p in ends)
        if excess(low) >= 0 or excess(high) <= 0:  # but for rounding, at an end
            return math.exp(low if excess(low) >= 0 else high)
        return math.exp(optimize.brentq(excess, low, high, xtol=1e-12))

    def power(self, difference: float, confidence: float) -> float:
        """How likely the interval lies beside 0, on the right side, at a true difference.

        Args:
            difference: The true difference; its sign does not matter.
            confidence: Of the interval.

        Returns:
            The power, from about `(1 - confidence) / 2` at 0 up to 1.
        """
        size, error = abs(difference), self.standard_error
        if error == 0:
            return float(size > 0)
        users, users_weights = _variance_estimates(self.num_users - 1, 24)
        seeds, seeds_weights = np.ones(1), np.ones(1)
        if self.between_seeds > 0:
            seeds, seeds_weights = _variance_estimates(self.num_seeds - 1, 96)
        users_part, seeds_part = np.broadcast_arrays(
            self.users * users[:, None], self.between_seeds / self.num_seeds * seeds
        )
        quantile = self._quantile((1 - confidence) / 2, users_part, seeds_part)
        found = special.ndtr((size - quantile * np.sqrt(users_part + seeds_part)) / error)
        return float(users_weights @ found @ seeds_weights)

    def detectable(self, confidence: float, power: float = POWER) -> float:
        """The true difference that is found with this power; 0 if none at all is."""

        def excess(difference: float) -> float:
            return self.power(difference, confidence) - power

        if self.standard_error == 0 or excess(0.0) >= 0:
            return 0.0
        high = 4 * self.standard_error
        while excess(high) < 0:
            high *= 2
        return float(optimize.brentq(excess, 0.0, high, xtol=1e-9 * high, rtol=1e-9))

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
            return more.power(target, confidence) >= POWER

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
            return self.with_more(1.0, num_seeds).power(target, confidence) >= POWER

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
