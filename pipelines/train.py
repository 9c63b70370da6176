"""One training run: fit, stop early on validation AUC, score the test rows, write it all down."""

import json
import logging
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import tensorflow as tf

from pipelines.backups import BEST, Backups
from pipelines.config import RunConfig
from pipelines.denoiser import build_denoiser
from pipelines.distribution import Workers, workers
from pipelines.features import Features, fit_features
from pipelines.fitting import fit
from pipelines.job_errors import DivergedError
from pipelines.progress import Progress
from pipelines.ranker import Ranker
from pipelines.ranking_model import RankingModel
from pipelines.run_logging import run_logging
from pipelines.run_record import run_record
from pipelines.unfinished_run import BACKUPS, unfinished_run
from seqdenoise.data.atomic import replace_folder
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.parquet import data_errors
from seqdenoise.errors import DataError
from seqdenoise.evaluation.ranking import auc, gauc, log_loss

logger = logging.getLogger(__name__)

_SCORING_BATCH = 4096
_RESULTS = "run"
_WARM_START = "warm_start"
_ORDER_OF_WARM_START = 1 << 30


def build_model(config: RunConfig, features: Features, *, seed: int) -> RankingModel:
    """Builds the ranking model, with or without the plug-in.

    Args:
        config: The run.
        features: The fitted features.
        seed: Seed of the plug-in and of dropout; the host's weights take the global one.

    Returns:
        The model, not yet compiled.

    Raises:
        ConfigError: The plug-in's options do not go together.
        DataError: What they need of the prepared folder is not there.
    """
    denoiser = build_denoiser(config, seed=seed) if config.denoiser.enabled else None
    return RankingModel(
        Ranker(features.ranker_spec(config), seed),
        config.model.label,
        denoiser,
        config.denoiser.positives,
        seed,
        is_joint=config.denoiser.weight > 0,
        jit_compile=config.train.jit_compile
        and tf.distribute.get_strategy().num_replicas_in_sync == 1,
    )


