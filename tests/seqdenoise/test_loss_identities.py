"""What the losses have in common: each is another one at some option, or in some limit."""

import math

import numpy as np
import pytest
import tensorflow as tf
from loss_cases import TEMPERATURES, VECTORS

from seqdenoise import (
    debiased_loss,
    hard_negative_loss,
    info_nce_loss,
    moco_loss,
    multi_positive_loss,
    n_pair_loss,
    nt_xent_loss,
    simple_contrastive_loss,
    triplet_loss,
)

each_temperature = pytest.mark.parametrize("temperature", TEMPERATURES)


def batch(dtype=np.float64):
    """Rows with everything that a loss must leave out."""
    rng = np.random.default_rng(2)
    a = rng.normal(size=(8, 4))
    b = a + 0.7 * rng.normal(size=(8, 4))
    a[3] = 0.0
    return {
        "view_a": a.astype(dtype),
        "view_b": b.astype(dtype),
        "mask": np.arange(8) != 5,
        "ids": np.array([1, 2, 1, 3, 4, 5, 6, 7]),
        "weights": rng.uniform(0.5, 2.0, 8),
    }


def value_and_gradients(loss, inputs, **options):
    vectors = {k: tf.constant(v) for k, v in inputs.items() if k in VECTORS}
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        value = loss(**{**inputs, **vectors, **options})
    gradients = tape.gradient(value, [vectors["view_a"], vectors["view_b"]])
    return value.numpy(), np.stack(gradients)


@each_temperature
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("prior", [0.0, tf.constant(0.0), tf.constant(0.0, tf.float64)])
def test_a_prior_of_zero_makes_the_debiased_loss_exactly_info_nce(temperature, dtype, prior):
    inputs = batch(dtype)
    more = inputs["view_a"][:, np.newaxis] + np.array([[[0.1], [0.3]]], dtype)
    expected, expected_gradients = value_and_gradients(
        info_nce_loss, inputs, temperature=temperature
    )
    for further in ({}, {"more_positives": more}):
        got, gradients = value_and_gradients(
            debiased_loss, inputs, temperature=temperature, tau_plus=prior, **further
        )
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_allclose(gradients, expected_gradients, rtol=1e-5, atol=1e-30)


def test_a_prior_of_zero_is_info_nce_also_where_every_cosine_is_at_the_floor():
    # The negative is opposite, so that its exponential is the floor or, rounded, just below, where
    # the loss is that of the floor and the gradient is cut off.
    rng = np.random.default_rng(0)
    for _ in range(20):
        a = rng.normal(size=(1, 7)).astype(np.float32)
        a = np.concatenate([a, -a])
        inputs = {"view_a": a, "view_b": a, "mask": np.array([True, True])}
        expected = value_and_gradients(info_nce_loss, inputs, temperature=0.3)
        got = value_and_gradients(debiased_loss, inputs, temperature=0.3, tau_plus=0.0)
        np.testing.assert_array_equal(got[0], expected[0])
        np.testing.assert_array_equal(got[1], expected[1])


@each_temperature
@pytest.mark.parametrize("tau_plus", [0.0, 0.1, 0.5])
def test_without_concentration_the_hard_negative_loss_is_exactly_the_debiased_one(
    temperature, tau_plus
):
    inputs = batch()
    options = {"temperature": temperature, "tau_plus": tau_plus}
    expected, expected_gradients = value_and_gradients(debiased_loss, inputs, **options)
    got, gradients = value_and_gradients(hard_negative_loss, inputs, beta=0.0, **options)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(gradients, expected_gradients)


def test_concentration_raises_the_loss_towards_that_of_the_hardest_negative():
    inputs = batch()
    options = {"temperature": 0.5, "tau_plus": 0.0}
    values = [
        float(hard_negative_loss(**inputs, beta=beta, **options)) for beta in (0, 1, 4, 16, 1000)
    ]
    assert values == sorted(values)
    kept = [i for i in range(8) if i not in (3, 5)]  # those with a direction, of the mask
    a, b = (
        {i: inputs[view][i] / np.linalg.norm(inputs[view][i]) for i in kept}
        for view in ("view_a", "view_b")
    )
    total = weight = 0.0
    for i in kept:
        others = [a[i] @ b[j] for j in kept if inputs["ids"][j] != inputs["ids"][i]]
        gap = (max(others) - a[i] @ b[i]) / 0.5
        total += inputs["weights"][i] * math.log1p(len(others) * math.exp(gap))
        weight += inputs["weights"][i]
    np.testing.assert_allclose(values[-1], total / weight, rtol=1e-6)


