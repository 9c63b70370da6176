"""What training needs to go on after it was killed: kept now and then, and read back whole.

Not `tf.keras.callbacks.BackupAndRestore`: what goes on from its backups is another run. It keeps
neither where reading stands nor the epoch's metrics in the middle of an epoch, nor the learning
curve, from which the best epoch and the end follow; a backup after an epoch's last batch skips what
comes at the epoch's end; there is one backup, so none if that cannot be read; and it is gone before
the scores are written.
"""

import errno
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from pipelines.disk_space import needs_room
from pipelines.progress import Progress
from pipelines.ranking_model import RankingModel
from seqdenoise.data.atomic import atomic_folder, remove_folder

logger = logging.getLogger(__name__)

# If the machine went down, the newest may lack what its disk had not written yet.
_KEPT = 2
_VARIABLES = "variables"
_PROGRESS = "progress.json"
BEST = "best"


class Backups:
    """The newest backups of one training, each a folder that appears whole or not at all.

    A backup holds the progress and all variables: the model's, the plug-in's, the optimiser's, the
    metrics'. Beside the backups lie the weights of the best epoch.

    Args:
        folder: Where they go; no other process writes there.
        model: The model, built, with an optimiser that is built.
        minutes: How long after a backup the next one is due; None or 0 for never.
        run: What messages call the run.
    """

    def __init__(self, folder: Path, model: RankingModel, minutes: float | None, run: str) -> None:
        self._folder = folder
        self._model = model
        self._variables = tf.train.Checkpoint(model=model, metrics=model.metrics)
        self._run = run
        self._seconds = 60 * minutes if minutes else float("inf")
        self._made_at = time.monotonic()
        self._goes_on = "the start"
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def are_due(self) -> bool:
        """Whether it is time for one."""
        return time.monotonic() - self._made_at >= self._seconds

    def save(self, progress: Progress) -> None:
        """Makes a backup, and removes what it outdates.

        Raises:
            DiskFullError: There is no room; the backups before are kept.
        """
        # In an order that is that of the names: the end of an epoch comes after its last batch.
        path = self._folder / f"step-{progress.steps:010d}-epoch-{progress.epoch:05d}"
        what = f"the backup at step {progress.steps}"
        with self.needs_room(what), atomic_folder(path) as aside:
            self._variables.write(str(aside / _VARIABLES))
            (aside / _PROGRESS).write_text(progress.to_json(), encoding="utf-8")
        self._made_at, self._goes_on = time.monotonic(), f"step {progress.steps}"
        self._remove_outdated()

    def save_best(self, epoch: int) -> None:
        """Keeps the weights as those of an epoch that may be the best.

        Raises:
            DiskFullError: There is no room.
        """
        what = f"the weights of epoch {epoch + 1}"
        with self.needs_room(what), atomic_folder(self.best(epoch)) as aside:
            self._model.save_weights(str(aside / BEST))

    def best(self, epoch: int) -> Path:
        """The folder of an epoch's weights; the file name in there is `BEST`."""
        return self._folder / f"weights-epoch-{epoch:05d}"

    def restore(self) -> Progress | None:
        """Sets all variables as the newest backup has them that can be read.

        Returns:
            The progress then; None where there is no backup, and nothing was set.
        """
        for path in reversed(self._paths()):
            try:
                progress = _read_progress(path)
                _check_readable(path / _VARIABLES)
            except (OSError, ValueError, IndexError, tf.errors.OpError) as error:
                logger.warning(
                    "%s: the backup %s cannot be read, what was before it serves instead: %s",
                    self._run,
                    path,
                    str(error).splitlines()[0],
                )
                remove_folder(path)
                continue
            self._variables.read(str(path / _VARIABLES)).assert_consumed()
            self._goes_on = f"step {progress.steps}"
            logger.info("%s: goes on from %s", self._run, self._goes_on)
            return progress
        return None

    @contextmanager
    def needs_room(self, what: str) -> Iterator[None]:
        """As `pipelines.disk_space.needs_room`, of something of this run."""
        then = f"Make room and run again: it goes on from {self._goes_on}"
        with needs_room(f"{what} of {self._run}", self._folder, then):
            try:
                yield
            except tf.errors.ResourceExhaustedError as error:  # how TensorFlow says it
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"))

    def _remove_outdated(self) -> None:
        paths = self._paths()
        for path in paths[:-_KEPT]:
            remove_folder(path)
        kept = [_read_progress(path) for path in paths[-_KEPT:]]
        needed = {self.best(progress.best_epoch) for progress in kept if progress.history}
        for path in set(self._folder.glob("weights-*")) - needed:
            remove_folder(path)


def _read_progress(path: Path) -> Progress:
    return Progress.from_json((path / _PROGRESS).read_text("utf-8"))


def _check_readable(variables: Path) -> None:
    """Reads everything once, or a damaged file would show when half of the model is set already.

    Raises:
        tf.errors.OpError: A file is missing or damaged.
        IndexError: How TensorFlow says that a file is cut off.
    """
    reader = tf.train.load_checkpoint(str(variables))
    for name in reader.get_variable_to_shape_map():
        reader.get_tensor(name)
