import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seqdenoise import ViewEncoder, info_nce_loss, pgd_attack

X = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
SLOPES = np.random.default_rng(1).normal(size=X.shape).astype(np.float32)


def linear(x):
    return tf.reduce_sum(x * tf.cast(SLOPES, x.dtype))


def encoder(features):
    layer = ViewEncoder(units=4, hidden_units=8, seed=3)
    layer.build((None, features))
    return layer


def instance_loss(layer, target):
    mask = tf.ones(tf.shape(target)[:1], tf.bool)
    return lambda x: info_nce_loss(layer(x), layer(target), mask=mask)


def test_the_worst_point_of_a_linear_loss_is_the_corner_of_its_slopes_signs():
    got = pgd_attack(linear, X, epsilon=0.25).numpy()
    np.testing.assert_allclose(got, X + 0.25 * np.sign(SLOPES), rtol=1e-6)


@pytest.mark.parametrize("step_size", [None, 0.02])
def test_equals_the_iteration_written_out(step_size):
    # A quadratic with its maximum inside the ball in some components: steps turn back there.
    best = X + np.float32(0.3) * SLOPES

    got = pgd_attack(
        lambda x: -tf.reduce_sum((x - best) ** 2), X, epsilon=0.2, num_steps=7, step_size=step_size
    ).numpy()

    for index, start in np.ndenumerate(X.astype(np.float64)):
        at = start
        for _ in range(7):
            at += (step_size or 2.5 * 0.2 / 7) * np.sign(best[index] - at)
            at = min(max(at, start - 0.2), start + 0.2)
        np.testing.assert_allclose(got[index], at, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("jit_compile", [None, False, True])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 7.0])
def test_the_ball_is_kept_to_the_last_bit(jit_compile, epsilon):
    # Magnitudes from far below to far above epsilon, where x + epsilon rounds outwards or to x.
    rng = np.random.default_rng(2)
    x = (rng.normal(size=(4000, 5)) * 10 ** rng.uniform(-9, 9, (4000, 1))).astype(np.float32)
    slopes = rng.normal(size=x.shape).astype(np.float32)

    def attack(x):
        return pgd_attack(lambda x: tf.reduce_sum(x * slopes), x, epsilon=epsilon, num_steps=3)

    if jit_compile is not None:
        attack = tf.function(attack, jit_compile=jit_compile)
    got = attack(tf.constant(x)).numpy()
    assert (np.abs(got - x) <= np.float32(epsilon)).all()
    # It is used to the full: one float further would be outside.
    further = np.nextafter(got, np.sign(slopes) * np.float32(np.inf))
    assert (np.abs(further - x) >= np.float32(epsilon)).all()
    # What clipping to `x - epsilon` and `x + epsilon` alone would have given.
    assert (np.abs((x + np.float32(epsilon)) - x) > np.float32(epsilon)).mean() > 0.01


@given(
    hnp.arrays(np.float32, (3, 2), elements=st.floats(-(2.0**60), 2.0**60, width=32)),
    st.sampled_from([1e-6, 0.3, 1e6]),
    st.sampled_from([1, 4]),
    st.booleans(),
)
def test_no_input_leaves_the_ball(x, epsilon, num_steps, random_start):
    got = pgd_attack(
        lambda x: tf.reduce_sum(tf.sin(x)),
        x,
        epsilon=epsilon,
        num_steps=num_steps,
        random_start=random_start,
        seed=[1, 2],
    ).numpy()
    assert (np.abs(got - x) <= np.float32(epsilon)).all()


def test_the_attacked_loss_is_above_the_clean_one_over_100_random_batches():
    layer = encoder(6)

    @tf.function
    def run(x, target):
        loss_fn = instance_loss(layer, target)
        attacked = pgd_attack(loss_fn, x, epsilon=0.1)
        return attacked, loss_fn(x), loss_fn(attacked)

    for seed in range(100):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(16, 6)).astype(np.float32)
        # Half of the batches hold close views, as trained encoders see them.
        target = rng.normal(size=x.shape) if seed % 2 else x + 0.3 * rng.normal(size=x.shape)
        attacked, clean_loss, attacked_loss = run(x, target.astype(np.float32))
        assert (np.abs(attacked - x) <= np.float32(0.1)).all()
        assert attacked_loss > clean_loss + 0.01


def test_steps_too_long_for_the_loss_can_end_below_where_they_began():
    # What the docstring warns of: the slope at 0.1 leads over the top of the wave and down.
    def wave(x):
        return tf.reduce_sum(tf.sin(x))

    x = tf.constant([0.1])
    long = pgd_attack(wave, x, epsilon=4.0, num_steps=1)
    assert wave(long) < wave(x) - 0.5
    short = pgd_attack(wave, x, epsilon=4.0, num_steps=10, step_size=0.2)
    np.testing.assert_allclose(short, [np.pi / 2], atol=0.2)


