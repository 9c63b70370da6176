"""Training on several machines in step: a process on each, all of them named in `TF_CONFIG`."""

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipelines.config import ConfigError
from pipelines.job_errors import WorkerDiedError

_ROLES = {"chief", "worker"}
# Asking the chief is a message to all, so it is not done at every step.
_STEPS_BETWEEN_QUESTIONS = 32


@dataclass(frozen=True)
class Workers:
    """The processes that train one model together, seen from one of them.

    Each has the whole model and does the same steps, on its rows of every batch. The chief alone
    keeps backups, scores and writes; the others take its word.

    Attributes:
        strategy: What spreads the training; None for one process alone.
        is_chief: Whether this is the chief.
    """

    strategy: Any = None
    is_chief: bool = True

    def scope(self) -> AbstractContextManager[Any]:
        """Where the model is made."""
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def work_folder(self, of_chief: AbstractContextManager[Path]) -> AbstractContextManager[Path]:
        """The folder to work in: `of_chief`, or one of its own that is not kept."""
        return of_chief if self.is_chief else _scratch()

    def from_chief(self, value: Any) -> Any:
        """What the chief has as `value`, anything that JSON can hold. Every worker must ask.

        Args:
            value: Of the chief; those of other workers do not matter.

        Returns:
            The chief's.
        """
        if self.strategy is None:
            return value
        text = json.dumps(value).encode() if self.is_chief else b""

        def gathered() -> Any:
            context = tf.distribute.get_replica_context()
            # Of the chief's devices one sends.
            sends = tf.cast(context.replica_id_in_sync_group == 0, tf.int32)
            sent = tf.constant(list(text), tf.int32)[: sends * len(text)]
            return context.all_gather(sent, axis=0)

        first, *_ = self.strategy.experimental_local_results(self.strategy.run(gathered))
        return json.loads(bytes(first.numpy().tolist()))

    def asks_chief(self, steps: int, answer: Callable[[], bool]) -> bool:
        """What the chief answers after so many steps; False in between.

        Args:
            steps: The same number for every worker.
            answer: Called by the chief.

        Returns:
            The answer. One process alone is asked after every step.
        """
        if self.strategy is None:
            return answer()
        if steps % _STEPS_BETWEEN_QUESTIONS:
            return False
        return bool(self.from_chief(answer() if self.is_chief else None))

    def share(self, variables: Iterable[Any]) -> None:
        """Sets all workers' variables to the chief's."""
        if self.strategy is None:
            return

        def shared() -> None:
            context = tf.distribute.get_replica_context()
            is_source = context.replica_id_in_sync_group == 0
            for variable in variables:
                value = tf.convert_to_tensor(variable)
                sent = tf.where(is_source, value, tf.zeros_like(value))
                variable.assign(context.all_reduce("SUM", sent))

        self.strategy.run(tf.function(shared))

    def spread(self, dataset: tf.data.Dataset) -> Any:
        """Batches of which every worker gets its rows, in the order of the workers.

        Every worker reads all of them: so the batches, and with them the result, are those of one
        process, whatever the number of workers.

        Args:
            dataset: Batches, mappings from name to tensor `[B, ...]`; the same for every worker.

        Returns:
            What is to be iterated over; as often as `dataset`.
        """
        if self.strategy is None:
            return dataset
        return self.strategy.distribute_datasets_from_function(
            functools.partial(_rows_of_worker, dataset)
        )

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Turns the errors by which TensorFlow says that a worker is gone into one.

        Args:
            what: What the workers do.

        Raises:
            WorkerDiedError: A worker is gone.
        """
        try:
            yield
        except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
            if self.strategy is None:
                raise
            raise WorkerDiedError(
                f"{what}: expected all {self.strategy.num_replicas_in_sync} workers to go on. "
                f"Received: {type(error).__name__}, one is gone. Start all of them again: they go "
                "on from the last backup"
            ) from error


def _rows_of_worker(dataset: tf.data.Dataset, context: Any) -> tf.data.Dataset:
    """For each batch and each of the worker's devices an element: the device's rows."""
    replicas, workers = context.num_replicas_in_sync, context.num_input_pipelines
    here = replicas // workers
    first = context.input_pipeline_id * here

    def parts(batch: Any) -> tf.data.Dataset:
        rows = tf.shape(next(iter(batch.values())), tf.int64)[0]

        def part(replica: tf.Tensor) -> Any:
            start, stop = rows * replica // replicas, rows * (replica + 1) // replicas
            return {name: x[start:stop] for name, x in batch.items()}

        return tf.data.Dataset.range(first, first + here).map(part)

    return dataset.flat_map(parts).prefetch(2)


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@functools.cache
def workers() -> Workers:
    """The workers that `TF_CONFIG` names; this process alone without it.

    To be called before TensorFlow does anything else. One strategy serves a process for all its
    runs: the collectives of a second one would take the first one's for theirs.

    Returns:
        The workers, all of them there: it waits for those that are still to come.

    Raises:
        ConfigError: `TF_CONFIG` is no description of workers.
    """
    task = _task()
    if task is None:
        return Workers()
    cluster, role, index = task
    first = "chief" if "chief" in cluster else "worker"
    return Workers(tf.distribute.MultiWorkerMirroredStrategy(), (role, index) == (first, 0))


def refuse_workers(job: str) -> None:
    """Ends a job that trains one run after another where `TF_CONFIG` names workers.

    Args:
        job: What the message calls it.

    Raises:
        ConfigError: It does.
    """
    if _task() is not None:
        raise ConfigError(
            f"TF_CONFIG: {job} expects to be one process. Received: one of several workers. Train "
            "each run by `train` on the workers, and compare their scores by `compare`"
        )


def _task() -> tuple[dict[str, list[str]], str, int] | None:
    """The cluster of `TF_CONFIG`, and the role and number of this process in it, if there is one.

    Raises:
        ConfigError: As `workers`.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        content = json.loads(text)
        cluster, task = content.get("cluster", {}), content.get("task", {})
        role, index = task.get("type"), task.get("index")
        is_complete = not cluster or (set(cluster) <= _ROLES and role in cluster)
    except (ValueError, AttributeError, TypeError) as error:
        raise _bad_config(text) from error
    if not is_complete or (cluster and index not in range(len(cluster[role]))):
        raise _bad_config(text)
    return (cluster, role, index) if cluster else None


def _bad_config(text: str) -> ConfigError:
    return ConfigError(
        "TF_CONFIG: expected JSON with `cluster`, the addresses of `worker` and perhaps `chief`, "
        f"and `task`, the `type` and `index` of this process among them. Received: {text}"
    )
