"""Finished runs of several arms, compared on the test rows they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipelines.config import RunConfig
from seqdenoise.evaluation.compare import Comparison, compare, compare_arms
from seqdenoise.evaluation.results import ArmsComparison


@dataclass(frozen=True)
class RunScores:
    """What finished runs say of the test rows.

    Attributes:
        labels: `[N]`.
        users: `[N]`.
        weights: `[N]`, or None where the log has none.
        scores: By arm `[S, N]`, the seeds in the run file's order.
    """

    labels: npt.NDArray[Any]
    users: npt.NDArray[Any]
    weights: npt.NDArray[Any] | None
    scores: dict[str, npt.NDArray[Any]]


def read_scores(runs: Path, arms: Sequence[str], config: RunConfig) -> RunScores:
    """Reads the scores of finished runs.

    Args:
        runs: The folder that holds `{arm}-seed{seed}` for every arm and seed.
        arms: Their names.
        config: The run: which seeds.
    """
    tables = {
        arm: [
            pd.read_parquet(runs / f"{arm}-seed{seed}" / "scores.parquet")
            for seed in config.ab.seeds
        ]
        for arm in arms
    }
    rows = tables[arms[0]][0]
    return RunScores(
        labels=rows["label"].to_numpy(),
        users=rows["user"].to_numpy(),
        weights=rows["weight"].to_numpy() if "weight" in rows else None,
        scores={
            arm: np.stack([frame["score"].to_numpy() for frame in frames])
            for arm, frames in tables.items()
        },
    )


def compare_runs(runs: Path, control: str, treatment: str, config: RunConfig) -> Comparison:
    """Compares two arms over the seeds, by AUC and GAUC.

    Args:
        runs: As in `read_scores`.
        control: Name of the one.
        treatment: Name of the other.
        config: The run: which seeds, and how the interval is made.

    Returns:
        The comparison.
    """
    read = read_scores(runs, [control, treatment], config)
    return compare(
        read.labels,
        read.users,
        read.scores[control],
        read.scores[treatment],
        num_resamples=config.ab.num_resamples,
        confidence=config.ab.confidence,
        weights=read.weights,
    )


def compare_all_runs(
    read: RunScores,
    control: str,
    config: RunConfig,
    slices: Mapping[str, npt.NDArray[Any]] | None = None,
) -> ArmsComparison:
    """Compares every arm with the control, by all metrics of the run file and in slices.

    Args:
        read: As `read_scores` gives it.
        control: Name of the control.
        config: The run: how intervals are made.
        slices: By name the value of each test row `[N]`.

    Returns:
        The comparison.
    """
    return compare_arms(
        read.labels,
        read.users,
        read.scores,
        control=control,
        metrics=config.ab.metrics,
        weights=read.weights,
        num_resamples=config.ab.num_resamples,
        confidence=config.ab.confidence,
        slices=slices,
        multiplicity=config.ab.multiplicity,
    )
