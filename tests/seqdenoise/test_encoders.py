import numpy as np
import pytest
import tensorflow as tf

from seqdenoise import ViewEncoder
from seqdenoise.encoders import FixedEncoder, update_momentum_encoder


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


def test_the_head_stands_on_the_representation():
    bare, headed = (ViewEncoder(4, 6, head_units=head, seed=2) for head in (None, 3))
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    h = bare(x).numpy()
    got = headed(x).numpy()
    # The head changes nothing below it: same seed, same representation.
    np.testing.assert_array_equal(headed.represent(x), h)
    np.testing.assert_array_equal(bare.represent(x), h)
    w1, b1, w2, b2 = (np.asarray(w, np.float64) for w in headed.get_weights()[4:])
    assert w1.shape == (4, 4)
    assert w2.shape == (4, 3)
    out = np.maximum(h @ w1 + b1, 0) @ w2 + b2
    np.testing.assert_allclose(got, out / np.linalg.norm(out, axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.999, 1.0])
def test_key_weights_are_the_closed_form_moving_average(momentum):
    queries, keys = (ViewEncoder(4, 6, head_units=3, seed=2) for _ in range(2))
    for encoder in (queries, keys):
        encoder.build((None, 5))
    start = [w.astype(np.float64) for w in keys.get_weights()]
    rng, seen = np.random.default_rng(0), []
    for _ in range(25):
        queries.set_weights([w + 0.1 * rng.normal(size=w.shape) for w in queries.get_weights()])
        seen.append([w.astype(np.float64) for w in queries.get_weights()])
        update_momentum_encoder(keys, queries, momentum)
    n = len(seen)
    for index, key in enumerate(keys.get_weights()):
        # theta_k(n) = m^n theta_k(0) + (1 - m) sum_i m^(n - 1 - i) theta_q(i)
        expected = momentum**n * start[index] + sum(
            (1 - momentum) * momentum ** (n - 1 - i) * seen[i][index] for i in range(n)
        )
        np.testing.assert_allclose(key, expected, rtol=1e-6, atol=1e-6)


def test_equal_twins_stay_equal_to_the_last_bit():
    queries, keys = (ViewEncoder(4, 6, seed=2) for _ in range(2))
    for encoder in (queries, keys):
        encoder.build((None, 5))
    update_momentum_encoder(keys, queries, 0.9)
    for key, query in zip(keys.get_weights(), queries.get_weights(), strict=True):
        np.testing.assert_array_equal(key, query)


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
    encoder = ViewEncoder(units=3, hidden_units=4, head_units=2, seed=2, name="e")
    again = ViewEncoder.from_config(encoder.get_config())
    assert again.get_config() == encoder.get_config()


def test_bad_sizes_are_refused():
    for bad in ({"units": 0}, {"hidden_units": 0}, {"head_units": 0}):
        (name,) = bad
        with pytest.raises(ValueError, match=rf"at least 1\. Received: .*{name}=0"):
            ViewEncoder(**bad)


def test_a_fixed_encoder_stays_fixed_whatever_is_set_above_it():
    class Holder(tf.keras.layers.Layer):
        def build(self, input_shape):
            self.keys = FixedEncoder(units=4, name="keys")
            self.queries = ViewEncoder(units=4, name="queries")
            self.keys.build(input_shape)
            self.queries.build(input_shape)
            super().build(input_shape)

    holder = Holder()
    holder.build((None, 6))
    for trainable in (None, True, False, True):
        if trainable is not None:
            holder.trainable = trainable
        expected = 0 if trainable is False else 4
        assert len(holder.trainable_variables) == expected
        assert len(holder.keys.trainable_variables) == 0
    assert len(holder.non_trainable_variables) == 4
    assert not holder.keys.trainable
