"""The A/B: control and treatment over several seeds, compared on the test rows."""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipelines.config import RunConfig
from pipelines.features import fit_features
from pipelines.train import train
from seqdenoise.data.atomic import atomic_file
from seqdenoise.evaluation.compare import Comparison, compare
from seqdenoise.evaluation.verdict import to_dict, to_markdown

logger = logging.getLogger(__name__)

ARMS = {"control": False, "treatment": True}


def _fingerprint(config: RunConfig, *, denoise: bool) -> str:
    """What a run depends on: its part of the configuration and the prepared files."""
    sections = {"prepare", "model", "train"} | ({"denoiser"} if denoise else set())
    content = [config.model_dump_json(include=sections)]
    for path in sorted(config.prepared_folder.iterdir()):
        content.append(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}")
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _is_finished(folder: Path, fingerprint: str) -> bool:
    # Runs are renamed into place when whole, so a folder that is there is finished; it may still be
    # that of another configuration.
    mark = folder / "fingerprint.txt"
    return mark.is_file() and mark.read_text(encoding="utf-8") == fingerprint


def run_ab(config: RunConfig) -> Comparison:
    """Trains both arms with every seed and compares them.

    Both arms have the same model, data, data order and seed; they differ in the plug-in alone. Runs
    that an earlier call finished with the same configuration and data are kept. Writes
    `ab/ab.json`, `ab/ab.md` and one folder a run under `ab/runs/` (see `train`).

    Args:
        config: The run.

    Returns:
        The comparison.

    Raises:
        DataError: A prepared file is missing, damaged, or lacks a column or a class.
    """
    folder = config.folder / "ab"
    features = fit_features(config)
    for seed in config.ab.seeds:
        for arm, denoise in ARMS.items():
            run_folder = folder / "runs" / f"{arm}-seed{seed}"
            fingerprint = _fingerprint(config, denoise=denoise)
            if _is_finished(run_folder, fingerprint):
                logger.info("%s, seed %d: kept from an earlier call", arm, seed)
                continue
            train(config, run_folder, denoise=denoise, seed=seed, features=features)
            (run_folder / "fingerprint.txt").write_text(fingerprint, encoding="utf-8")
    comparison = compare_runs(folder, config)
    summary = {
        "label": config.model.label,
        "confidence": config.ab.confidence,
        "arms": list(ARMS),
        "seeds": config.ab.seeds,
        "comparison": to_dict(comparison),
        "config": json.loads(config.model_dump_json()),
    }
    with atomic_file(folder / "ab.json") as aside:
        aside.write_text(json.dumps(summary, indent=2, allow_nan=False), encoding="utf-8")
    with atomic_file(folder / "ab.md") as aside:
        aside.write_text(to_markdown(comparison), encoding="utf-8")
    return comparison


def compare_runs(folder: Path, config: RunConfig) -> Comparison:
    """Compares the finished runs of an A/B folder.

    Args:
        folder: The A/B folder.
        config: The run: which seeds, and how the interval is made.

    Returns:
        The comparison.
    """

    def scores(arm: str) -> list[pd.DataFrame]:
        runs = [folder / "runs" / f"{arm}-seed{seed}" for seed in config.ab.seeds]
        return [pd.read_parquet(run / "scores.parquet") for run in runs]

    tables: dict[str, Any] = {arm: scores(arm) for arm in ARMS}
    rows = tables["control"][0]
    return compare(
        rows["label"].to_numpy(),
        rows["user"].to_numpy(),
        *(np.stack([frame["score"].to_numpy() for frame in tables[arm]]) for arm in ARMS),
        num_resamples=config.ab.num_resamples,
        confidence=config.ab.confidence,
    )