@each_temperature
@pytest.mark.parametrize("average", ["inside", "outside"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_single_positive_makes_the_multi_positive_loss_info_nce(temperature, average, dtype):
    inputs = batch(dtype)
    expected, expected_gradients = value_and_gradients(
        info_nce_loss, inputs, temperature=temperature
    )
    rounding = {np.float32: 1e-6 / temperature, np.float64: 1e-12}[dtype]
    for single in (
        {},
        {"labels": np.full(8, -1)},
        {"labels": np.arange(8)},
        {"more_positives": np.zeros([8, 2, 4], dtype)},
        {"more_positives": np.zeros([8, 0, 4], dtype)},
    ):
        got, gradients = value_and_gradients(
            multi_positive_loss, inputs, temperature=temperature, average=average, **single
        )
        np.testing.assert_allclose(got, expected, rtol=rounding)
        largest = np.abs(expected_gradients).max()
        np.testing.assert_allclose(gradients, expected_gradients, atol=10 * rounding * largest)


def test_equal_positives_of_the_multi_positive_loss_count_as_often_as_they_come():
    # Of k equal positives, each is as likely as the others: inside, n / (k p); outside, + log k.
    inputs = batch()
    copies = np.repeat(inputs["view_b"][:, np.newaxis], 3, axis=1)
    unit = {k: v for k, v in inputs.items() if k != "ids"}
    one = float(multi_positive_loss(**unit, temperature=0.5))
    inside = float(multi_positive_loss(**unit, more_positives=copies, temperature=0.5))
    outside = float(
        multi_positive_loss(**unit, more_positives=copies, temperature=0.5, average="outside")
    )
    assert inside < one
    np.testing.assert_allclose(outside, inside + math.log(4), rtol=1e-12)


def test_n_pair_is_info_nce_at_temperature_one():
    inputs = batch()
    for options in ({}, {"max_similarity": 0.3}):
        expected = value_and_gradients(info_nce_loss, inputs, temperature=1.0, **options)
        got = value_and_gradients(n_pair_loss, inputs, **options)
        np.testing.assert_array_equal(got[0], expected[0])
        np.testing.assert_array_equal(got[1], expected[1])


def test_n_pair_with_products_of_unit_vectors_is_n_pair():
    inputs = batch()
    for view in ("view_a", "view_b"):
        length = np.linalg.norm(inputs[view], axis=1, keepdims=True)
        inputs[view] = inputs[view] / np.where(length > 0, length, 1.0)
    np.testing.assert_allclose(
        n_pair_loss(**inputs, normalize=False), n_pair_loss(**inputs), rtol=1e-12
    )


@each_temperature
def test_moco_with_a_queue_of_the_batch_s_rows_is_info_nce(temperature):
    inputs = batch()
    queue = {
        "queue": 3.0 * inputs["view_b"],  # the length of a key does not matter
        "queue_mask": inputs["mask"] & (np.arange(8) != 3),
        "queue_ids": inputs["ids"],
    }
    expected, expected_gradients = value_and_gradients(
        info_nce_loss, inputs, temperature=temperature
    )
    got, gradients = value_and_gradients(moco_loss, inputs, temperature=temperature, **queue)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(gradients[0], expected_gradients[0], rtol=1e-9, atol=1e-12)


@each_temperature
def test_nt_xent_is_softmax_cross_entropy_over_all_other_vectors_of_both_views(temperature):
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 5, 3))
    z = np.concatenate([a, b]) / np.linalg.norm(np.concatenate([a, b]), axis=1, keepdims=True)
    total = 0.0
    for i in range(10):
        positive = (i + 5) % 10
        denominator = sum(math.exp(z[i] @ z[k] / temperature) for k in range(10) if k != i)
        total += -math.log(math.exp(z[i] @ z[positive] / temperature) / denominator)
    got = nt_xent_loss(a, b, mask=np.ones(5, bool), temperature=temperature)
    np.testing.assert_allclose(got, total / 10, rtol=1e-9)


