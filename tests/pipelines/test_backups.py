"""Backups of a training: whole, two of them, and what happens if one cannot be read or written."""

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tfrs


def new_model(config, seed):
    """A model with all its variables, as `train` makes it."""
    import tensorflow as tf

    from pipelines.features import fit_features
    from pipelines.train import build_model

    features = fit_features(config)
    path = config.prepared_folder / "train.parquet"
    dataset = features.dataset(path, label="is_click", batch_size=64, max_length=8)
    tf.keras.utils.set_random_seed(seed)
    model = build_model(config, features, seed=seed)
    model.compile(optimizer=tf.keras.optimizers.Adam(0.01))
    model(next(iter(dataset)))
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def model(config):
    return new_model(config, 0)


def variables(model):
    measured = [variable for metric in model.metrics for variable in metric.variables]
    return [v.numpy() for v in [*model.variables, *model.optimizer.variables, *measured]]


def assert_equal(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def randomised(model, seed):
    """Sets every variable to numbers of its own, so that one which is not kept shows."""
    random = np.random.default_rng(seed)
    measured = [variable for metric in model.metrics for variable in metric.variables]
    for variable in [*model.variables, *model.optimizer.variables, *measured]:
        numbers = random.integers(1, 100, variable.shape)
        variable.assign(numbers.astype(variable.dtype.as_numpy_dtype))
    return variables(model)


def epoch(valid_auc):
    return {"valid_auc": valid_auc, "mean_loss": 1 / 3}


def test_every_variable_and_the_progress_come_back(config, model, tmp_path):
    from pipelines.backups import Backups
    from pipelines.progress import Progress

    expected = randomised(model, 0)
    progress = Progress(steps=7, history=[epoch(0.1 + 0.2)], seconds=1.5)
    Backups(tmp_path, model, None, "run").save(progress)
    other = new_model(config, 1)
    assert Backups(tmp_path, other, None, "run").restore() == progress
    assert_equal(variables(other), expected)
    # The learning rate, the momenta, the plug-in's step and the metrics' sums are among them.
    assert len(expected) > 50


def test_without_a_backup_nothing_is_set(model, tmp_path):
    from pipelines.backups import Backups

    before = variables(model)
    assert Backups(tmp_path / "none", model, None, "run").restore() is None
    assert_equal(variables(model), before)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("progress.json", cut),
        ("progress.json", Path.unlink),
        *((f"variables.{part}", how) for part in ("index", "data*") for how in (cut, flip)),
        ("variables.data*", Path.unlink),
    ],
)
def test_one_that_cannot_be_read_gives_way_to_the_one_before(name, damage, model, tmp_path, caplog):
    from pipelines.backups import Backups
    from pipelines.progress import Progress

    backups = Backups(tmp_path, model, None, "run")
    expected = randomised(model, 0)
    backups.save(Progress(steps=3))
    randomised(model, 1)
    backups.save(Progress(steps=6))
    (path,) = tmp_path.glob(f"step-0000000006-*/{name}")
    damage(path)
    randomised(model, 2)
    assert Backups(tmp_path, model, None, "run").restore() == Progress(steps=3)
    assert_equal(variables(model), expected)
    (line,) = [message for message in caplog.messages if "cannot be read" in message]
    assert "step-0000000006" in line
    # It is out of the way of the next one.
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000003-epoch-00000"]


def test_if_none_can_be_read_the_model_is_as_it_was(model, tmp_path):
    from pipelines.backups import Backups
    from pipelines.progress import Progress

    Backups(tmp_path, model, None, "run").save(Progress(steps=3))
    (path,) = tmp_path.glob("*/variables.data*")
    cut(path)
    before = randomised(model, 1)
    assert Backups(tmp_path, model, None, "run").restore() is None
    assert_equal(variables(model), before)


def test_two_are_kept_and_the_weights_that_they_need(model, tmp_path):
    from pipelines.backups import Backups
    from pipelines.progress import Progress

    backups = Backups(tmp_path, model, None, "run")
    progress = Progress()
    for steps, quality in ((5, 0.6), (10, 0.5), (15, 0.7), (20, 0.65), (25, 0.64)):
        progress.steps = steps
        progress.history.append(epoch(quality))
        if progress.best_epoch == progress.epoch - 1:
            backups.save_best(progress.best_epoch)
        backups.save(progress)
        kept = sorted(path.name for path in tmp_path.iterdir())
        if steps == 15:
            # The one before needs the weights of its own best epoch.
            assert kept[-2:] == ["weights-epoch-00000", "weights-epoch-00002"]
    assert kept == [
        "step-0000000020-epoch-00004",
        "step-0000000025-epoch-00005",
        "weights-epoch-00002",
    ]


def test_what_a_killed_process_was_writing_is_removed(model, tmp_path):
    from pipelines.backups import Backups

    (tmp_path / ".step-0000000003-epoch-00000.0badcafe.tmp").mkdir()
    Backups(tmp_path, model, None, "run")
    assert not list(tmp_path.iterdir())


def test_one_is_due_after_so_many_minutes(model, tmp_path, monkeypatch):
    from pipelines import backups as module
    from pipelines.progress import Progress

    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    every_two = module.Backups(tmp_path, model, 2, "run")
    assert [module.Backups(tmp_path, model, m, "run").are_due() for m in (None, 0)] == [False] * 2
    now[0] = 119
    assert not every_two.are_due()
    now[0] = 120
    assert every_two.are_due()
    every_two.save(Progress(steps=1))
    assert not every_two.are_due()


@pytest.mark.parametrize("who", ["TensorFlow", "Python"])
def test_a_full_disk_leaves_the_one_before_and_says_so(who, model, tmp_path, monkeypatch):
    import tensorflow as tf

    from pipelines.backups import Backups
    from pipelines.job_errors import DiskFullError
    from pipelines.progress import Progress

    backups = Backups(tmp_path, model, None, "treatment, seed 0")
    backups.save(Progress(steps=100))

    def fail(*_, **__):
        if who == "TensorFlow":
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = (tf.train.Checkpoint, "write") if who == "TensorFlow" else (Path, "write_text")
    monkeypatch.setattr(*target, fail)
    expected = (
        f"{tmp_path}: expected room for the backup at step 150 of treatment, seed 0. Received: No "
        "space left on device, N bytes free. Make room and run again: it goes on from step 100"
    )
    with pytest.raises(DiskFullError) as caught:
        backups.save(Progress(steps=150))
    assert re.sub(r"[\d,]+ bytes", "N bytes", str(caught.value)) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000100-epoch-00000"]
    monkeypatch.undo()
    assert Backups(tmp_path, model, None, "run").restore() == Progress(steps=100)


def test_other_errors_of_writing_stay_what_they_are(model, tmp_path, monkeypatch):
    from pipelines.backups import Backups
    from pipelines.progress import Progress

    backups = Backups(tmp_path, model, None, "run")

    def fail(*_, **__):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(PermissionError):
        backups.save(Progress(steps=1))
