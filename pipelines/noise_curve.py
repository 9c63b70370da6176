"""Finished runs scored on test rows with ever more noise in their histories."""

import hashlib
import json
import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from pipelines.config import ConfigError, RunConfig
from pipelines.export import load_model
from pipelines.noise_planting import (
    check_types,
    files_fingerprint,
    noisy_types,
    training_catalogue,
    write_noisy,
)
from pipelines.train import score
from seqdenoise.data.atomic import atomic_file
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.parquet import data_errors
from seqdenoise.errors import DataError
from seqdenoise.evaluation.noise import Draw
from seqdenoise.evaluation.noise_curves import NoiseCurves, noise_curves

logger = logging.getLogger(__name__)

LEVELS = (0.0, 0.1, 0.3, 0.5)
_BATCH = 4096
_MARK = b"seqdenoise.noise"

Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class NoiseLevel:
    """How the test histories are made noisy, and where a run keeps its scores on them.

    Attributes:
        rate: Share of noise among the events of the histories.
        draw: How items are drawn.
        types: The types that noise is planted into.
        seed: Of all draws.
        files: What changes when a prepared file does.
    """

    rate: float
    draw: Draw
    types: tuple[str, ...]
    seed: int
    files: str

    def scores_of(self, run_folder: Path) -> Path:
        """The file with the run's scores at this level."""
        what = json.dumps([self.draw, *sorted(self.types), self.seed])
        name = hashlib.sha256(what.encode()).hexdigest()[:8]
        return run_folder / "noise" / f"{self.draw}-{self.rate:g}-{name}.parquet"

    def mark(self, run_folder: Path) -> bytes:
        """What a file of scores must say for it to be of this level, these rows and this run."""
        # A run made again has other weights under the same name.
        weights = [
            f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}"
            for path in sorted((run_folder / "checkpoint").glob("*"))
        ]
        return json.dumps([repr(self), *weights]).encode()


def noise_curve(
    runs: Path,
    arms: Sequence[str],
    config: RunConfig,
    *,
    control: str = "control",
    levels: Sequence[float] = LEVELS,
    draw: Draw = "uniform",
    types: Sequence[str] | None = None,
    metric: str = "AUC",
    seed: int = 0,
) -> NoiseCurves:
    """Scores every run at every level and draws the curve of each arm.

    Each run keeps its scores under `noise/` in its folder, so a later call makes only what is
    missing. At level 0 they are those that the run was tested with.

    Args:
        runs: The folder that holds `{arm}-seed{seed}` for all arms and seeds.
        arms: The arms, the control among them.
        config: The run: the prepared rows, the seeds, and how intervals are made.
        control: The arm that the others are compared with.
        levels: Shares of noise in the histories, increasing, in [0, 1).
        draw: `uniform` gives every item of the training rows the same chance, `popularity` one in
            proportion to the rows that show it.
        types: The types to plant into; by default those neither excluded nor trusted.
        metric: As `seqdenoise.evaluation.metrics.find_metrics` takes it.
        seed: Of the noise.

    Returns:
        The curves, the areas between them, and their falls.

    Raises:
        ConfigError: Levels or types that cannot be, or the control is not among the arms.
        DataError: A run is not finished, or a prepared file is missing or damaged.
    """
    _check(config, arms, control, levels)
    chosen = noisy_types(config) if types is None else tuple(types)
    check_types(config, chosen)
    files = files_fingerprint(config.prepared_folder)
    plan = [NoiseLevel(float(rate), draw, chosen, seed, files) for rate in levels]
    folders = {arm: [runs / f"{arm}-seed{s}" for s in config.ab.seeds] for arm in arms}
    with ParquetSource(config.prepared_folder / "test.parquet") as source:
        num_rows = source.num_rows
    tested = {folder: _tested(folder, num_rows) for of_arm in folders.values() for folder in of_arm}
    _score_missing(list(tested), plan, config)
    rows = next(iter(tested.values()))
    return noise_curves(
        rows["label"].to_numpy(),
        rows["user"].to_numpy(),
        {
            arm: np.stack(
                [[_scores(level, folder, tested[folder]) for folder in of_arm] for level in plan]
            )
            for arm, of_arm in folders.items()
        },
        list(levels),
        control=control,
        metric=metric,
        weights=rows["weight"].to_numpy() if "weight" in rows else None,
        num_resamples=config.ab.num_resamples,
        confidence=config.ab.confidence,
    )


