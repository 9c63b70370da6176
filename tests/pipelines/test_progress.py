import json

import pytest

from pipelines.progress import Progress


def with_quality(*values):
    return Progress(history=[{"valid_auc": value} for value in values])


@pytest.mark.parametrize(
    ("quality", "patience", "over"),
    [
        ((), 1, False),
        ((0.5,), 1, False),
        ((0.5, 0.6), 1, False),
        ((0.5, 0.5), 1, True),  # no better is no better
        ((0.6, 0.5), 1, True),
        ((0.6, 0.5), 0, True),
        ((0.5, 0.6), 0, False),
        ((0.6, 0.5), 2, False),
        ((0.6, 0.5, 0.55), 2, True),
        ((0.6, 0.5, 0.7), 2, False),
        ((0.1, 0.2, 0.3, 0.4), 9, True),  # all epochs
    ],
)
def test_it_is_over_after_all_epochs_or_patience(quality, patience, over):
    assert with_quality(*quality).is_over(epochs=4, patience=patience) is over


def test_early_stopping_is_that_of_keras():
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    for _ in range(200):
        quality = random.integers(0, 4, 8) / 4
        patience = int(random.integers(0, 4))
        stopping = tf.keras.callbacks.EarlyStopping("valid_auc", patience=patience, mode="max")
        model = tf.keras.Sequential()
        stopping.set_model(model)
        stopping.on_train_begin()
        progress = Progress()
        for epoch, value in enumerate(quality):
            model.stop_training = False
            stopping.on_epoch_end(epoch, {"valid_auc": value})
            progress.history.append({"valid_auc": value})
            assert progress.is_over(epochs=100, patience=patience) == model.stop_training
            if model.stop_training:
                break


def test_the_first_of_the_best_epochs():
    assert with_quality(0.5, 0.7, 0.6, 0.7).best_epoch == 1


def test_json_keeps_every_bit():
    progress = Progress(steps=3, history=[{"valid_auc": 0.1 + 0.2, "loss": 1 / 3}], seconds=2**-40)
    assert Progress.from_json(progress.to_json()) == progress


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{}", '{"format": 2}', '{"format": 1, "other": 1}', '{"format": 1']
)
def test_something_else_is_refused(text):
    with pytest.raises(ValueError, match=r"expect|Expect|progress"):
        Progress.from_json(text)
    assert json.loads(Progress().to_json())["format"] == 1
