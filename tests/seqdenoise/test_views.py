import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from seqdenoise import complementary_mask, dimension_views, view_seed

SIZES = st.sampled_from([(1, 2), (5, 7), (16, 10), (33, 4)])


@given(SIZES, st.integers(0, 2**31 - 1))
def test_each_row_keeps_exactly_half(size, seed):
    rows, features = size
    mask = complementary_mask(rows, features, seed=[seed, 1]).numpy()
    assert mask.shape == (rows, features)
    np.testing.assert_array_equal(mask.sum(axis=1), np.full(rows, features // 2))


@given(SIZES, st.integers(0, 2**31 - 1))
def test_views_are_disjoint_and_complete(size, seed):
    # All entries differ from 0, so a 0 in a view can only come from the mask.
    x = np.arange(1, size[0] * size[1] + 1, dtype=np.float32).reshape(size)
    a, b = (view.numpy() for view in dimension_views(tf.constant(x), seed=[seed, 2]))
    np.testing.assert_array_equal((a != 0) ^ (b != 0), np.ones(size, bool))
    np.testing.assert_array_equal(a + b, x)


def test_rows_steps_names_and_seeds_get_masks_of_their_own():
    def draw(seed, name, step):
        return complementary_mask(64, 8, seed=view_seed(seed, name, tf.constant(step, tf.int64)))

    first = draw(0, "click", 0).numpy()
    assert len(np.unique(first, axis=0)) > 20
    for other in (draw(1, "click", 0), draw(0, "cart", 0), draw(0, "click", 1)):
        # Two random halves of 8 agree by chance with probability 1 / 70 a row.
        assert np.all(first == other.numpy(), axis=1).mean() < 0.2
    np.testing.assert_array_equal(first, draw(0, "click", 0).numpy())


def test_every_feature_is_kept_half_of_the_time():
    mask = complementary_mask(20_000, 6, seed=[3, 3]).numpy()
    np.testing.assert_allclose(mask.mean(axis=0), np.full(6, 0.5), atol=0.02)
    # ... and independently of its neighbour, but for the fixed count: P(both) = 1/2 * 2/5.
    np.testing.assert_allclose((mask[:, 0] & mask[:, 1]).mean(), 0.2, atol=0.02)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_and_xla_draw_the_eager_masks(jit_compile):
    def draw(step):
        return complementary_mask(37, 10, seed=view_seed(5, "click", step))

    step = tf.constant(12, tf.int64)
    compiled = tf.function(draw, jit_compile=jit_compile)
    np.testing.assert_array_equal(compiled(step).numpy(), draw(step).numpy())


def test_a_row_keeps_its_mask_whatever_follows_it():
    # What makes the masks of a global batch independent of how it is spread over devices.
    whole = complementary_mask(50, 9, seed=[1, 2]).numpy()
    np.testing.assert_array_equal(whole[:20], complementary_mask(20, 9, seed=[1, 2]).numpy())


def test_global_seed_and_global_state_do_not_matter():
    tf.random.set_seed(1)
    first = complementary_mask(8, 6, seed=[1, 2]).numpy()
    tf.random.set_seed(2)
    tf.random.uniform([3])
    np.testing.assert_array_equal(first, complementary_mask(8, 6, seed=[1, 2]).numpy())


@pytest.mark.parametrize("features", [0, 1])
def test_too_few_features_are_refused(features):
    with pytest.raises(ValueError, match=f"at least 2 features.*Received: num_features={features}"):
        complementary_mask(3, features, seed=[0, 0])


def test_wrong_rank_is_refused():
    with pytest.raises(ValueError, match=r"\[B, D\].*Received: shape \(2, 3, 4\)"):
        dimension_views(tf.ones([2, 3, 4]), seed=[0, 0])
