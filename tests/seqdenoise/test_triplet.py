"""What is particular to the triplet loss: distances, ties, and that no triplet is ever formed."""

import numpy as np
import oracles
import pytest
import tensorflow as tf

from seqdenoise import triplet_loss

each_mining = pytest.mark.parametrize("mining", ["all", "semi_hard", "hard"])


@pytest.mark.parametrize("labelled", [False, True])
def test_close_vectors_keep_their_distances_in_float32(labelled):
    # Distances near 1e-3, whose squares float32 products near 1 would lose.
    rng = np.random.default_rng(0)
    center = rng.normal(size=4)
    a, b = (center + 1e-3 * rng.normal(size=(2, 7, 4))).astype(np.float32)
    rows = {"mask": np.ones(7, bool)}
    if labelled:
        rows["labels"] = np.arange(7) % 3
    got = triplet_loss(a, b, margin=1e-4, **rows)
    expected = oracles.triplet(a.astype(np.float64), b.astype(np.float64), margin=1e-4, **rows)
    assert 0 < expected < 1e-2
    # What the rounding of the unit vectors themselves leaves.
    np.testing.assert_allclose(got, expected, rtol=1e-3)


@pytest.mark.parametrize("labelled", [False, True])
def test_coinciding_views_keep_their_distance_in_float64(labelled):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(5, 4))
    b = a + 1e-6 * rng.normal(size=(5, 4))
    rows = {"mask": np.ones(5, bool), "margin": 1.9}
    labels = {"labels": np.arange(5)} if labelled else {}
    expected = oracles.triplet(a, b, **rows)
    assert expected > 0
    np.testing.assert_allclose(triplet_loss(a, b, **rows, **labels), expected, rtol=1e-12)


@each_mining
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_copy_of_the_positive_is_at_the_margin_and_neither_hard_nor_semi_hard(
    mining, labelled, dtype
):
    rng = np.random.default_rng(1)
    a = rng.normal(size=(2, 16)).astype(dtype)
    b = np.repeat(rng.normal(size=(1, 16)), 2, axis=0).astype(dtype)
    b[1] *= 3  # the same direction, rounded otherwise
    labels = {"labels": np.array([0, 1])} if labelled else {}
    got = float(triplet_loss(a, b, mask=np.ones(2, bool), margin=0.2, mining=mining, **labels))
    if mining == "all":
        np.testing.assert_allclose(got, 0.2, rtol=1e-6)
    else:
        assert got == 0.0


@pytest.mark.parametrize("labelled", [False, True])
def test_the_gradient_at_distance_zero_is_finite_and_that_of_the_negatives(labelled):
    a = tf.constant([[1.0, 0.0], [0.8, 0.6]], tf.float64)
    labels = {"labels": [0, 1]} if labelled else {}
    with tf.GradientTape() as tape:
        tape.watch(a)
        loss = triplet_loss(a, a, mask=[True, True], margin=1.0, **labels)
    np.testing.assert_allclose(loss, 1 - np.sqrt(0.4), rtol=1e-12)
    gradient = tape.gradient(loss, a).numpy()
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0.1


@each_mining
@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [1, 1, -1, -1]])
def test_any_grouping_equals_the_loops(mining, labels):
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 4, 3))
    rows = {"mask": np.ones(4, bool), "labels": np.array(labels), "mining": mining, "margin": 0.5}
    expected = oracles.triplet(a, b, **rows)
    np.testing.assert_allclose(triplet_loss(a, b, **rows), expected, rtol=1e-12)
    assert (expected > 0) == (max(labels) > 0)  # with one label for all there is no negative


@each_mining
def test_no_tensor_grows_with_the_cube_of_the_batch(mining):
    size = 64
    vectors = tf.TensorSpec([size, 3])

    @tf.function(input_signature=[vectors, vectors, tf.TensorSpec([size], tf.int32)])
    def value_and_gradient(a, b, labels):
        loss = triplet_loss(a, b, mask=tf.ones([size], tf.bool), labels=labels, mining=mining)
        return loss, tf.gradients(loss, [a, b])

    graph = value_and_gradient.get_concrete_function().graph
    sizes = [t.shape.num_elements() for op in graph.get_operations() for t in op.outputs]
    assert max(n for n in sizes if n is not None) == 2 * size**2


@pytest.mark.parametrize("jit_compile", [False, True])
def test_many_rows_of_one_label_equal_the_loops_in_a_graph(jit_compile):
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 40, 3))
    labels = rng.integers(-1, 3, 40)
    mask = rng.uniform(size=40) < 0.8
    loss = tf.function(triplet_loss, jit_compile=jit_compile)
    for mining in ("all", "semi_hard", "hard"):
        options = {"margin": 0.3, "mining": mining}
        got = loss(tf.constant(a), tf.constant(b), mask=mask, labels=labels, **options)
        expected = oracles.triplet(a, b, mask=mask, labels=labels, **options)
        np.testing.assert_allclose(got, expected, rtol=1e-10)


@each_mining
@pytest.mark.parametrize("labels", [None, [0, 1, 2], [0, 0, 1]])
@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("view", [0, 1])
def test_a_nan_surfaces_also_where_nothing_is_mined(mining, labels, row, view):
    views = [np.eye(3), np.eye(3)]
    if labels == [0, 0, 1]:
        views = [x[[0, 0, 1]] for x in views]
    options = {"mask": np.ones(3, bool), "labels": labels, "margin": 0.1, "mining": mining}
    assert triplet_loss(*views, **options) == 0.0
    views[view] = views[view].copy()
    views[view][row] = np.nan
    assert np.isnan(triplet_loss(*views, **options))
