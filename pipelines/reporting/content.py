"""What a report shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from seqdenoise.evaluation.drawing import Run
from seqdenoise.evaluation.noise_curves import NoiseCurves
from seqdenoise.evaluation.probabilities import CalibrationCurve, calibration_curve
from seqdenoise.evaluation.results import ArmsComparison


@dataclass(frozen=True)
class Report:
    """What the page shows; what is empty is left out of it.

    Attributes:
        title: Of the page, plain text, for instance the label or the files.
        comparison: Of all arms, with slices.
        seeds: The seeds' names, in the comparison's order.
        calibration: By arm and seed, the bins of the probabilities.
        noise_curve: Of planted events.
        histories: By arm and seed, a row an epoch, as `train` writes them.
        config: The configuration as text.
        fingerprint: Of the data, by what it says.
    """

    title: str
    comparison: ArmsComparison
    seeds: Sequence[object]
    calibration: Mapping[Run, CalibrationCurve] = field(default_factory=dict)
    noise_curve: NoiseCurves | None = None
    histories: Mapping[Run, pd.DataFrame] = field(default_factory=dict)
    config: str = ""
    fingerprint: Mapping[str, str] = field(default_factory=dict)


def calibrations(
    labels: ArrayLike,
    scores: Mapping[str, ArrayLike],
    seeds: Sequence[object],
    weights: ArrayLike | None = None,
) -> dict[Run, CalibrationCurve]:
    """The bins of every arm and seed; none at all where a score is no probability.

    Args:
        labels: 0/1 or bool `[N]`.
        scores: By arm, `[S, N]`.
        seeds: The seeds' names `[S]`.
        weights: Optional row weights `[N]`.

    Returns:
        By arm and seed.
    """
    tables = {arm: np.asarray(table) for arm, table in scores.items()}
    if any(table.min() < 0 or table.max() > 1 for table in tables.values()):
        return {}
    return {
        (arm, str(seed)): calibration_curve(labels, row, weights=weights)
        for arm, table in tables.items()
        for seed, row in zip(seeds, table, strict=True)
    }