def _learning_rate(config: RunConfig) -> Any:
    settings = config.train
    if not settings.cosine_decay:
        return settings.learning_rate
    with ParquetSource(config.prepared_folder / "train.parquet") as source:
        steps = -(-source.num_rows // settings.batch_size) * settings.epochs
    return tf.keras.optimizers.schedules.CosineDecay(settings.learning_rate, steps)


def score(model: RankingModel, dataset: tf.data.Dataset) -> npt.NDArray[np.float32]:
    """Click probabilities `[rows]` of every row of a dataset, in its order."""
    with data_errors():
        return np.concatenate([model.probabilities(batch).numpy() for batch in dataset])


def _targets(path: Path, label: str) -> pd.DataFrame:
    """`user`, `label`, and `weight` where the log has it."""
    with ParquetSource(path) as source:
        names = ["user", label, *(name for name in ["weight"] if name in source.schema.names)]
        source.require(names)
        parts = [
            source.read_row_group(index, names).to_pandas()
            for index in range(source.num_row_groups)
        ]
    frame = pd.concat(parts, ignore_index=True).rename(columns={label: "label"})
    if frame["label"].nunique() < 2:
        raise DataError(
            f"{path}, column `{label}`: expected both classes. "
            f"Received: only {frame['label'].unique().tolist()}"
        )
    return frame


def _quality(targets: pd.DataFrame, scores: npt.NDArray[np.float32]) -> dict[str, float]:
    labels, users = targets["label"].to_numpy(), targets["user"].to_numpy()
    weights = targets["weight"].to_numpy() if "weight" in targets else None
    return {
        "auc": float(auc(labels, scores, weights=weights)),
        "gauc": float(gauc(labels, scores, users, weights=weights)),
        "log_loss": float(log_loss(labels, scores, weights=weights)),
    }


def _history(progress: Progress) -> pd.DataFrame:
    frame = pd.DataFrame(progress.history).rename(columns={"mean_loss": "loss"})
    frame.insert(0, "epoch", np.arange(1, len(frame) + 1))
    return frame


def _train(
    config: RunConfig,
    features: Features,
    work: Path,
    record: dict[str, Any],
    run: str,
    team: Workers,
    test: bool,
) -> dict[str, Any]:
    """Does what `train` says; the chief writes the results in its work folder."""
    started = time.monotonic()
    seed, settings, label = record["seed"], config.train, config.model.label
    scored = ("valid", "test") if test else ("valid",)
    paths = {split: config.prepared_folder / f"{split}.parquet" for split in ("train", *scored)}
    targets = {split: _targets(paths[split], label) for split in scored}
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(seed)
    shape: dict[str, Any] = {"label": label, "max_length": config.prepare.max_length}
    scoring = {
        split: features.dataset(paths[split], batch_size=_SCORING_BATCH, **shape)
        for split in scored
    }
    # A dataset of its own: one more pass over the training one would change its order.
    unshuffled = features.dataset(paths["train"], batch_size=settings.batch_size, **shape)
    with data_errors():
        batch = next(iter(unshuffled))
    with team.scope():
        model = build_model(config, features, seed=seed)
        model(batch)

    def training(shuffle_seed: int, first_step: int) -> tf.data.Dataset:
        return features.dataset(
            paths["train"],
            batch_size=settings.batch_size,
            shuffle_seed=shuffle_seed,
            pool_row_groups=settings.pool_row_groups,
            first_step=first_step,
            **shape,
        )

    def start(learning_rate: Any) -> None:
        """With an optimiser of its own; all variables must be there before a backup is read."""
        with team.scope():
            model.compile(optimizer=tf.keras.optimizers.Adam(learning_rate))
            model.optimizer.build(model.trainable_variables)

    def end_of_epoch(epoch: int, figures: dict[str, float], seconds: float) -> None:
        if config.denoiser.enabled and config.denoiser.weight > 0:
            ratio, cosine = model.gradient_balance(batch)
            figures["side_gradient_ratio"] = float(ratio)
            figures["side_gradient_cosine"] = float(cosine)
        if not team.is_chief:
            return
        # Keras' own AUC is binned.
        scores = score(model, scoring["valid"])
        undefined = int(np.isnan(scores).sum())
        if undefined:
            raise DivergedError(
                f"{run}, epoch {epoch + 1}: expected scores that are numbers. Received: NaN for "
                f"{undefined:,} of {len(scores):,} validation rows, from train.learning_rate="
                f"{settings.learning_rate:g}; a smaller one may help"
            )
        quality = _quality(targets["valid"], scores)
        figures.update({f"valid_{name}": value for name, value in quality.items()})
        logger.info(
            "%s: epoch %d, loss %.4f, valid AUC %.4f, %.0f s",
            run,
            epoch + 1,
            figures["mean_loss"],
            figures["valid_auc"],
            seconds,
        )

    def end_of_warm_epoch(epoch: int, figures: dict[str, float], seconds: float) -> None:
        logger.info(
            "%s: warm start, epoch %d, side loss %.4f, %.0f s",
            run,
            epoch + 1,
            figures["mean_loss"],
            seconds,
        )

    results = work / _RESULTS
    results.mkdir(exist_ok=True)
    before = time.monotonic() - started
    with (
        run_logging(
            results,
            run,
            tensorboard=settings.tensorboard and team.is_chief,
            mlflow=settings.mlflow if team.is_chief else None,
        ) as loggers,
        data_errors(),
    ):
        steps, warmed = int(unshuffled.cardinality()), 0.0
        if model.denoiser is not None and config.denoiser.warm_start_epochs:
            start(settings.learning_rate)
            model.is_warming = True
            warmed = fit(
                model,
                # Not the order in which the ranking, and so the control, sees the rows.
                partial(training, seed + _ORDER_OF_WARM_START),
                end_of_warm_epoch,
                Backups(work / BACKUPS / _WARM_START, model, settings.backup_minutes, run),
                steps=steps,
                epochs=config.denoiser.warm_start_epochs,
                patience=0,
                team=team,
            ).seconds
            model.is_warming = False
            model.denoiser.step.assign(0)  # schedules and warm-up begin with the ranking
        start(_learning_rate(config))
        backups = Backups(work / BACKUPS, model, settings.backup_minutes, run)
        progress = fit(
            model,
            partial(training, seed),
            end_of_epoch,
            backups,
            steps=steps,
            epochs=settings.epochs,
            patience=settings.patience,
            team=team,
            callbacks=loggers,
        )
    if not team.is_chief:
        return {}
    after = time.monotonic()
    best = backups.best(progress.best_epoch)
    model.load_weights(str(best / BEST)).expect_partial()
    of_best = progress.history[progress.best_epoch]
    metrics: dict[str, Any] = {
        "label": label,
        "seed": seed,
        "denoise": config.denoiser.enabled,
        "best_epoch": progress.best_epoch + 1,
        "epochs": progress.epoch,
        "rows": {split: len(frame) for split, frame in targets.items()},
        "valid": {name: of_best[f"valid_{name}"] for name in ("auc", "gauc", "log_loss")},
    }
    if test:
        scores = score(model, scoring["test"])
        metrics["test"] = _quality(targets["test"], scores)
    metrics["seconds"] = round(before + warmed + progress.seconds + time.monotonic() - after, 1)
    metrics["versions"] = record["versions"]
    with backups.needs_room("the results"):
        shutil.copytree(best, results / "checkpoint", dirs_exist_ok=True)
        _history(progress).to_csv(results / "history.csv", index=False)
        if test:
            targets["test"].assign(score=scores).to_parquet(results / "scores.parquet")
        features.save(results / "features.json")
        texts = {
            "run.json": config.model_dump_json(indent=2),
            "metrics.json": json.dumps(metrics, indent=2),
            "record.json": json.dumps(record, indent=2),
            "fingerprint.txt": record["fingerprint"],
        }
        for name, text in texts.items():
            (results / name).write_text(text, encoding="utf-8")
    return metrics


def train(
    config: RunConfig,
    folder: Path,
    *,
    seed: int = 0,
    features: Features | None = None,
    name: str | None = None,
    test: bool = True,
) -> dict[str, Any]:
    """Trains one model and writes `folder`, whole or not at all.

    The folder holds `metrics.json`, `history.csv`, `scores.parquet` (test rows in file order, with
    `weight` where the log has it), `features.json`, `run.json` (the configuration), `record.json`
    (what else the run depends on), `fingerprint.txt` and `checkpoint/`, the weights of the best
    epoch by validation AUC.

    A run that was killed goes on from its last backup when it is run again, if configuration, data,
    seed and versions are the same, and ends with the same bits. Backups are kept beside the folder
    until the run is finished, in `.{name of folder}.unfinished`.

    Of several workers (see `pipelines.distribution`) the chief writes, and the result is that of
    one process up to rounding.

    Args:
        config: The run.
        folder: The output folder; replaced where it exists.
        seed: Seed of initial weights, dropout, shuffling and masks.
        features: Fitted features, to share between runs; fitted here by default.
        name: What the log lines call it; `control` or `treatment` by default.
        test: Whether to score the test rows. Without, no byte of them is read, there is no
            `scores.parquet`, and `metrics.json` has no `test`: for settings to choose from.

    Returns:
        What `metrics.json` holds.

    Raises:
        ConfigError: The plug-in's options do not go together.
        DataError: A prepared file is missing, damaged, or lacks a column or a class.
        DiskFullError: There is no room to write.
        DivergedError: Validation scores became NaN.
        FolderInUseError: Another process is at the same run.
        WorkerDiedError: Another worker is gone.
    """
    team = workers()
    if config.train.deterministic:
        tf.config.experimental.enable_op_determinism()
    run = f"{name or ('treatment' if config.denoiser.enabled else 'control')}, seed {seed}"
    features = fit_features(config) if features is None else features
    record = run_record(config, seed, test=test)
    of_chief = unfinished_run(folder, record["fingerprint"], run)
    with team.together(run), team.work_folder(of_chief) as work:
        metrics = _train(config, features, work, record, run, team, test)
        if team.is_chief:
            replace_folder(work / _RESULTS, folder)
        metrics = team.from_chief(metrics)
    last = "test" if test else "valid"
    logger.info(
        "%s: best epoch %d, %s AUC %.4f, GAUC %.4f, %.0f s",
        run,
        metrics["best_epoch"],
        last,
        metrics[last]["auc"],
        metrics[last]["gauc"],
        metrics["seconds"],
    )
    return metrics
