import numpy as np
import pytest
import tensorflow as tf

from seqdenoise import ViewEncoder


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_unit_vectors_in_float32_under_every_policy(policy):
    tf.keras.mixed_precision.set_global_policy(policy)
    x = tf.random.stateless_normal([5, 12], [0, 1])
    out = ViewEncoder(units=8, hidden_units=16)(x)
    assert out.dtype == tf.float32
    np.testing.assert_allclose(np.linalg.norm(out.numpy(), axis=1), np.ones(5), rtol=1e-6)


def test_is_a_two_layer_mlp_with_a_relu():
    encoder = ViewEncoder(units=3, hidden_units=4, seed=2)
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    got = encoder(x).numpy()
    w1, b1, w2, b2 = (np.asarray(w, np.float64) for w in encoder.get_weights())
    out = np.maximum(x @ w1 + b1, 0) @ w2 + b2
    np.testing.assert_allclose(got, out / np.linalg.norm(out, axis=1, keepdims=True), rtol=1e-5)


def test_initial_weights_come_from_the_seed_alone():
    def weights(seed, global_seed):
        tf.keras.utils.set_random_seed(global_seed)
        encoder = ViewEncoder(seed=seed)
        encoder.build((None, 6))
        return encoder.get_weights()

    for one, other in zip(weights(1, 10), weights(1, 20), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(weights(1, 10)[0], weights(2, 10)[0])
    # The two layers must not start from the same numbers either.
    assert not np.array_equal(weights(1, 10)[0][:6, :6], weights(1, 10)[2][:6, :6])


def test_config_round_trip():
    encoder = ViewEncoder(units=3, hidden_units=4, seed=2, name="e")
    again = ViewEncoder.from_config(encoder.get_config())
    assert again.get_config() == encoder.get_config()


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match=r"at least 1\. Received: units=0, hidden_units=64"):
        ViewEncoder(units=0)