def test_no_step_lowers_a_convex_loss():
    # f(y) >= f(x) + f'(x)(y - x), and clipping never turns a step against the slope's sign.
    def loss_fn(x):
        return tf.reduce_sum(tf.math.softplus(tf.matmul(x, SLOPES, transpose_b=True)))

    losses = [
        float(loss_fn(pgd_attack(loss_fn, X, epsilon=0.5, num_steps=k, step_size=0.15)))
        for k in range(1, 7)
    ]
    assert float(loss_fn(X)) < losses[0]
    assert (np.diff(losses) >= 0).all()


@pytest.mark.parametrize("filler", [np.nan, np.inf, 3e38, 5.0])
def test_masked_rows_come_out_as_they_went_in(filler):
    mask = np.array([True, True, False, True, False, True])
    x = X.copy()
    x[~mask] = filler

    def loss_fn(x):
        return info_nce_loss(x, X[::-1], mask=tf.constant(mask))

    attacked = pgd_attack(loss_fn, x, epsilon=0.1).numpy()
    np.testing.assert_array_equal(attacked[~mask], x[~mask])
    np.testing.assert_array_equal(attacked[mask], pgd_attack(loss_fn, X, epsilon=0.1)[mask])
    assert (attacked[mask] != x[mask]).mean() > 0.9


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_a_nan_gradient_surfaces_where_it_is(jit_compile):
    slopes = SLOPES.copy()
    slopes[2, 1] = np.nan

    def attack(x):
        return pgd_attack(lambda x: tf.reduce_sum(x * slopes), x, epsilon=0.1)

    if jit_compile is not None:
        attack = tf.function(attack, jit_compile=jit_compile)
    np.testing.assert_array_equal(np.isnan(attack(tf.constant(X)).numpy()), np.isnan(slopes))


def test_a_nan_gradient_of_one_step_only_surfaces_too():
    steps = []

    def loss_fn(x):
        steps.append(x)
        return linear(x) * (np.nan if len(steps) == 1 else 1.0)

    # The later steps' gradients do not depend on x and are finite.
    assert np.isnan(pgd_attack(loss_fn, X, epsilon=0.1, num_steps=3).numpy()).all()


def test_a_nan_in_a_valid_row_surfaces():
    x = X.copy()
    x[1, 0] = np.nan
    attacked = pgd_attack(instance_loss(encoder(5), X[::-1]), x, epsilon=0.1).numpy()
    assert np.isnan(attacked[1, 0])


def test_a_radius_of_0_changes_nothing_and_asks_for_no_loss():
    def no_loss(_):
        raise AssertionError

    for random_start in (False, True):
        got = pgd_attack(no_loss, X, epsilon=0.0, random_start=random_start, seed=[0, 0])
        np.testing.assert_array_equal(got, X)


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_the_result_has_the_gradient_of_x_and_the_perturbation_has_none(jit_compile):
    scale = tf.Variable(2.0)
    weights = tf.constant(SLOPES)

    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            inner = x * 3.0  # as if x were made of embeddings
            attacked = pgd_attack(
                lambda x: tf.reduce_sum(scale * tf.sin(x)), inner, epsilon=0.2, num_steps=2
            )
            outer = tf.reduce_sum(weights * attacked)
        return tape.gradient(outer, [x, scale])

    if jit_compile is not None:
        gradients = tf.function(gradients, jit_compile=jit_compile)
    by_x, by_scale = gradients(tf.constant(X))
    np.testing.assert_array_equal(by_x, 3 * SLOPES)
    assert by_scale is None


def test_training_on_the_attacked_view_is_training_on_it_as_a_constant():
    layer = encoder(5)
    loss_fn = instance_loss(layer, X[::-1])
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        loss = loss_fn(pgd_attack(loss_fn, x, epsilon=0.2, num_steps=3))
    got = tape.gradient(loss, layer.trainable_variables)
    constant = tf.constant(pgd_attack(loss_fn, x, epsilon=0.2, num_steps=3).numpy())
    with tf.GradientTape() as tape:
        loss = loss_fn(constant)
    expected = tape.gradient(loss, layer.trainable_variables)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.abs(other).max() > 0


@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_and_xla_equal_eager_for_any_batch_size(jit_compile):
    layer = encoder(5)

    def attack(x, target):
        return pgd_attack(
            instance_loss(layer, target),
            x,
            epsilon=0.1,
            num_steps=2,
            random_start=True,
            seed=[4, 5],
        )

    spec = tf.TensorSpec([None, 5])
    compiled = tf.function(attack, input_signature=[spec, spec], jit_compile=jit_compile)
    for rows in (6, 4):
        x, target = tf.constant(X[:rows]), tf.constant(X[::-1][:rows])
        got, expected = compiled(x, target).numpy(), attack(x, target).numpy()
        # A sign may turn where a slope is at rounding level; no other difference is allowed.
        assert np.isclose(got, expected, rtol=1e-6, atol=1e-7).mean() >= 0.95


