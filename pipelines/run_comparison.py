"""Finished runs of two arms, compared on the test rows they share."""

from pathlib import Path

import numpy as np
import pandas as pd

from pipelines.config import RunConfig
from seqdenoise.evaluation.compare import Comparison, compare


def compare_runs(runs: Path, control: str, treatment: str, config: RunConfig) -> Comparison:
    """Compares two arms over the seeds.

    Args:
        runs: The folder that holds `{arm}-seed{seed}` for both arms and every seed.
        control: Name of the one.
        treatment: Name of the other.
        config: The run: which seeds, and how the interval is made.

    Returns:
        The comparison.
    """
    tables = {
        arm: [
            pd.read_parquet(runs / f"{arm}-seed{seed}" / "scores.parquet")
            for seed in config.ab.seeds
        ]
        for arm in (control, treatment)
    }
    rows = tables[control][0]
    return compare(
        rows["label"].to_numpy(),
        rows["user"].to_numpy(),
        *(np.stack([frame["score"].to_numpy() for frame in frames]) for frames in tables.values()),
        num_resamples=config.ab.num_resamples,
        confidence=config.ab.confidence,
    )
