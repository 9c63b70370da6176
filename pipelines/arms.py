"""Training the arms of a run over its seeds: each run once, finished ones kept."""

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from pipelines.config import ConfigError, RunConfig
from pipelines.distribution import refuse_workers
from pipelines.features import Features, fit_features
from pipelines.job_errors import WorkerDiedError
from pipelines.run_comparison import compare_runs
from pipelines.run_record import fingerprint, is_finished
from pipelines.train import train
from pipelines.training_pool import training_pool
from seqdenoise.data.atomic import atomic_file

logger = logging.getLogger(__name__)

_HEALTH = ("alignment", "uniformity", "effective_rank")
CONTROL = "control"
_CORES_OF_A_RUN = 4
_BYTES_OF_A_RUN = 2 * 2**30


@dataclass(frozen=True)
class _Run:
    """One arm with one seed, to be trained."""

    arm: str
    seed: int
    config: RunConfig
    features: Features
    folder: Path


def default_processes() -> int:
    """How many runs to train at a time on this machine: one for every four cores, at least one.

    TensorFlow spreads a run of the reference ranker over two to four cores, so on a machine of two
    a second process would wait for the first. A process takes some 2 GB. With a GPU it is one:
    TensorFlow takes all of a GPU's memory.
    """
    if tf.config.list_physical_devices("GPU"):
        return 1
    by_cores = len(os.sched_getaffinity(0)) // _CORES_OF_A_RUN
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(by_cores, memory // _BYTES_OF_A_RUN))


def train_arms(
    arms: Mapping[str, RunConfig],
    seeds: Sequence[int],
    folder: Path,
    *,
    processes: int | None = 1,
    on_run: Callable[[bool], object] | None = None,
) -> None:
    """Trains every arm with every seed into `folder/{arm}-seed{seed}` (see `train`).

    Arms of one seed see the same data in the same order. Runs that an earlier call finished with
    the same configuration, data and versions are kept, also those of a call that failed half-way,
    and the one that it was at goes on from its last backup. How many are trained at a time changes
    results by rounding alone (see `training_pool`).

    Args:
        arms: By name, the run of each.
        seeds: The seeds.
        folder: Where the runs go.
        processes: How many runs to train at a time, each in a process of its own if more than one;
            None for `default_processes`.
        on_run: Called for each run that is there, with whether it was kept, in place of a log line.

    Raises:
        ConfigError: The plug-in's options do not go together, or `TF_CONFIG` names workers.
        DataError: A prepared file is missing, damaged, or lacks a column or a class.
        WorkerDiedError: A process was killed.
    """
    refuse_workers("training several runs")
    runs = _missing_runs(arms, seeds, folder, on_run)
    number = default_processes() if processes is None else processes
    if number <= 1 or not runs:
        for done, run in enumerate(runs, 1):
            _train_run(run)
            _tell_done(run, done, len(runs), on_run)
        return
    try:
        with training_pool(number) as pool:
            futures = {pool.submit(_train_run, run): run for run in runs}
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                _tell_done(futures[future], done, len(runs), on_run)
    except BrokenProcessPool as error:
        raise worker_died(folder) from error


def worker_died(folder: Path) -> WorkerDiedError:
    """The error of a pool of which a process is gone.

    Args:
        folder: Where the runs are.
    """
    return WorkerDiedError(
        "training: expected every process to finish its run. Received: one that ended "
        "without an answer, killed for its memory most likely. What is finished is kept in "
        f"{folder}; run again, with fewer processes: the others go on from their backups"
    )


def _missing_runs(
    arms: Mapping[str, RunConfig],
    seeds: Sequence[int],
    folder: Path,
    on_run: Callable[[bool], object] | None,
) -> list[_Run]:
    runs = []
    fitted: dict[str, Features] = {}
    for seed in seeds:
        for arm, config in arms.items():
            run_folder = folder / f"{arm}-seed{seed}"
            model = config.model.model_dump_json()
            if model not in fitted:
                fitted[model] = fit_features(config)  # says so if nothing is prepared
            if is_finished(run_folder, fingerprint(config, seed)):
                if on_run is None:
                    logger.info("%s, seed %d: kept from an earlier call", arm, seed)
                else:
                    on_run(True)
                continue
            runs.append(_Run(arm, seed, config, fitted[model], run_folder))
    return runs


def _train_run(run: _Run) -> None:
    train(run.config, run.folder, seed=run.seed, features=run.features, name=run.arm)


def _tell_done(run: _Run, done: int, total: int, on_run: Callable[[bool], object] | None) -> None:
    if on_run is None:
        logger.info("%s, seed %d: trained, run %d of %d", run.arm, run.seed, done, total)
    else:
        on_run(False)


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