@pytest.mark.parametrize("mining", ["all", "semi_hard", "hard"])
def test_labels_of_none_leave_the_triplets_of_the_two_views(mining):
    inputs = batch()
    expected = value_and_gradients(triplet_loss, inputs, mining=mining, margin=0.6)
    for labels in (np.full(8, -1), np.arange(8)):
        got = value_and_gradients(triplet_loss, inputs, labels=labels, mining=mining, margin=0.6)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-12)
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-12, atol=1e-14)
    assert expected[0] > 0


def random_views(seed):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(6, 4))
    return {
        "view_a": a,
        "view_b": a + rng.normal(size=(6, 4)),
        "mask": np.ones(6, bool),
    }


@pytest.mark.parametrize("seed", range(3))
def test_at_a_large_temperature_info_nce_pulls_as_the_simple_loss_does(seed):
    inputs = random_views(seed)
    _, simple = value_and_gradients(simple_contrastive_loss, inputs)
    simple /= np.linalg.norm(simple)
    errors = []
    for temperature in (10.0, 100.0, 1000.0, 10000.0):
        _, gradient = value_and_gradients(info_nce_loss, inputs, temperature=temperature)
        gradient /= np.linalg.norm(gradient)
        errors.append(np.linalg.norm(gradient - simple))
    assert np.sum(gradient * simple) > 1 - 1e-8
    # First order in 1 / t.
    np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 10, rtol=0.1)


def test_the_large_temperature_limit_has_the_factor_of_one_candidate_less():
    # t times the gradient tends to n / (n + 1) times that of the simple loss with n negatives.
    inputs = random_views(0)
    _, simple = value_and_gradients(simple_contrastive_loss, inputs)
    _, gradient = value_and_gradients(info_nce_loss, inputs, temperature=1e5)
    np.testing.assert_allclose(1e5 * gradient, 5 / 6 * simple, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_at_a_small_temperature_only_the_hardest_negative_pulls(seed):
    inputs = random_views(seed)

    def hardest_only(view_a, view_b, mask):
        a, b = tf.math.l2_normalize(view_a, axis=1), tf.math.l2_normalize(view_b, axis=1)
        similarity = tf.matmul(a, b, transpose_b=True)
        others = tf.linalg.set_diag(similarity, tf.fill(tf.shape(mask), np.float64(-2.0)))
        gap = tf.reduce_max(others, axis=1) - tf.linalg.diag_part(similarity)
        return tf.reduce_mean(tf.nn.relu(gap))

    value, expected = value_and_gradients(hardest_only, inputs)
    assert value > 0
    errors = []
    for temperature in (0.3, 0.1, 0.03, 0.01, 0.001):
        _, gradient = value_and_gradients(info_nce_loss, inputs, temperature=temperature)
        errors.append(np.abs(temperature * gradient - expected).max() / np.abs(expected).max())
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[-1] < 1e-4


@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"max_similarity": 0.3}])
def test_few_negatives_are_those_of_the_blocks(options):
    inputs = batch()
    rows = len(inputs["mask"])
    for most, size in ((1, 2), (2, 3), (rows - 2, -(-rows // 2)), (rows - 1, rows), (10**6, rows)):
        got = float(info_nce_loss(**inputs, max_negatives=most, **options))
        total = anchors = 0.0
        for first in range(0, rows, size):
            block = {name: x[first : first + size] for name, x in inputs.items()}
            weight = weight_of_anchors(block)
            total += weight * float(info_nce_loss(**block, **options))
            anchors += weight
        np.testing.assert_allclose(got, total / anchors, rtol=1e-12)
    with pytest.raises(ValueError, match="`max_negatives` must be at least 1"):
        info_nce_loss(**inputs, max_negatives=0)


def weight_of_anchors(inputs):
    directions = [np.linalg.norm(inputs[view], axis=1) > 0 for view in ("view_a", "view_b")]
    anchors = inputs["mask"] & directions[0] & directions[1]
    return float(np.sum(inputs.get("weights", np.ones(len(anchors)))[anchors]))
