"""The rows that arms are compared on, and their metrics under resampled users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdenoise.evaluation import ranking
from seqdenoise.evaluation.bootstrap import canonical_order
from seqdenoise.evaluation.metrics import Metric
from seqdenoise.evaluation.ranking import Floats, Ints


@dataclass(frozen=True)
class Sample:
    """Impressions with the scores of every arm.

    Attributes:
        positive: bool `[N]`.
        users: int64 `[N]`, 0..U-1, all of them present.
        weights: float64 `[N]`.
        arms: By name, scores float64 `[S, N]`.
        num_users: U.
        inward: How far from 0 and 1 probabilities are kept.
    """

    positive: NDArray[np.bool_]
    users: Ints
    weights: Floats
    arms: dict[str, Floats]
    num_users: int
    inward: float

    @classmethod
    def check(
        cls,
        labels: ArrayLike,
        users: ArrayLike,
        scores: Mapping[str, ArrayLike],
        weights: ArrayLike | None,
        names: Mapping[str, str],
    ) -> tuple["Sample", Ints]:
        """Checks a caller's arrays and puts the rows in an order that depends on them alone.

        Args:
            labels: 0/1 or bool `[N]`.
            users: Ids `[N]`.
            scores: By arm, `[S, N]`.
            weights: `[N]`, or None.
            names: What to call each arm's scores in an error.

        Returns:
            The sample, and the order `[N]` in which it holds the caller's rows.

        Raises:
            ValueError: Wrong shapes or values, score tables of different shape, or one user only.
        """
        positive = ranking.check_labels(labels)
        size = positive.size
        tables = {arm: _score_table(names[arm], table, size) for arm, table in scores.items()}
        first, *others = tables
        for arm in others:
            if tables[arm].shape != tables[first].shape:
                raise ValueError(
                    f"`{names[first]}` and `{names[arm]}` must hold the same seeds. "
                    f"Received: shapes {tables[first].shape} and {tables[arm].shape}"
                )
        row_weights = ranking.check_weights(weights, size)
        distinct, codes = ranking.group_codes("users", users, size)
        if distinct.size < 2:
            raise ValueError(f"`users` must hold at least two users. Received: {distinct.size}")
        order, codes = canonical_order(positive, codes, row_weights, *tables.values())
        sample = cls(
            positive=positive[order],
            users=codes,
            weights=row_weights[order],
            arms={arm: table[:, order] for arm, table in tables.items()},
            num_users=int(distinct.size),
            # The coarsest type's for all arms, so that a saturated probability costs all the same.
            inward=max(ranking.spacing_at_one(table) for table in scores.values()),
        )
        return sample, order

    @property
    def num_seeds(self) -> int:
        """S."""
        return next(iter(self.arms.values())).shape[0]

    def take(self, rows: NDArray[np.bool_]) -> tuple["Sample", Ints]:
        """Some of the rows, at least one, and their users' numbers in the whole sample."""
        kept, users = np.unique(self.users[rows], return_inverse=True)
        part = Sample(
            positive=self.positive[rows],
            users=users.astype(np.int64),
            weights=self.weights[rows],
            arms={arm: table[:, rows] for arm, table in self.arms.items()},
            num_users=kept.size,
            inward=self.inward,
        )
        return part, kept

    def scores_for(self, metric: Metric, arm: str) -> Floats:
        """An arm's scores `[S, N]` as a metric takes them."""
        if metric.of_probabilities:
            return np.clip(self.arms[arm], self.inward, 1 - self.inward)
        return self.arms[arm]

    def values(self, metric: Metric, arm: str) -> Floats:
        """A metric of an arm, per seed, `[S]`.

        Raises:
            ValueError: It is not defined.
        """
        return np.array(
            [
                metric.value(self.positive, row, self.users, self.weights)
                for row in self.scores_for(metric, arm)
            ]
        )


class Draws:
    """Metrics of a sample's arms, and what they are under resampled users.

    Args:
        sample: The sample.
        metrics: The metrics.
    """

    def __init__(self, sample: Sample, metrics: Sequence[Metric]) -> None:
        self._resamplers = {
            (metric.name, arm): [
                metric.resampler(sample.positive, row, sample.users, sample.weights)
                for row in sample.scores_for(metric, arm)
            ]
            for metric in metrics
            for arm in sample.arms
        }
        self._chunks: dict[tuple[str, str], list[Floats]] = {key: [] for key in self._resamplers}
        self._num_users = sample.num_users

    def add(self, counts: Floats) -> None:
        """Takes in draws, `[R, U]`: how often each user was drawn."""
        for key, resamplers in self._resamplers.items():
            self._chunks[key].append(np.stack([one(counts) for one in resamplers], axis=1))

    def resampled(self, metric: Metric, arm: str) -> Floats:
        """The metric in all draws so far, `[R, S]`; NaN where a draw leaves it undefined."""
        return np.concatenate(self._chunks[metric.name, arm])

    def measured(self, metric: Metric, arm: str) -> Floats:
        """The metric of the sample as it is, `[S]`; NaN where it is not defined."""
        once = np.ones((1, self._num_users))
        return np.array([one(once)[0] for one in self._resamplers[metric.name, arm]])


def _score_table(name: str, scores: ArrayLike, num_rows: int) -> Floats:
    table = np.asarray(scores)
    if table.ndim != 2 or table.shape[0] == 0 or table.shape[1] != num_rows:
        raise ValueError(
            f"`{name}` must have the shape [S, {num_rows}], one row a seed, S >= 1. "
            f"Received: shape={table.shape}"
        )
    return np.stack(
        [ranking.check_scores(f"{name}[{s}]", row, num_rows) for s, row in enumerate(table)]
    )
