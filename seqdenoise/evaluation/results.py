"""What a comparison of arms holds: plain, frozen data."""

from dataclasses import dataclass
from typing import Literal

from seqdenoise.evaluation.delong import DelongResult

Outcome = Literal["better", "worse", "cannot tell"]
Multiplicity = Literal["holm", "benjamini-hochberg"]
SliceValue = str | int | float | bool


@dataclass(frozen=True)
class SeedResult:
    """One metric of one pair of runs: the two arms trained with the same seed.

    Attributes:
        control: The metric of the control.
        treatment: The metric of the treatment.
        difference: Treatment less control.
        low: Lower end of the difference's interval over users, for these two models as they are.
        high: Its upper end.
        delong: Of the AUC without weights: DeLong's interval, which takes rows as independent.
    """

    control: float
    treatment: float
    difference: float
    low: float
    high: float
    delong: DelongResult | None = None


@dataclass(frozen=True)
class MetricComparison:
    """One metric of both arms.

    Attributes:
        metric: Its name as printed, for instance "AUC" or "NDCG@10".
        larger_is_better: False for losses and errors.
        control: Mean over seeds.
        treatment: Mean over seeds.
        difference: Treatment less control, mean over seeds.
        low: Lower end of the interval of the difference over users and seeds.
        high: Its upper end.
        standard_error: Of the difference, over users and seeds.
        p_value: Two-sided, of no difference: the interval with this much left outside ends at 0.
        detectable_effect: The true difference that an A/B of this size finds with 80 % power.
        outcome: "better" if the whole interval lies on the good side of 0, "worse" if on the bad,
            else "cannot tell".
        users_needed: Where the outcome is "cannot tell": how many times this many users, at as many
            seeds, would find a true difference of this size with 80 % power; None: no number.
        seeds_needed: The same for seeds on the same users, the present ones included.
        both_needed: Where neither alone is enough: how many times the users with how many seeds.
        users_variance: The part of the variance due to users and common to all seeds.
        users_by_seeds_variance: The part due to users for one seed alone.
        seeds_variance: The part due to the seed, which more users would not remove.
        seeds: The pairs of runs, in the order given.
    """

    metric: str
    larger_is_better: bool
    control: float
    treatment: float
    difference: float
    low: float
    high: float
    standard_error: float
    p_value: float
    detectable_effect: float
    outcome: Outcome
    users_needed: float | None
    seeds_needed: int | None
    both_needed: tuple[float, int] | None
    users_variance: float
    users_by_seeds_variance: float
    seeds_variance: float
    seeds: tuple[SeedResult, ...]


@dataclass(frozen=True)
class Comparison:
    """A control and a treatment compared.

    Attributes:
        metrics: One entry a metric: AUC, and GAUC where a user has both classes, if no others were
            asked for.
        num_rows: Impressions.
        num_users: Users.
        num_seeds: Pairs of runs.
        confidence: Of all intervals, for instance 0.95.
        num_resamples: Draws of the users.
        seed: Of the draws.
        notes: What a reader has to know beside the numbers; often empty.
    """

    metrics: tuple[MetricComparison, ...]
    num_rows: int
    num_users: int
    num_seeds: int
    confidence: float
    num_resamples: int
    seed: int
    notes: tuple[str, ...]

    def __getitem__(self, metric: str) -> MetricComparison:
        """The entry of a metric by its name.

        Raises:
            KeyError: No such metric.
        """
        for entry in self.metrics:
            if entry.metric == metric:
                return entry
        raise KeyError(
            f"expected one of {[entry.metric for entry in self.metrics]}. Received: {metric!r}"
        )


@dataclass(frozen=True)
class SliceMetric:
    """One metric of one treatment in one slice.

    Attributes:
        comparison: On the slice's rows alone. Its interval, p value and outcome are those of this
            slice on its own.
        adjusted_p_value: After correction for the number of slices.
        outcome: After correction: as the sign of the difference says if the adjusted p value is
            below 1 less the confidence, else "cannot tell".
    """

    comparison: MetricComparison
    adjusted_p_value: float
    outcome: Outcome


@dataclass(frozen=True)
class SliceComparison:
    """All treatments against the control on the rows where a slice has one value.

    Attributes:
        slice: The slice's name.
        value: Its value.
        num_rows: Impressions with that value.
        num_users: Users with such impressions.
        arms: By treatment, one entry a metric that is defined there.
    """

    slice: str
    value: SliceValue
    num_rows: int
    num_users: int
    arms: dict[str, tuple[SliceMetric, ...]]


@dataclass(frozen=True)
class ArmsComparison:
    """Any number of treatments compared with one control.

    Attributes:
        control: The control's name.
        arms: By treatment, its comparison with the control; all from the same draws of users.
        slices: By slice, its values in order.
        multiplicity: The correction over slices: for each treatment and metric on its own, over all
            values of all slices. "holm" keeps the chance of any wrong outcome below 1 less the
            confidence, "benjamini-hochberg" the expected share of wrong ones among the outcomes.
        notes: What a reader has to know beside the numbers; often empty.
    """

    control: str
    arms: dict[str, Comparison]
    slices: dict[str, tuple[SliceComparison, ...]]
    multiplicity: Multiplicity
    notes: tuple[str, ...]