def to_markdown(curves: NoiseCurves) -> str:
    """A table with a line an arm: the metric at each level, its fall, and both comparisons.

    A fall is how much worse the metric is at the last level than at the first: smaller is better.
    """
    heads = [f"{100 * level:g} % noise" for level in curves.levels]
    interval = f"({100 * curves.confidence:.6g} % interval)"
    heads += ["fall", f"fall against {curves.control} {interval}", "verdict of falls"]
    heads += [f"area against {curves.control} {interval}", "verdict of areas"]
    lines = [
        f"| {curves.metric} | " + " | ".join(heads) + " |",
        "| :--- |" + " ---: |" * (len(curves.levels) + 2) + " :--- | ---: | :--- |",
    ]
    fall_of_control = next(iter(curves.falls.values())).control
    for arm, points in curves.curves.items():
        cells = [f"{point.value:.4f}" for point in points]
        if arm == curves.control:
            cells += [f"{fall_of_control:.4f}", "", "", "", ""]
        else:
            fall, area = curves.falls[arm], curves.areas[arm]
            cells.append(f"{fall.treatment:.4f}")
            for one in (fall, area):
                ends = f"({one.low:+.5f} to {one.high:+.5f})"
                cells += [f"{one.difference:+.5f} {ends}", one.outcome]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _check(config: RunConfig, arms: Sequence[str], control: str, levels: Sequence[float]) -> None:
    increasing = all(a < b for a, b in pairwise(levels))
    if len(levels) < 2 or not increasing or levels[0] < 0 or levels[-1] >= 1:
        raise ConfigError(
            "noise levels: expected at least two increasing shares in [0, 1). "
            f"Received: {list(levels)}"
        )
    if control not in arms or len(set(arms)) < 2:
        raise ConfigError(
            f"noise: expected the control {control!r} and another arm. Received: {list(arms)}"
        )


def _tested(folder: Path, num_rows: int) -> pd.DataFrame:
    """The run's test rows with their scores."""
    try:
        rows = pd.read_parquet(folder / "scores.parquet")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder}: expected the folder of a finished training run. Received: {error}"
        ) from error
    if len(rows) != num_rows:
        raise DataError(
            f"{folder}: expected a run that was tested on the {num_rows} prepared test rows. "
            f"Received: one tested on {len(rows)}"
        )
    return rows


def _has_scores(level: NoiseLevel, folder: Path) -> bool:
    path = level.scores_of(folder)
    if level.rate == 0:
        return True
    if not path.is_file():
        return False
    return bool((pq.read_schema(path).metadata or {}).get(_MARK) == level.mark(folder))


def _scores(level: NoiseLevel, folder: Path, tested: pd.DataFrame) -> Scores:
    if level.rate == 0:
        return tested["score"].to_numpy()
    scores: Scores = pq.read_table(level.scores_of(folder))["score"].to_numpy()
    return scores


def _score_missing(folders: Sequence[Path], plan: Sequence[NoiseLevel], config: RunConfig) -> None:
    missing = {
        folder: levels
        for folder in folders
        if (levels := [level for level in plan if not _has_scores(level, folder)])
    }
    if not missing:
        return
    wanted = [level for level in plan if any(level in levels for levels in missing.values())]
    catalogue = training_catalogue(config)
    with tempfile.TemporaryDirectory(prefix=".noise.", dir=config.folder) as temporary:
        copies = {level: Path(temporary) / f"test-{level.rate:g}.parquet" for level in wanted}
        for level, path in copies.items():
            write_noisy(
                config.prepared_folder / "test.parquet",
                path,
                catalogue,
                types=level.types,
                rate=level.rate,
                max_length=config.prepare.max_length,
                draw=level.draw,
                seed=level.seed,
            )
        for done, (folder, levels) in enumerate(missing.items(), 1):
            started = time.monotonic()
            _score_run(folder, {level: copies[level] for level in levels})
            logger.info(
                "noise: scored run %d of %d, %s, at %d levels, %.0f s",
                done,
                len(missing),
                folder.name,
                len(levels),
                time.monotonic() - started,
            )


def _score_run(folder: Path, copies: dict[NoiseLevel, Path]) -> None:
    tf.keras.backend.clear_session()
    config, features, model = load_model(folder)
    for level, path in copies.items():
        with data_errors():
            dataset = features.dataset(
                path,
                label=config.model.label,
                batch_size=_BATCH,
                max_length=config.prepare.max_length,
            )
            scores = score(model, dataset)
        table = pa.table({"score": scores}).replace_schema_metadata({_MARK: level.mark(folder)})
        with atomic_file(level.scores_of(folder)) as aside:
            pq.write_table(table, aside)
