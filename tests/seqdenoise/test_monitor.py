"""The callback: what it measures, that it changes nothing, and its alarms."""

import csv
import logging

import numpy as np
import pytest
import tensorflow as tf

from seqdenoise import DenoiserMonitor, SequenceDenoiser, gradient_balance
from seqdenoise.alarms import LIMITS, no_decrease_alarms, not_measured_alarms, passed_limits

ROWS, L, ITEMS, D = 64, 4, 30, 6
HEALTHY = {
    "loss": 3.0,
    "effective_rank": 9.0,
    "uniformity": -2.0,
    "valid_rate": 0.9,
    "false_negative_rate": 0.1,
}


def host(dropout=0.2, **options):
    tf.keras.utils.set_random_seed(3)
    inputs = {
        "click": tf.keras.Input((L,), dtype="int32", name="click"),
        "user": tf.keras.Input((), dtype="int64", name="user"),
    }
    items = tf.keras.layers.Embedding(ITEMS, D, mask_zero=True, name="items")
    denoiser = SequenceDenoiser(name="d", **options)
    click = denoiser({"click": items(inputs["click"])}, sample_ids=inputs["user"])["click"]
    x = tf.keras.layers.GlobalAveragePooling1D()(click)
    users = tf.keras.layers.Embedding(ROWS, 2, name="users")(inputs["user"])
    x = tf.keras.layers.Dropout(dropout, seed=1)(tf.keras.layers.Concatenate()([x, users]))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="logit")(x))
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("adam", loss, run_eagerly=True)  # a graph takes longer to make than these run
    return model


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    features = {
        "click": rng.integers(1, ITEMS, (ROWS, L)).astype(np.int32),
        "user": np.arange(ROWS),
    }
    return features, rng.integers(0, 2, (ROWS, 1)).astype(np.float32)