def start(x, *, epsilon=0.3, seed=(7, 8), first_row=0):
    # With a flat loss the attack ends where it starts.
    return pgd_attack(
        lambda x: 0.0 * tf.reduce_sum(x),
        x,
        epsilon=epsilon,
        num_steps=1,
        random_start=True,
        seed=seed,
        first_row=first_row,
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_and_xla_start_from_the_eager_point_bit_for_bit(dtype, jit_compile):
    x = np.random.default_rng(3).normal(size=(500, 7)).astype(dtype)
    compiled = tf.function(start, jit_compile=jit_compile)
    np.testing.assert_array_equal(compiled(tf.constant(x)), start(x))


def test_the_start_is_uniform_in_the_ball_and_the_seed_s_own():
    offset = start(np.zeros((4000, 5), np.float32)).numpy()
    assert np.abs(offset).max() <= np.float32(0.3)
    deciles = np.quantile(offset, np.linspace(0, 1, 11))
    np.testing.assert_allclose(deciles, np.linspace(-0.3, 0.3, 11), atol=0.01)
    np.testing.assert_allclose(np.corrcoef(offset.T), np.eye(5), atol=0.06)
    assert len(np.unique(offset)) > 0.99 * offset.size
    other = start(np.zeros((4000, 5), np.float32), seed=(7, 9)).numpy()
    assert (offset == other).mean() < 0.01
    tf.random.set_seed(3)
    np.testing.assert_array_equal(offset, start(np.zeros((4000, 5), np.float32)))


def test_rows_of_a_shard_start_like_those_of_the_whole_batch():
    x = np.zeros((11, 3, 5), np.float32)
    for first_row in (4, tf.constant(4)):
        shard = start(x[4:], first_row=first_row)
        np.testing.assert_array_equal(shard, start(x).numpy()[4:])


def test_the_attack_goes_on_from_the_random_start():
    # The slope changes its sign in the middle of the ball, so the two ways part there.
    x = np.full((200, 1), np.pi / 2, np.float32)
    options = {"epsilon": 0.5, "num_steps": 4, "random_start": True, "seed": [1, 1]}
    got = pgd_attack(lambda x: -tf.reduce_sum(tf.sin(x)), x, **options).numpy() - x
    # Down from the top on the side of the start, to the border.
    side = np.sign(start(x, epsilon=0.5, seed=[1, 1]).numpy() - x)
    np.testing.assert_allclose(got, 0.5 * side, atol=1e-6)
    assert 50 < (side > 0).sum() < 150


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_is_attacked_in_float32(dtype):
    x = tf.cast(X, dtype)
    got = pgd_attack(linear, x, epsilon=1e-3)
    assert got.dtype == tf.float32
    np.testing.assert_array_equal(got, pgd_attack(linear, tf.cast(x, tf.float32), epsilon=1e-3))


def test_float64_is_kept():
    got = pgd_attack(linear, X.astype(np.float64), epsilon=0.1)
    assert got.dtype == tf.float64
    np.testing.assert_allclose(got, X + 0.1 * np.sign(SLOPES).astype(np.float64), rtol=1e-14)


def test_a_loss_that_gathers_rows_has_its_gradient_made_dense():
    got = pgd_attack(lambda x: tf.reduce_sum(tf.gather(x, [1, 3])), X, epsilon=0.5).numpy()
    expected = X.copy()
    expected[[1, 3]] += 0.5
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": -0.1}, "`epsilon` must be finite and at least 0. Received: -0.1"),
        ({"epsilon": np.nan}, "`epsilon` must be finite.*Received: nan"),
        ({"epsilon": np.inf}, "`epsilon` must be finite.*Received: inf"),
        ({"num_steps": 0}, "`num_steps` must be at least 1. Received: 0"),
        ({"step_size": 0.0}, "`step_size` must be finite and above 0. Received: 0.0"),
        ({"random_start": True}, "`random_start` needs a `seed`. Received: None"),
        ({"loss_fn": lambda x: x[:, 0]}, r"`loss_fn` must return a scalar. Received: .*\(6,\)"),
        ({"loss_fn": lambda _: tf.constant(1.0)}, "`loss_fn` must depend on its argument"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"loss_fn": linear, "x": X, "epsilon": 0.1, **change}
    with pytest.raises(ValueError, match=message):
        pgd_attack(arguments.pop("loss_fn"), arguments.pop("x"), **arguments)
