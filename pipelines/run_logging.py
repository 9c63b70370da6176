"""Optional logging of a training run, through the callbacks of TensorBoard and of MLflow."""

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipelines.config import ConfigError
from seqdenoise.data.atomic import atomic_file


def _require(package: str, key: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{key}: expected the package {package}, for instance from "
            f"`pip install seqdenoise[{package}]`. Received: none"
        )


@contextmanager
def run_logging(
    folder: Path, run: str, *, tensorboard: bool = False, mlflow: str | None = None
) -> Iterator[list[Any]]:
    """The callbacks that log a training run, in whose logs all metrics must be already.

    A run that is taken up again goes on in the same MLflow run.

    Args:
        folder: The run's folder; TensorBoard's files go to `tensorboard/` in there, and the id of
            the MLflow run to `mlflow_run_id.txt`.
        run: What MLflow calls the run.
        tensorboard: Whether to log to TensorBoard.
        mlflow: The MLflow experiment to log to, wherever its tracking URI says; None for none.

    Yields:
        Keras callbacks, to come last; the MLflow run ends with the block.

    Raises:
        ConfigError: A package is missing.
    """
    callbacks: list[Any] = []
    if tensorboard:
        _require("tensorboard", "train.tensorboard")
        callbacks.append(
            tf.keras.callbacks.TensorBoard(
                str(folder / "tensorboard"), write_graph=False, profile_batch=0
            )
        )
    if mlflow is None:
        yield callbacks
        return
    _require("mlflow", "train.mlflow")
    tracking = importlib.import_module("mlflow")
    tracking.set_experiment(mlflow)
    kept = folder / "mlflow_run_id.txt"
    known = kept.read_text(encoding="utf-8") if kept.exists() else None
    with tracking.start_run(run_id=known, run_name=None if known else run) as started:
        with atomic_file(kept) as aside:
            aside.write_text(started.info.run_id, encoding="utf-8")
        yield [*callbacks, importlib.import_module("mlflow.tensorflow").MlflowCallback()]