def test_the_balance_is_that_of_the_probe_and_the_logs_have_it(data, tmp_path):
    model = host(dropout=0.0, weight=0.7)
    table = model.get_layer("items").trainable_variables[0]
    path = str(tmp_path / "log.csv")
    monitor = DenoiserMonitor(data, every=2, limits={"side_loss_share": 1.0})
    history = model.fit(
        *data,
        batch_size=16,
        epochs=2,
        verbose=0,
        callbacks=[monitor, tf.keras.callbacks.CSVLogger(path)],
    ).history
    # Every second step, and the end of an epoch, which is one of those.
    assert [look["step"] for look in monitor.history] == [2, 4, 6, 8]
    with tf.GradientTape(persistent=True) as tape:
        logits = model(data[0], training=True)
        (side,) = model.losses
        main = tf.keras.losses.BinaryCrossentropy(from_logits=True)(data[1], logits)
    ratio, cosine = gradient_balance([tape.gradient(main, table)], [tape.gradient(side, table)])
    # The mask of the step is the same: the probe's pass did not count as one.
    assert int(model.get_layer("d").step) == 9  # this one did
    last = monitor.history[-1]
    expected = {
        "side_gradient_ratio": ratio,
        "side_gradient_cosine": cosine,
        "side_loss_share": side / (side + main),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(last[name], float(value), rtol=1e-4)
        np.testing.assert_allclose(history[name][-1], float(value), rtol=1e-4)
    np.testing.assert_allclose(last["d/click/loss"], history["d/click/loss"][-1], rtol=1e-6)
    with open(path) as file:
        rows = list(csv.DictReader(file))
    np.testing.assert_allclose(float(rows[1]["side_gradient_ratio"]), float(ratio), rtol=1e-4)
    assert [int(row["denoiser_alarms"]) for row in rows] == history["denoiser_alarms"]


def test_steps_are_counted_when_keras_runs_several_at_once(data):
    model = host()
    model.compile("adam", "mse", steps_per_execution=2)
    monitor = DenoiserMonitor(every=5)
    model.fit(*data, batch_size=8, epochs=1, verbose=0, callbacks=[monitor])
    assert [look["step"] for look in monitor.history] == [6, 8]
    assert monitor.alarms == []


@tf.keras.utils.register_keras_serializable(package="test_monitor")
def pulling_loss(view_a, view_b, *, mask, ids, weights):
    """Nothing holds the vectors apart."""
    del mask, ids, weights
    both = tf.concat([view_a, view_b], axis=0)
    return 30 * tf.reduce_mean((both - tf.reduce_mean(both, axis=0)) ** 2)


def test_alarms_of_real_trainings(data, caplog):
    features, labels = data
    one_user = {**features, "user": np.zeros(ROWS, np.int64)}
    nothing = {**features, "click": np.zeros((ROWS, L), np.int32)}
    nothing["click"][:4, 0] = features["click"][:4, 0]
    with caplog.at_level(logging.WARNING, logger="seqdenoise"):
        for options, given, probe, expected in [
            ({"weight": 60.0}, features, data, {("domination", "model")}),
            ({"loss": pulling_loss}, features, None, {("collapse", "d/click")}),
            (
                {}, one_user, None,
                {("false negatives", "d/click"), ("no decrease", "d/click")},
            ),
            ({}, nothing, None, {("few valid rows", "d/click")}),
        ]:  # fmt: skip
            model = host(**options)
            if options.get("loss"):
                model.compile("adam", "mse", run_eagerly=True)
                model.optimizer.learning_rate = 0.05
            caplog.clear()
            monitor = DenoiserMonitor(probe, every=2, limits={"side_loss_share": None}, patience=1)
            model.fit(given, labels, batch_size=32, epochs=2, verbose=0, callbacks=[monitor])
            found = [(alarm.kind, alarm.subject) for alarm in monitor.alarms]
            assert set(found) >= expected, (options, found)
            assert len(found) == len(set(found))  # once each, not every step
            assert [record.getMessage() for record in caplog.records] == [
                str(alarm) for alarm in monitor.alarms
            ]


def test_an_alarm_can_stop_the_training(data):
    model = host(weight=60.0)
    monitor = DenoiserMonitor(data, every=2, on_alarm="stop")
    history = model.fit(*data, batch_size=16, epochs=7, verbose=0, callbacks=[monitor]).history
    assert len(history["loss"]) == 1
    assert monitor.alarms[0].kind == "domination"
    assert "Divide `weight` by what was measured" in str(monitor.alarms[0])


@pytest.mark.parametrize(
    ("measured", "kind"),
    [
        ({}, None),
        ({"effective_rank": 1.9}, "collapse"),
        ({"uniformity": -0.05}, "collapse"),
        ({"valid_rate": 0.05}, "few valid rows"),
        ({"false_negative_rate": 0.6}, "false negatives"),
        ({"side_gradient_ratio": 1.5}, "domination"),
        ({"side_loss_share": 0.6}, "domination"),
        ({"loss": float("nan")}, "not finite"),
        ({name: float("nan") for name in HEALTHY}, "not measured"),
    ],
)
def test_what_raises_an_alarm(measured, kind):
    health = {**HEALTHY, **measured}
    alarms = [
        *passed_limits("d/click", 7, health, LIMITS),
        *not_measured_alarms("d/click", 7, health),
    ]
    assert [alarm.kind for alarm in alarms] == ([] if kind is None else [kind])
    for alarm in alarms:
        assert str(alarm).startswith(f"{kind} of d/click after 7 steps: ")
    off = dict.fromkeys(LIMITS)
    assert list(passed_limits("d/click", 7, health, off)) == []


@pytest.mark.parametrize(
    ("losses", "raised"),
    [([3, 3, 3], False), ([3, 3, 3, 3], True), ([3, 3.1, 2.9, 3], False), ([3, 4, 5, 2.999], True)],
)
def test_no_decrease_is_told_after_some_patience(losses, raised):
    assert bool(list(no_decrease_alarms("d/click", 9, losses, 3))) == raised


def test_bad_arguments_are_named(data):
    features, labels = data
    for arguments, message in [
        ({"on_alarm": "shout"}, "`on_alarm` must be 'log' or 'stop'. Received: 'shout'"),
        ({"every": 0}, "`every` and `patience` must be at least 1. Received: every=0, patience=3"),
        ({"limits": {"rank": 1}}, r"`limits` may have \['effective_rank'.*Received: \['rank'\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            DenoiserMonitor(**arguments)
    with pytest.raises(ValueError, match=r"`probe` must be \(x, y\).*Received: a batch without"):
        host().fit(features, labels, verbose=0, callbacks=[DenoiserMonitor(features)])
    bare = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    bare.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"must hold a SequenceDenoiser.*Received: Sequential"):
        bare.fit(labels, labels, verbose=0, callbacks=[DenoiserMonitor()])
