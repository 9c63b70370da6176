"""Weights of rows on their way to the side loss."""

import threading

import numpy as np
import plug_hosts
import pytest
import tensorflow as tf

from seqdenoise import SequenceDenoiser, denoise, row_weights
from seqdenoise.row_weighting import current_row_weights

B, L, D = 6, 4, 8
CLICK = np.random.default_rng(0).normal(size=(B, L, D)).astype(np.float32)
WEIGHTS = np.array([1, 0, 2, 0.5, 1, 3], np.float32)


def side_loss(**call):
    denoiser = SequenceDenoiser(seed=1)
    denoiser({"click": tf.constant(CLICK)}, training=True, **call)
    return float(denoiser.losses[0])


@pytest.mark.parametrize(
    "given",
    [
        WEIGHTS,
        WEIGHTS[:, None],
        WEIGHTS.tolist(),
        tf.constant(WEIGHTS, tf.float64),
        np.stack([0 * WEIGHTS, 2 * WEIGHTS], axis=1),  # [B, T]
        {"ctr": WEIGHTS, "cvr": None},
        [WEIGHTS, WEIGHTS[:, None]],
        {"ctr": 2 * WEIGHTS, "cvr": np.zeros(B)},
    ],
    ids=str,
)
def test_they_are_the_anchors_weights(given):
    expected = side_loss(sample_weight=tf.constant(WEIGHTS))
    with row_weights(given):
        got = side_loss()
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert abs(side_loss() - expected) > 1e-3  # gone again, and they make a difference


def test_none_are_no_weights_and_an_argument_comes_first():
    with row_weights(WEIGHTS):
        with row_weights(None):
            assert side_loss() == side_loss(sample_weight=tf.ones([B]))
        with row_weights({"ctr": None, "cvr": None}):
            assert current_row_weights() is None
        ones = side_loss(sample_weight=tf.ones([B]))
        np.testing.assert_array_equal(current_row_weights(), WEIGHTS)
    assert ones == side_loss()


def test_they_are_gone_after_an_error():
    with pytest.raises(RuntimeError, match="step"), row_weights(WEIGHTS):
        raise RuntimeError("step")
    assert current_row_weights() is None


def test_threads_do_not_see_each_others():
    seen, meet = {}, threading.Barrier(2)

    def replica(value):
        with row_weights([value, value]):
            meet.wait()
            seen[value] = current_row_weights().numpy().tolist()
            meet.wait()

    threads = [threading.Thread(target=replica, args=(value,)) for value in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {1.0: [1.0, 1.0], 2.0: [2.0, 2.0]}


def test_a_scalar_is_refused():
    message = r"`sample_weight` must have a weight a row, shape \[B\]. Received: shape \(\)"
    with pytest.raises(ValueError, match=message), row_weights(tf.constant(1.0)):
        pass


ROWS = 12


def logged_loss(fit, call=None, **compile_options):
    """The side loss that `fit` logs of one batch."""
    host = plug_hosts.made("shared_embedding")
    options = {**host.call, **(call or {})}
    plugged = denoise(host.model, host.taps, **options, seed=4, name="d")
    plugged.compile("sgd", "mse", **compile_options)
    features = {name: x[:ROWS] for name, x in host.features().items()}
    history = plugged.fit(
        features, plug_hosts.labels()[:ROWS], batch_size=ROWS, shuffle=False, verbose=0, **fit
    ).history
    return history["d/click/loss"][-1]


def expected_loss(weights, name="shared_embedding"):
    """The same, from a denoiser that is called with the weights."""
    host = plug_hosts.made(name)
    features = {name: x[:ROWS] for name, x in host.features().items()}
    denoiser = SequenceDenoiser(seed=4, name="d")
    events = host.model.get_layer("items")(tf.constant(features["click"]))
    denoiser({"click": events}, sample_ids=features["user"], sample_weight=weights, training=True)
    (loss,) = [metric.result() for metric in denoiser.metrics if metric.name == "d/click/loss"]
    return float(loss)


ROW_WEIGHTS = np.random.default_rng(2).uniform(0, 3, ROWS).astype(np.float32)


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}], ids=str)
def test_the_sample_weight_of_fit_reaches_the_side_loss(options):
    got = logged_loss({"sample_weight": ROW_WEIGHTS}, **options)
    np.testing.assert_allclose(got, expected_loss(ROW_WEIGHTS), rtol=1e-5)
    assert abs(got - expected_loss(None)) > 1e-3


def test_so_does_class_weight():
    got = logged_loss({"class_weight": {0: 0.0, 1: 2.0}}, run_eagerly=True)
    expected = expected_loss(2 * plug_hosts.labels()[:ROWS])
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert abs(got - expected_loss(None)) > 1e-3


def test_a_weight_that_is_an_input_comes_before_that_of_fit():
    lengths = plug_hosts.batch()["user"][:ROWS].astype(np.float32)
    got = logged_loss({"sample_weight": ROW_WEIGHTS}, {"sample_weight": "user"}, run_eagerly=True)
    np.testing.assert_allclose(got, expected_loss(lengths), rtol=1e-5)


def test_of_two_outputs_the_mean_weight_counts():
    host = plug_hosts.made("two_tasks")
    plugged = denoise(host.model, host.taps, sample_ids="user", seed=4, name="d")
    plugged.compile("sgd", {"click_rate": "mse", "sale_rate": "mse"}, run_eagerly=True)
    features = {name: x[:ROWS] for name, x in host.features().items()}
    target = plug_hosts.labels()[:ROWS]
    targets = {"click_rate": target, "sale_rate": target}
    weights = {"click_rate": 2 * ROW_WEIGHTS, "sale_rate": 0 * ROW_WEIGHTS}
    got = plugged.train_on_batch(features, targets, sample_weight=weights, return_dict=True)
    expected = expected_loss(ROW_WEIGHTS, "two_tasks")
    np.testing.assert_allclose(got["d/click/loss"], expected, rtol=1e-5)
