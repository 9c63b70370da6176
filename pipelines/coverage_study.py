"""Does the A/B keep its word? Simulated A/Bs whose true difference is known."""

import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.config import ConfigError
from pipelines.json_report import write_json_report
from seqdenoise.evaluation.compare import Comparison, compare
from seqdenoise.evaluation.estimates import outcome_of
from seqdenoise.evaluation.power import spread_of
from seqdenoise.evaluation.ranking import Floats
from seqdenoise.evaluation.spread import POWER, Spread

_logger = logging.getLogger(__name__)

METRICS = ("AUC", "GAUC", "log loss", "normalised entropy", "NDCG@10", "ECE")
_TRIAL_GAIN = 0.3
_PILOTS = 60


@dataclass(frozen=True)
class Scenario:
    """How the scores of simulated arms differ.

    Attributes:
        name: For the table.
        num_seeds: Seeds of both arms.
        users_luck: Standard deviation of the errors that all seeds of an arm share, over users and
            over rows, in log odds; the scores' own is 1.
        seeds_luck: That of a seed's errors over rows, which more users would average out.
        seeds_quality: That of a seed's quality, which they would not: like the gain, it is added to
            the log odds of positives.
        num_users: Users; each has 2 to 24 impressions.
    """

    name: str
    num_seeds: int = 3
    users_luck: float = 0.3
    seeds_luck: float = 0.3
    seeds_quality: float = 0.06
    num_users: int = 150


SCENARIOS = (
    Scenario("users' luck, 3 seeds", users_luck=0.6, seeds_luck=0.1, seeds_quality=0.02),
    Scenario("both, 3 seeds"),
    # The gain that such seeds leave to be found must not be so large that it changes the variance.
    Scenario("seeds' luck, 3 seeds", users_luck=0.1, seeds_luck=0.1, seeds_quality=0.05),
    Scenario("both, 5 seeds", num_seeds=5),
    Scenario("users' luck, 1 seed", num_seeds=1, users_luck=0.6, seeds_luck=0, seeds_quality=0),
)


def simulate_ab(
    scenario: Scenario, gain: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, Floats, Floats]:
    """Impressions in user clusters, and the scores of two arms.

    Users differ in taste, which both labels and scores follow. With a gain of 0 the arms are drawn
    alike, so that the true difference is 0 in every metric. Scores are probabilities that are about
    right.

    Args:
        scenario: The luck.
        gain: By how much the treatment scores a positive higher, in log odds.
        rng: The source of everything.

    Returns:
        Labels `[N]`, users `[N]`, and the scores `[S, N]` of control and treatment.
    """
    num_users, num_seeds = scenario.num_users, scenario.num_seeds
    users = np.repeat(np.arange(num_users), rng.integers(2, 25, num_users))
    taste = rng.normal(size=num_users)[users]
    labels = rng.random(users.size) < 1 / (1 + np.exp(1.2 - taste))
    signal = 0.8 * labels + 0.5 * taste + rng.normal(size=users.size)

    def arm(bonus: float) -> Floats:
        shared = rng.normal(size=num_users)[users] + rng.normal(size=users.size)
        quality = bonus + scenario.seeds_quality * rng.normal(size=(num_seeds, 1))
        own = scenario.seeds_luck * rng.normal(size=(num_seeds, users.size))
        log_odds = signal + scenario.users_luck * shared + quality * labels + own - 1.5
        return 1 / (1 + np.exp(-log_odds))

    return labels, users, arm(0.0), arm(gain)


def _run(
    scenario: Scenario, gain: float, number: int, key: Sequence[int], options: Mapping[str, Any]
) -> list[Comparison]:
    return [
        compare(
            *simulate_ab(scenario, gain, np.random.default_rng([*key, experiment])),
            seed=experiment,
            **options,
        )
        for experiment in range(number)
    ]


def _pooled(comparisons: Sequence[Comparison], metric: str) -> Spread:
    """The mean of each variance part: what an endless pilot would know."""
    spreads = [spread_of(one[metric], one.num_users) for one in comparisons]
    return Spread(
        num_users=spreads[0].num_users,
        num_seeds=spreads[0].num_seeds,
        users=float(np.mean([one.users for one in spreads])),
        users_by_seeds=float(np.mean([one.users_by_seeds for one in spreads])),
        between_seeds=float(np.mean([one.between_seeds for one in spreads])),
    )


