import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from seqdenoise import SequenceDenoiser, denoise
from seqdenoise.gradient_budget import forked


def combined(host, side, **options):
    """The gradients at tensors whose host and side losses have these."""
    tensors = [tf.zeros_like(x) for x in host]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        for_host, for_side = forked(tensors, **options)
        loss = tf.add_n([tf.reduce_sum(x * g) for x, g in zip(for_host, host, strict=True)])
        loss += tf.add_n([tf.reduce_sum(x * g) for x, g in zip(for_side, side, strict=True)])
    return [x.numpy() for x in tape.gradient(loss, tensors)]


def expected(host, side, budget, project_conflicts):
    sizes = [x.size for x in host]
    g, h = (np.concatenate([x.ravel() for x in xs]).astype(np.float64) for xs in (host, side))
    if project_conflicts and g @ h < 0:
        h = h - (g @ h) / (g @ g) * g
    if budget is not None and np.linalg.norm(h) > budget * np.linalg.norm(g):
        h = h * budget * np.linalg.norm(g) / np.linalg.norm(h)
    parts = np.split(g + h, np.cumsum(sizes)[:-1])
    return [part.reshape(x.shape) for part, x in zip(parts, host, strict=True)]


@given(
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-6, 0.1, 1.0, 1e4]),
    budget=st.sampled_from([None, 0.1, 1.0]),
    project_conflicts=st.booleans(),
)
def test_equals_the_loop(seed, scale, budget, project_conflicts):
    rng = np.random.default_rng(seed)
    shapes = [(2, 3, 4), (5,)]
    host = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    side = [(scale * rng.normal(size=shape)).astype(np.float32) for shape in shapes]
    options = {"budget": budget, "project_conflicts": project_conflicts}
    found = combined(host, side, **options)
    for got, one in zip(found, expected(host, side, **options), strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-4, atol=1e-5 * (1 + scale))


def test_without_one_of_the_gradients_the_other_stays():
    zero, one = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    options = {"budget": 0.1, "project_conflicts": True}
    np.testing.assert_array_equal(combined([zero], [one], **options)[0], 1)
    np.testing.assert_array_equal(combined([one], [zero], **options)[0], 1)
    np.testing.assert_array_equal(combined([zero], [zero], **options)[0], 0)


@pytest.mark.parametrize("budget", [0, -1.0, float("nan")])
def test_a_budget_below_zero_is_refused(budget):
    with pytest.raises(ValueError, match="`budget` must be above 0, or None"):
        forked([tf.zeros([1])], budget=budget)


def host_and_side(**options):
    """Gradients of a host's loss, of the side loss, and of both by a denoiser with options."""
    rng = np.random.default_rng(0)
    click, search, target = (rng.normal(size=(6, 4, 8)).astype(np.float32) for _ in range(3))
    mask = np.arange(4) < np.array([[4], [3], [4], [2], [1], [4]])

    def gradients(used, **options):
        denoiser = SequenceDenoiser(weight=1.0, seed=1, **options)
        sequences = {"click": {"a": tf.constant(click)}, "search": tf.constant(search)}
        with tf.GradientTape() as tape:
            tape.watch(sequences)
            out = denoiser(sequences, mask={"click": tf.constant(mask)}, training=True)
            host = tf.reduce_sum(out["click"]["a"] * target) + tf.reduce_sum(out["search"])
            side = denoiser.losses[0]
            loss = {"host": host, "side": side, "both": host + side}[used]
        np.testing.assert_array_equal(out["click"]["a"], click)
        sources = [sequences["click"]["a"], sequences["search"], *denoiser.trainable_variables]
        found = tape.gradient(loss, sources)
        return [
            np.zeros(x.shape) if g is None else g.numpy()
            for g, x in zip(found, sources, strict=True)
        ]

    side = gradients("side")
    target *= -np.sign(np.sum(target * side[0]))  # they work against each other
    return gradients("host"), side, gradients("both", **options)


@pytest.mark.parametrize("options", [{"gradient_budget": 0.01}, {"project_conflicts": True}])
def test_the_layer_fits_its_gradient_to_the_host_s(options):
    host, side, both = host_and_side(**options)
    budget = options.get("gradient_budget")
    (got,) = expected([host[0]], [side[0]], budget, "project_conflicts" in options)
    assert not np.allclose(got, host[0] + side[0], rtol=1e-3)
    np.testing.assert_allclose(both[0], got, rtol=1e-3, atol=1e-5 * np.abs(got).max())
    np.testing.assert_array_equal(both[1], host[1])  # search has no side loss
    for encoder, alone in zip(both[2:], side[2:], strict=True):
        np.testing.assert_allclose(encoder, alone, rtol=1e-5, atol=1e-8)


def test_a_model_that_does_not_read_what_the_layer_returns_is_refused():
    inputs = tf.keras.Input([5], dtype="int32", name="click")
    events = tf.keras.layers.Embedding(9, 4, name="items")(inputs)
    outputs = tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(events))
    model = tf.keras.Model(inputs, outputs)
    for options in ({"gradient_budget": 0.1}, {"project_conflicts": True}):
        with pytest.raises(ValueError, match="on the sequences where the model is made"):
            denoise(model, {"click": "items"}, **options)
