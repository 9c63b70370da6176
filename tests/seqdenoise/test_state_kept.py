"""What looks at a model, or warms it up, leaves it to train as it would have."""

import numpy as np
import tensorflow as tf

from seqdenoise import DenoiserMonitor, SequenceDenoiser, self_check, warm_start

ROWS, L, ITEMS, D = 48, 4, 30, 6


def data():
    rng = np.random.default_rng(0)
    click = rng.integers(1, ITEMS, (ROWS, L)).astype(np.int32)
    features = {"click": click, "user": np.arange(ROWS)}
    return features, rng.integers(0, 2, (ROWS, 1)).astype(np.float32)


def host():
    """With all kinds of state that a training pass moves."""
    tf.keras.utils.set_random_seed(3)
    inputs = {
        "click": tf.keras.Input((L,), dtype="int32", name="click"),
        "user": tf.keras.Input((), dtype="int64", name="user"),
    }
    items = tf.keras.layers.Embedding(ITEMS, D, mask_zero=True, name="items")
    denoiser = SequenceDenoiser(name="d", loss="moco", queue_size=20, learn_temperature=True)
    click = denoiser({"click": items(inputs["click"])}, sample_ids=inputs["user"])["click"]
    x = tf.keras.layers.GlobalAveragePooling1D()(click)
    users = tf.keras.layers.Embedding(ROWS, 2, embeddings_regularizer="l2")(inputs["user"])
    x = tf.keras.layers.BatchNormalization()(tf.keras.layers.Concatenate()([x, users]))
    x = tf.keras.layers.Dropout(0.2, seed=1)(tf.keras.layers.Dropout(0.2)(x))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))
    model.compile("adam", tf.keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def warmed_up(model):
    """What was learnt is undone: the rest must be as it was."""
    denoiser = model.get_layer("d")
    learnt = [
        *model.get_layer("items").variables,
        *denoiser.trainable_variables,
        *denoiser.non_trainable_variables,
    ]
    initial = [v.numpy() for v in learnt]
    warm_start(model, tf.data.Dataset.from_tensor_slices(data()).batch(24), epochs=2)
    changed = [not np.array_equal(v, x) for v, x in zip(learnt, initial, strict=True)]
    # Of the plug-in's own state the step stays, and here the ids of the queue.
    assert sum(changed) >= len(learnt) - 2
    assert int(denoiser.step) == 0
    for variable, value in zip(learnt, initial, strict=True):
        variable.assign(value)


def trained(*, looked_at):
    """The history, all variables, and what draws from the global random state."""
    model, callbacks = host(), []
    if looked_at:
        assert self_check(model, data()).passed
        warmed_up(model)
        callbacks = [DenoiserMonitor(data(), every=1)]
    dataset = tf.data.Dataset.from_tensor_slices(data()).shuffle(ROWS).batch(16)
    drawn = tf.random.uniform([3]), np.random.rand(3)  # noqa: NPY002
    history = model.fit(dataset, epochs=2, verbose=0, shuffle=False, callbacks=callbacks).history
    names = sorted(name for name in history if not name.startswith(("side_", "denoiser_")))
    return [
        *(history[name] for name in names),
        *(v.numpy() for v in (*model.variables, *model.optimizer.variables)),
        *drawn,
    ]


def test_training_is_the_same_to_the_last_bit():
    plain, looked_at = trained(looked_at=False), trained(looked_at=True)
    for one, other in zip(plain, looked_at, strict=True):
        np.testing.assert_array_equal(one, other)
