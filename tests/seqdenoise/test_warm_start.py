"""The side loss alone, before ranking."""

import numpy as np
import pytest
import tensorflow as tf

from seqdenoise import SequenceDenoiser, row_weights, warm_start

ROWS, L, ITEMS, D = 64, 5, 30, 6


def features(seed=0):
    rng = np.random.default_rng(seed)
    click = rng.integers(1, ITEMS, (ROWS, L)).astype(np.int32)
    click[np.arange(L) >= rng.integers(1, L + 1, ROWS)[:, None]] = 0
    return {"click": click, "user": np.arange(ROWS)}


def host(denoiser):
    """With all kinds of state that a training pass moves."""
    tf.keras.utils.set_random_seed(3)
    inputs = {
        "click": tf.keras.Input((L,), dtype="int32", name="click"),
        "user": tf.keras.Input((), dtype="int64", name="user"),
    }
    items = tf.keras.layers.Embedding(ITEMS, D, mask_zero=True, name="items")
    users = tf.keras.layers.Embedding(ROWS, 2, name="users", embeddings_regularizer="l2")
    click = denoiser({"click": items(inputs["click"])}, sample_ids=inputs["user"])["click"]
    x = tf.keras.layers.GlobalAveragePooling1D()(click)
    x = tf.keras.layers.Concatenate()([x, users(inputs["user"])])
    x = tf.keras.layers.BatchNormalization(name="norm")(x)
    x = tf.keras.layers.Dropout(0.2, seed=1)(x)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="logit")(x))
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("adam", loss, run_eagerly=True)
    return model


def values(model):
    return {getattr(v, "path", v.name): v.numpy() for v in model.variables}


def batches(size=16):
    return tf.data.Dataset.from_tensor_slices(features()).batch(size)


def test_the_side_loss_falls_and_the_rest_of_the_model_stays():
    denoiser = SequenceDenoiser(name="d")
    model = host(denoiser)
    model.train_on_batch(features(), np.zeros([ROWS, 1]))
    before, optimizer = values(model), [v.numpy() for v in model.optimizer.variables]
    history = warm_start(model, batches(), epochs=3, optimizer=tf.keras.optimizers.Adam(0.01))
    assert len(history) == 3
    assert history[-1]["side_loss"] < 0.95 * history[0]["side_loss"]
    assert history[-1]["d/click/loss"] < 0.95 * history[0]["d/click/loss"]
    after = values(model)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert all("encoder" in name or "items" in name for name in changed)
    assert len(changed) == 4 + 1
    assert int(denoiser.step) == 1
    for one, other in zip(optimizer, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other.numpy())


@pytest.mark.parametrize("weight", [0.3, "schedule"])
def test_a_step_is_one_on_the_unweighted_side_loss(weight):
    if weight == "schedule":  # 0 at the first steps, when ranking begins
        weight = tf.keras.optimizers.schedules.PolynomialDecay(0.0, 100, 0.2)
    weights = np.linspace(0, 2, ROWS).astype(np.float32)
    denoiser = SequenceDenoiser(weight=weight, name="d", warmup_steps=10)
    model = host(denoiser)
    plain = SequenceDenoiser(weight=1.0, name="plain")
    embedding = model.get_layer("items")
    x = {name: tf.constant(value) for name, value in features().items()}
    with tf.GradientTape() as tape, row_weights(weights):
        click = embedding(x["click"])
        plain(
            {"click": click}, mask={"click": x["click"] != 0}, sample_ids=x["user"], training=True
        )
        (loss,) = plain.losses
    table = embedding.trainable_variables[0]
    gradient, *rest = tape.gradient(loss, [table, *plain.trainable_variables])
    expected = [table.numpy() - tf.convert_to_tensor(gradient)]
    expected += [v.numpy() - one for v, one in zip(plain.trainable_variables, rest, strict=True)]
    # Labels, here of a shape that no loss would take, are not looked at.
    (epoch,) = warm_start(
        model, [(x, np.zeros([7, 7]), weights)], optimizer=tf.keras.optimizers.SGD(1.0)
    )
    np.testing.assert_allclose(epoch["side_loss"], float(loss), rtol=1e-5)
    got = [table, *denoiser.trainable_variables]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-4, atol=1e-6)


class Subclassed(tf.keras.Model):
    """Never run, not compiled."""

    def __init__(self, **options):
        super().__init__()
        self.items = tf.keras.layers.Embedding(ITEMS, D)
        self.denoiser = SequenceDenoiser(name="d", **options)
        self.logit = tf.keras.layers.Dense(1)

    def call(self, features, training=False):
        masks = {"click": features["click"] != 0}
        clicks = {"click": self.items(features["click"])}
        clicks = self.denoiser(clicks, mask=masks, training=training)
        return self.logit(tf.reduce_mean(clicks["click"], axis=1))


def test_a_model_that_was_never_run():
    model = Subclassed()
    first, *_, last = warm_start(model, batches(), epochs=3)
    assert last["side_loss"] < first["side_loss"]
    assert int(model.denoiser.step) == 0


def test_what_cannot_be_warmed_up_is_named():
    model = host(SequenceDenoiser(name="d"))
    for arguments, message in [
        ((model, batches(), 0), "`epochs` must be at least 1. Received: 0"),
        ((model, [], 1), "`dataset` must have a batch. Received: none"),
        ((model, batches(), 1, model.optimizer), "`optimizer` must not be the model's own"),
        ((Subclassed(weight=0), batches(), 1), "weight above 0. Received: Subclassed .*without"),
    ]:
        with pytest.raises(ValueError, match=message):
            warm_start(*arguments)
    with pytest.raises(ValueError, match=r"in every epoch\. Received: none in epoch 2"):
        warm_start(model, iter(list(batches())), epochs=2)


def test_ranking_after_it_can_do_without_the_side_loss():
    denoiser = SequenceDenoiser(name="d")
    model = host(denoiser)
    warm_start(model, batches(), epochs=1)
    denoiser.weight, denoiser.trainable = 0.0, False
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("adam", loss)
    before = values(model)
    history = model.fit(features(), np.zeros([ROWS, 1]), batch_size=16, verbose=0).history
    after = values(model)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert any("items" in name for name in changed)
    assert not any("encoder" in name for name in changed)
    assert int(denoiser.step) == 0
    # The ranking loss and the penalty on the users, nothing else.
    bare = host(SequenceDenoiser(name="d", weight=0.0))
    bare.get_layer("items").set_weights([before[next(n for n in before if "items" in n)]])
    bare.compile("adam", loss)
    expected = bare.fit(features(), np.zeros([ROWS, 1]), batch_size=16, verbose=0).history
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-6)
