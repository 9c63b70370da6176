"""One training run: fit, stop early on validation AUC, score the test rows, write it all down."""

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import tensorflow as tf

import seqdenoise
from pipelines.config import RunConfig
from pipelines.denoiser import build_denoiser
from pipelines.features import Features, fit_features
from pipelines.models import Ranker, RankingModel
from pipelines.run_logging import run_logging
from seqdenoise.data.atomic import atomic_folder
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.parquet import data_errors
from seqdenoise.errors import DataError
from seqdenoise.evaluation.ranking import auc, gauc, log_loss

logger = logging.getLogger(__name__)

_SCORING_BATCH = 4096


def build_model(config: RunConfig, features: Features, *, seed: int) -> RankingModel:
    """Builds the ranking model, with or without the plug-in.

    Args:
        config: The run.
        features: The fitted features.
        seed: Seed of the plug-in; the host takes the global one.

    Returns:
        The model, not yet compiled.

    Raises:
        ConfigError: The plug-in's options do not go together.
        DataError: What they need of the prepared folder is not there.
    """
    denoiser = build_denoiser(config, seed=seed) if config.denoiser.enabled else None
    return RankingModel(
        Ranker(features.ranker_spec(config)),
        config.model.label,
        denoiser,
        config.denoiser.positives,
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


class _GradientBalance(tf.keras.callbacks.Callback):
    """Puts the side loss's share in the gradients, on one batch, into the logs of each epoch."""

    def __init__(self, batch: dict[str, tf.Tensor]) -> None:
        super().__init__()
        self._batch = batch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        ratio, cosine = self.model.gradient_balance(self._batch)
        if logs is not None:
            logs["side_gradient_ratio"] = float(ratio)
            logs["side_gradient_cosine"] = float(cosine)


class _ValidationAuc(tf.keras.callbacks.Callback):
    """Puts the exact validation AUC into the logs of each epoch (Keras' own is binned)."""

    def __init__(self, dataset: tf.data.Dataset, targets: pd.DataFrame, run: str) -> None:
        super().__init__()
        self._dataset = dataset
        self._targets = targets
        self._run = run

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._started = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = {} if logs is None else logs
        logs["valid_auc"] = _quality(self._targets, score(self.model, self._dataset))["auc"]
        logger.info(
            "%s: epoch %d, loss %.4f, valid AUC %.4f, %.0f s",
            self._run,
            epoch + 1,
            logs["ranking_loss"],
            logs["valid_auc"],
            time.monotonic() - self._started,
        )


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


def _history(fitted: Any) -> pd.DataFrame:
    frame = pd.DataFrame(fitted.history)
    # What TFRS logs under these names is the last batch's, not the epoch's.
    frame = frame.drop(columns=["loss", "regularization_loss", "total_loss"], errors="ignore")
    frame = frame.rename(columns={"ranking_loss": "loss"})
    frame.insert(0, "epoch", np.arange(1, len(frame) + 1))
    return frame


def train(
    config: RunConfig,
    folder: Path,
    *,
    seed: int = 0,
    features: Features | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Trains one model and writes `folder`, whole or not at all.

    The folder holds `metrics.json`, `history.csv`, `scores.parquet` (test rows in file order, with
    `weight` where the log has it), `features.json`, `run.json` (the configuration) and
    `checkpoint/`, the weights of the best epoch by validation AUC.

    Args:
        config: The run.
        folder: The output folder; replaced where it exists.
        seed: Seed of initial weights, dropout, shuffling and masks.
        features: Fitted features, to share between runs; fitted here by default.
        name: What the log lines call it; `control` or `treatment` by default.

    Returns:
        What `metrics.json` holds.

    Raises:
        ConfigError: The plug-in's options do not go together.
        DataError: A prepared file is missing, damaged, or lacks a column or a class.
    """
    started = time.monotonic()
    denoise = config.denoiser.enabled
    label, settings = config.model.label, config.train
    features = fit_features(config) if features is None else features
    paths = {
        split: config.prepared_folder / f"{split}.parquet" for split in ("train", "valid", "test")
    }
    targets = {split: _targets(paths[split], label) for split in ("valid", "test")}

    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(seed)
    shape: dict[str, Any] = {"label": label, "max_length": config.prepare.max_length}
    training = features.dataset(
        paths["train"],
        batch_size=settings.batch_size,
        shuffle_seed=seed,
        pool_row_groups=settings.pool_row_groups,
        **shape,
    )
    scoring = {
        split: features.dataset(paths[split], batch_size=_SCORING_BATCH, **shape)
        for split in ("valid", "test")
    }
    model = build_model(config, features, seed=seed)
    model.compile(optimizer=tf.keras.optimizers.Adam(_learning_rate(config)))
    run = f"{name or ('treatment' if denoise else 'control')}, seed {seed}"
    callbacks: list[Any] = []
    if denoise and config.denoiser.weight > 0:
        # A dataset of its own: one more pass over `training` would change its order.
        first = features.dataset(paths["train"], batch_size=settings.batch_size, **shape)
        with data_errors():
            callbacks.append(_GradientBalance(next(iter(first))))
    with atomic_folder(folder) as aside:
        best = str(aside / "checkpoint" / "best")
        with (
            run_logging(
                aside, run, tensorboard=settings.tensorboard, mlflow=settings.mlflow
            ) as loggers,
            data_errors(),
        ):
            fitted = model.fit(
                training,
                epochs=settings.epochs,
                verbose=1 if sys.stdout.isatty() else 0,
                callbacks=[
                    *callbacks,
                    _ValidationAuc(scoring["valid"], targets["valid"], run),
                    tf.keras.callbacks.ModelCheckpoint(
                        best,
                        monitor="valid_auc",
                        mode="max",
                        save_best_only=True,
                        save_weights_only=True,
                    ),
                    tf.keras.callbacks.EarlyStopping(
                        monitor="valid_auc", mode="max", patience=settings.patience
                    ),
                    *loggers,
                ],
            )
        model.load_weights(best).expect_partial()
        scores = {split: score(model, scoring[split]) for split in ("valid", "test")}
        history = _history(fitted)
        metrics: dict[str, Any] = {
            "label": label,
            "seed": seed,
            "denoise": denoise,
            "best_epoch": int(np.argmax(history["valid_auc"])) + 1,
            "epochs": len(history),
            "rows": {split: len(frame) for split, frame in targets.items()},
            **{split: _quality(targets[split], scores[split]) for split in ("valid", "test")},
            "seconds": round(time.monotonic() - started, 1),
            "versions": {"seqdenoise": seqdenoise.__version__, "tensorflow": tf.__version__},
        }
        history.to_csv(aside / "history.csv", index=False)
        targets["test"].assign(score=scores["test"]).to_parquet(aside / "scores.parquet")
        features.save(aside / "features.json")
        (aside / "run.json").write_text(config.model_dump_json(indent=2), encoding="utf-8")
        (aside / "metrics.json").write_text(json.dumps(metrics, indent=2), encoding="utf-8")
    logger.info(
        "%s: best epoch %d, test AUC %.4f, GAUC %.4f, %.0f s",
        run,
        metrics["best_epoch"],
        metrics["test"]["auc"],
        metrics["test"]["gauc"],
        metrics["seconds"],
    )
    return metrics