def coverage_study(
    scenarios: Sequence[Scenario] = SCENARIOS,
    *,
    metrics: Sequence[str] = METRICS,
    num_experiments: int = 400,
    num_resamples: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    output: Path | None = None,
) -> dict[str, Any]:
    """Counts how often intervals cover no difference, and how often a planted gain is found.

    For each scenario: A/Bs without a difference give the coverage, and their variance parts the
    detectable effect. A gain is chosen whose true difference in the first metric is about that.
    A/Bs with that gain give the share found, and their mean difference is the true one; beside it
    stands the power that the calculator promises for this difference from the first A/Bs' parts,
    which know nothing of the gain.

    Args:
        scenarios: The luck of the arms.
        metrics: Names as `compare` takes them; larger must be better for the first.
        num_experiments: A/Bs without a difference, and as many with one; at least 20.
        num_resamples: Draws of the users in each.
        confidence: Of the intervals.
        seed: Of everything.
        output: The JSON file of everything measured.

    Returns:
        The options, and `results`: for each scenario its name, fields and the planted `gain`, and
        in `metrics` by name `coverage`; `mean_width` of the intervals without a difference;
        `detectable`, the effect found with 80 % power; `true_difference` with the gain; `promised`,
        its power; and `found`, the share of A/Bs called better, or worse where that is true.

    Raises:
        ConfigError: Too few A/Bs.
    """
    if num_experiments < 20:
        raise ConfigError(
            f"coverage: expected at least 20 A/Bs a scenario. Received: {num_experiments}"
        )
    options = {
        "metrics": list(metrics),
        "num_resamples": num_resamples,
        "confidence": confidence,
    }
    aim = metrics[0]
    results = []
    for scenario in scenarios:
        # By name, so that a scenario's figures do not depend on the others.
        key = [seed, zlib.crc32(scenario.name.encode())]
        _logger.info("coverage: %s, no difference", scenario.name)
        null = _run(scenario, 0.0, num_experiments, [*key, 0], options)
        spreads = {metric: _pooled(null, metric) for metric in metrics}
        pilots = min(_PILOTS, num_experiments)
        trial = _run(scenario, _TRIAL_GAIN, pilots, [*key, 1], options)
        of_trial = float(np.mean([one[aim].difference for one in trial]))
        gain = _TRIAL_GAIN * spreads[aim].detectable(confidence, POWER) / of_trial
        _logger.info("coverage: %s, a gain of %.3f", scenario.name, gain)
        planted = _run(scenario, gain, num_experiments, [*key, 2], options)
        measured = {}
        for metric, spread in spreads.items():
            widths = [one[metric].high - one[metric].low for one in null]
            true_difference = float(np.mean([one[metric].difference for one in planted]))
            truth = outcome_of(true_difference, planted[0][metric].larger_is_better)
            measured[metric] = {
                "coverage": _share(one[metric].low <= 0 <= one[metric].high for one in null),
                "mean_width": float(np.mean(widths)),
                "detectable": spread.detectable(confidence, POWER),
                "true_difference": true_difference,
                "promised": spread.power(true_difference, confidence),
                "found": _share(one[metric].outcome == truth for one in planted),
            }
        results.append({**asdict(scenario), "gain": gain, "metrics": measured})
        for metric, row in measured.items():
            _logger.info("coverage: %s, %s: %s", scenario.name, metric, row)
    report = {"num_experiments": num_experiments, **options, "seed": seed, "results": results}
    write_json_report(report, output)
    return report


def _share(hits: Iterable[bool]) -> float:
    return float(np.mean(list(hits)))


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report as a Markdown table, a row a scenario and metric, and a line on the counts."""
    lines = [
        f"| luck | metric | coverage of {100 * report['confidence']:.6g} % intervals "
        "| detectable effect | true difference | power promised | found |",
        "| :--- | :--- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in report["results"]:
        for metric, row in result["metrics"].items():
            lines.append(
                f"| {result['name']} | {metric} | {100 * row['coverage']:.1f} % "
                f"| {row['detectable']:.4f} | {row['true_difference']:+.4f} "
                f"| {100 * row['promised']:.1f} % | {100 * row['found']:.1f} % |"
            )
    number = report["num_experiments"]
    error = 100 * np.sqrt(0.05 * 0.95 / number)
    lines += [
        "",
        f"{number} simulated A/Bs without a difference and {number} with a gain for each row; by "
        f"chance alone a share of 95 % is off by {error:.1f} points (one standard deviation), one "
        f"of 80 % by {100 * np.sqrt(0.16 / number):.1f}.",
    ]
    return "\n".join(lines) + "\n"
