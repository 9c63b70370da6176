"""Training the arms of a run over its seeds: each run once, finished ones kept."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipelines.config import ConfigError, RunConfig
from pipelines.features import Features, fit_features
from pipelines.run_comparison import compare_runs
from pipelines.train import train
from seqdenoise.data.atomic import atomic_file

logger = logging.getLogger(__name__)

_HEALTH = ("alignment", "uniformity", "effective_rank")
CONTROL = "control"


def _fingerprint(config: RunConfig) -> str:
    """What a run depends on: its part of the configuration and the prepared files."""
    sections = {"prepare", "model", "train"}
    # The other options of a plug-in that is off change nothing.
    sections |= {"denoiser"} if config.denoiser.enabled else set()
    content = [config.model_dump_json(include=sections)]
    for path in sorted(config.prepared_folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(config.prepared_folder)
            content.append(f"{name} {path.stat().st_size} {path.stat().st_mtime_ns}")
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _is_finished(folder: Path, fingerprint: str) -> bool:
    # Runs are renamed into place when whole, so a folder that is there is finished; it may still be
    # that of another configuration.
    mark = folder / "fingerprint.txt"
    return mark.is_file() and mark.read_text(encoding="utf-8") == fingerprint


def train_arms(arms: Mapping[str, RunConfig], seeds: Sequence[int], folder: Path) -> None:
    """Trains every arm with every seed into `folder/{arm}-seed{seed}` (see `train`).

    Arms of one seed see the same data in the same order. Runs that an earlier call finished with
    the same configuration and data are kept.

    Args:
        arms: By name, the run of each.
        seeds: The seeds.
        folder: Where the runs go.

    Raises:
        ConfigError: The plug-in's options do not go together.
        DataError: A prepared file is missing, damaged, or lacks a column or a class.
    """
    fitted: dict[str, Features] = {}
    for seed in seeds:
        for arm, config in arms.items():
            run_folder = folder / f"{arm}-seed{seed}"
            model = config.model.model_dump_json()
            if model not in fitted:
                fitted[model] = fit_features(config)  # says so if nothing is prepared
            fingerprint = _fingerprint(config)
            if _is_finished(run_folder, fingerprint):
                logger.info("%s, seed %d: kept from an earlier call", arm, seed)
                continue
            train(config, run_folder, seed=seed, features=fitted[model], name=arm)
            (run_folder / "fingerprint.txt").write_text(fingerprint, encoding="utf-8")


def _row(run_folder: Path) -> dict[str, Any]:
    metrics = json.loads((run_folder / "metrics.json").read_text(encoding="utf-8"))
    history = pd.read_csv(run_folder / "history.csv").set_index("epoch")
    best = history.loc[metrics["best_epoch"]]
    row = {
        "valid AUC": metrics["valid"]["auc"],
        "test AUC": metrics["test"]["auc"],
        "test GAUC": metrics["test"]["gauc"],
    }
    for health in _HEALTH:
        of_types = [column for column in history.columns if column.endswith(f"/{health}")]
        row[health.replace("_", " ")] = best[of_types].mean() if of_types else np.nan
    row["gradient ratio"] = best.get("side_gradient_ratio", np.nan)
    row["best epoch"] = metrics["best_epoch"]
    return row


def run_arms(config: RunConfig) -> pd.DataFrame:
    """Trains the arms of a run file over its seeds and puts their figures side by side.

    Writes one folder a run under `arms/runs/`, and the table as `arms/arms.csv`. An arm named
    `control` is what the others are compared with, each on its own: the more arms, the likelier
    that one of the intervals lies beside 0 by chance.

    Args:
        config: The run, with arms.

    Returns:
        One row an arm, means over the seeds: quality, the plug-in's health at the best epoch (means
        over types), the ratio of its gradient on the embeddings to the ranking loss's. With a
        control also, of each metric, its difference to the control's and the ends of the interval
        over users and seeds.

    Raises:
        ConfigError: There are no arms, or the plug-in's options do not go together.
        DataError: A prepared file is missing, damaged, or lacks a column or a class.
    """
    if not config.arms:
        raise ConfigError("arms: expected at least one arm. Received: none")
    folder = config.folder / "arms"
    runs = folder / "runs"
    train_arms({name: config.arm(name) for name in config.arms}, config.ab.seeds, runs)
    rows = {
        arm: pd.DataFrame([_row(runs / f"{arm}-seed{seed}") for seed in config.ab.seeds]).mean()
        for arm in config.arms
    }
    table = pd.DataFrame(rows).T.rename_axis("arm")
    if CONTROL in config.arms:
        for arm in config.arms:
            if arm == CONTROL:
                continue
            for metric in compare_runs(runs, CONTROL, arm, config).metrics:
                for part in ("difference", "low", "high"):
                    table.loc[arm, f"{metric.metric} {part}"] = getattr(metric, part)
    with atomic_file(folder / "arms.csv") as aside:
        table.to_csv(aside)
    return table


def to_markdown(table: pd.DataFrame) -> str:
    """The table as Markdown, figures rounded for reading, intervals behind their differences."""
    places = {"best epoch": 1, "effective rank": 1, "gradient ratio": 3}
    places |= {"alignment": 3, "uniformity": 3}

    def cell(row: pd.Series, column: str) -> str:
        if np.isnan(row[column]):
            return ""
        metric, _, part = column.rpartition(" ")
        if part == "difference":
            low, high = row[f"{metric} low"], row[f"{metric} high"]
            return f"{row[column]:+.5f} ({low:+.5f} to {high:+.5f})"
        return f"{row[column]:.{places.get(column, 5)}f}"

    columns = [str(name) for name in table.columns if not str(name).endswith((" low", " high"))]
    lines = ["| arm | " + " | ".join(columns) + " |", "| :--- |" + " ---: |" * len(columns)]
    for arm, row in table.iterrows():
        lines.append(f"| {arm} | " + " | ".join(cell(row, column) for column in columns) + " |")
    return "\n".join(lines)
