"""The training loop: it can start in the middle of an epoch, as if it had never stopped."""

import sys
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from pipelines.backups import Backups
from pipelines.distribution import Workers
from pipelines.progress import Progress
from pipelines.ranking_model import RankingModel


def fit(
    model: RankingModel,
    training: Callable[[int], tf.data.Dataset],
    end_of_epoch: Callable[[int, dict[str, float], float], None],
    backups: Backups,
    *,
    steps: int,
    epochs: int,
    patience: int,
    team: Workers,
    callbacks: Sequence[tf.keras.callbacks.Callback] = (),
) -> Progress:
    """Trains a model until its epochs are over, from where its backups are.

    Not `model.fit`: that starts every epoch with its first batch and with empty metrics.

    Args:
        model: The model, compiled and built, its optimiser built too.
        training: From a number of batches to leave out, to a dataset that goes on after them; each
            iteration over it is the next epoch.
        end_of_epoch: Gets the epoch, from 0 on, its metrics and the seconds that it took, and adds
            further figures to the metrics, `valid_auc` among them.
        backups: Where the training is kept, and goes on from.
        steps: Batches of an epoch.
        epochs: The most epochs.
        patience: After so many epochs without a better `valid_auc` it ends, after one at least.
        team: The workers that train together, this one among them.
        callbacks: Told of batches and epochs, for logging.

    Returns:
        The progress at the end. `backups.best(progress.best_epoch)` has the weights of that epoch.

    Raises:
        DiskFullError: There is no room for a backup.
    """
    progress = _restored(model, backups, team) or Progress()
    started = time.monotonic() - progress.seconds
    is_terminal = sys.stdout.isatty()
    told = tf.keras.callbacks.CallbackList(
        list(callbacks),
        add_progbar=is_terminal,
        model=model,
        verbose=int(is_terminal),
        epochs=epochs,
        steps=steps,
    )
    told.on_train_begin()
    train_on_next = model.make_train_function()
    dataset = team.spread(training(progress.steps))
    while not progress.is_over(epochs=epochs, patience=patience):
        epoch_started = time.monotonic()
        done = progress.steps - progress.epoch * steps
        if done == 0:
            model.reset_metrics()
        told.on_epoch_begin(progress.epoch)
        # After its last batch the dataset is at the next epoch already.
        iterator = iter(dataset) if done < steps else None
        for step in range(done, steps):
            told.on_train_batch_begin(step)
            logs = train_on_next(iterator)
            progress.steps += 1
            told.on_train_batch_end(step, logs)
            if team.asks_chief(progress.steps, backups.are_due):
                progress.seconds = time.monotonic() - started
                backups.save(progress)
        figures = {metric.name: float(metric.result()) for metric in model.metrics}
        end_of_epoch(progress.epoch, figures, time.monotonic() - epoch_started)
        # When to stop follows from these: all must have the same to the last bit.
        figures = team.from_chief(figures)
        told.on_epoch_end(progress.epoch, dict(figures))
        progress.history.append(figures)
        progress.seconds = time.monotonic() - started
        if progress.best_epoch == progress.epoch - 1:
            backups.save_best(progress.best_epoch)
        backups.save(progress)
    told.on_train_end()
    return progress


def _restored(model: RankingModel, backups: Backups, team: Workers) -> Progress | None:
    """Where the chief's newest backup stands; all workers' variables are then set as it says."""
    found = backups.restore() if team.is_chief else None
    text = team.from_chief(None if found is None else found.to_json())
    if text is None:
        return None
    measured = [variable for metric in model.metrics for variable in metric.variables]
    team.share([*model.variables, *model.optimizer.variables, *measured])
    return Progress.from_json(text)
