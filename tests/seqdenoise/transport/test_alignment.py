"""Views onto views and events onto trusted events: masks, empty sides, scores."""

import numpy as np
import ot
import pytest
import tensorflow as tf
import transport_oracles as oracles

from seqdenoise.transport import event_transport, keep_scores, view_transport
from seqdenoise.transport.alignment import scores_of

B, L, M, D = 5, 4, 3, 3
OPTIONS = {"epsilon": 0.1, "relaxation": 0.3, "num_iterations": 100}


def views(n=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)), rng.normal(size=(n, D))


def events(seed=0):
    """Rows without events, without trusted ones and without either; padding anywhere, full of NaN.

    Returns:
        The arguments of `keep_scores`.
    """
    rng = np.random.default_rng(seed)
    mask, trusted_mask = rng.random((B, L)) < 0.7, rng.random((B, M)) < 0.7
    mask[0], trusted_mask[0] = [False, True, False, True], [False, True, True]
    mask[1], trusted_mask[1, 0] = False, True
    mask[2, 0], trusted_mask[2] = True, False
    mask[3] = trusted_mask[3] = False
    mask[4] = trusted_mask[4] = True
    x, y = rng.normal(size=(B, L, D)), rng.normal(size=(B, M, D))
    x[~mask], y[~trusted_mask] = np.nan, np.inf
    return {"events": x, "trusted": y, "mask": mask, "trusted_mask": trusted_mask}


def call(function, arguments, **options):
    arguments = {name: tf.constant(x) for name, x in arguments.items()}
    return function(
        arguments.pop("events"), arguments.pop("trusted"), **arguments, **{**OPTIONS, **options}
    )


def sliced(arguments, row):
    x, y = arguments["events"][row], arguments["trusted"][row]
    return x[arguments["mask"][row]], y[arguments["trusted_mask"][row]]


def transported(a, b, mask, weights=None, **options):
    """The result, and the gradients of its cost."""
    a, b = tf.constant(a), tf.constant(b)
    weights = None if weights is None else tf.constant(weights)
    with tf.GradientTape() as tape:
        tape.watch((a, b))
        result = view_transport(a, b, mask=tf.constant(mask), weights=weights, **options)
    return result, [g.numpy() for g in tape.gradient(result.cost, (a, b))]


def test_views_at_a_small_epsilon_cost_what_exact_transport_does():
    a, b = views()
    mask, weights = np.ones(7, bool), np.random.default_rng(1).uniform(0.2, 1, 7)
    mass = weights / weights.sum()
    exact = ot.emd2(mass, mass, oracles.cosine_cost(a, b))
    options = {"epsilon": 5e-3, "num_iterations": 2000, "tolerance": 1e-3}
    result, _ = transported(a, b, mask, weights, **options)
    assert result.converged
    assert exact - 2e-3 < result.cost < exact + 5e-3 * np.log(7)
    assert abs(exact - ot.emd2(ot.unif(7), ot.unif(7), oracles.cosine_cost(a, b))) > 0.02


def test_views_equal_pots_plan_with_the_weights_as_masses():
    a, b = views()
    weights = np.random.default_rng(1).uniform(0.2, 1, 7)
    mass, cost = weights / weights.sum(), oracles.cosine_cost(a, b)
    plan = ot.bregman.sinkhorn_log(mass, mass, cost, 0.1, numItermax=10_000, stopThr=1e-12)
    result, _ = transported(a, b, np.ones(7, bool), weights, epsilon=0.1, num_iterations=300)
    np.testing.assert_allclose(result.cost, (plan * cost).sum(), atol=1e-7)
    np.testing.assert_allclose(result.row_marginal, mass, atol=1e-7)


def test_views_in_another_order_cost_nothing():
    a, _ = views()
    order = np.random.default_rng(0).permutation(7)
    cost = view_transport(
        tf.constant(a), tf.constant(a[order]), mask=tf.fill([7], True), epsilon=0.005
    ).cost
    np.testing.assert_allclose(cost, 0, atol=1e-4)


@pytest.mark.parametrize("relaxation", [None, 0.5])
@pytest.mark.parametrize("fill", [np.nan, np.inf, 0.0])
def test_masked_views_equal_sliced_ones(relaxation, fill):
    a, b = views()
    weights = np.random.default_rng(1).uniform(0.2, 1, 7)
    mask = np.array([False, True, True, False, True, True, False])
    options = {"epsilon": 0.1, "relaxation": relaxation}
    expected, short = transported(a[mask], b[mask], mask[mask], weights[mask], **options)
    a[~mask], b[~mask], weights[~mask] = fill, fill, fill
    got, gradients = transported(a, b, mask, weights, **options)
    np.testing.assert_allclose(got.cost, expected.cost, rtol=1e-12)
    for gradient, reference in zip(gradients, short, strict=True):
        np.testing.assert_allclose(gradient[mask], reference, atol=1e-14)
        assert not gradient[~mask].any()


def test_views_of_weight_zero_are_dropped():
    a, b = views()
    mask, weights = np.ones(7, bool), np.array([1.0, 0, 2, 1, 0, 1, 1])
    got, gradients = transported(a, b, mask, weights)
    expected, _ = transported(a[weights > 0], b[weights > 0], mask[:5], weights[weights > 0])
    np.testing.assert_allclose(got.cost, expected.cost, rtol=1e-12)
    assert not gradients[0][weights == 0].any()


@pytest.mark.parametrize("weights", [None, np.zeros(7)])
def test_views_without_a_valid_row_cost_nothing_and_are_differentiable(weights):
    a, b = views()
    mask = np.zeros(7, bool) if weights is None else np.ones(7, bool)
    result, gradients = transported(a * np.nan, b * np.nan, mask, weights)
    assert result.cost == 0
    assert result.converged
    assert not np.any(gradients)


def test_a_nan_view_of_a_valid_row_is_seen():
    a, b = views()
    a[3, 1] = np.nan
    assert np.isnan(transported(a, b, np.ones(7, bool))[0].cost)


@pytest.mark.parametrize("relaxation", [None, 0.3])
def test_each_row_is_transported_alone(relaxation):
    arguments = events()
    enough = {"epsilon": 0.5, "num_iterations": 1000, "tolerance": 1e-9}
    result = call(event_transport, arguments, relaxation=relaxation, **enough)
    for row in range(B):
        x, y = sliced(arguments, row)
        if not len(x) or not len(y):
            assert result.cost[row] == 0
            assert not result.row_marginal[row].numpy().any()
            continue
        cost = oracles.cosine_cost(x, y)
        plan = oracles.solve(cost, ot.unif(len(x)), ot.unif(len(y)), 0.5, relaxation)[0]
        np.testing.assert_allclose(result.cost[row], (plan * cost).sum(), atol=1e-7)
        kept = result.row_marginal[row].numpy()[arguments["mask"][row]]
        np.testing.assert_allclose(kept, plan.sum(axis=1), atol=1e-7)
    assert result.converged.numpy().all()


def test_scores_are_what_the_plan_takes_from_an_event_at_most_all():
    arguments = events()
    scores = call(keep_scores, arguments, num_iterations=300).numpy()
    unclipped = []
    for row in range(B):
        x, y = sliced(arguments, row)
        expected = np.ones(len(x))
        if len(x) and len(y):
            a, b = ot.unif(len(x)), ot.unif(len(y))
            plan = oracles.solve(oracles.cosine_cost(x, y), a, b, 0.1, 0.3)[0]
            unclipped.extend(plan.sum(axis=1) / a)
            expected = np.minimum(plan.sum(axis=1) / a, 1)
        np.testing.assert_allclose(scores[row][arguments["mask"][row]], expected, atol=1e-7)
        assert not scores[row][~arguments["mask"][row]].any()
    assert min(unclipped) < 0.9


def test_a_row_without_trusted_events_keeps_its_events():
    arguments = events()
    scores = call(keep_scores, arguments).numpy()
    np.testing.assert_array_equal(scores[2], arguments["mask"][2])
    assert not scores[[1, 3]].any()


def test_scores_of_a_transport_are_its_keep_scores():
    arguments = events()
    masks = {name: tf.constant(arguments[name]) for name in ("mask", "trusted_mask")}
    scores = scores_of(call(event_transport, arguments), **masks)
    np.testing.assert_array_equal(scores, call(keep_scores, arguments))


def test_an_event_like_the_trusted_ones_scores_above_one_unlike_them():
    arguments = {
        "events": np.array([[[1.0, 0.1], [0.1, 1.0], [-1.0, 0.0], [0.0, 0.0]]]),
        "trusted": np.array([[[1.0, 0.0], [2.0, 0.1]]]),
        "mask": np.ones((1, 4), bool),
        "trusted_mask": np.ones((1, 2), bool),
    }
    near, orthogonal, opposite, zero = call(keep_scores, arguments)[0].numpy()
    assert near == 1 > orthogonal > zero > opposite > 0
    hard = call(keep_scores, arguments, relaxation=None)
    np.testing.assert_allclose(hard, np.ones((1, 4)), atol=1e-3)


@pytest.mark.parametrize("function", [event_transport, keep_scores])
def test_the_order_of_events_and_the_place_of_padding_do_not_matter(function):
    arguments = events()
    rng = np.random.default_rng(1)
    moved = {name: x.copy() for name, x in arguments.items()}
    orders = [rng.permutation(L) for _ in range(B)]
    for row, order in enumerate(orders):
        columns = rng.permutation(M)
        for name in ("events", "mask"):
            moved[name][row] = moved[name][row][order]
        for name in ("trusted", "trusted_mask"):
            moved[name][row] = moved[name][row][columns]
    got, expected = call(function, moved), call(function, arguments)
    if function is event_transport:
        np.testing.assert_allclose(got.cost, expected.cost, atol=1e-12)
        got, expected = got.row_marginal, expected.row_marginal
    for row, order in enumerate(orders):
        np.testing.assert_allclose(got[row], expected[row].numpy()[order], atol=1e-12)


def test_more_padding_and_what_is_in_it_do_not_matter():
    arguments = events()
    longer = {
        name: np.pad(x, [(0, 0), (1, 2), *[(0, 0)] * (x.ndim - 2)], constant_values=fill)
        for (name, x), fill in zip(arguments.items(), (np.inf, 1e30, False, False), strict=True)
    }
    got = call(keep_scores, longer).numpy()
    np.testing.assert_allclose(got[:, 1:-2], call(keep_scores, arguments), atol=1e-12)
    assert not np.delete(got, range(1, L + 1), axis=1).any()


def test_a_nan_in_a_real_event_is_seen_in_its_row_only():
    arguments = events()
    clean = call(keep_scores, arguments).numpy()
    for name, slot in (("events", 2), ("trusted", 1)):
        spoilt = {key: x.copy() for key, x in arguments.items()}
        spoilt[name][4, slot, 0] = np.nan
        scores = call(keep_scores, spoilt).numpy()
        assert np.isnan(scores[4]).any()
        np.testing.assert_array_equal(scores[:4], clean[:4])
        assert np.isnan(call(event_transport, spoilt).cost[4])
        if name == "events":
            assert np.isnan(scores[4, slot])


def test_scores_have_no_gradient_and_costs_have_one_only_to_real_events():
    arguments = events()
    x, y = tf.constant(arguments["events"]), tf.constant(arguments["trusted"])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch((x, y))
        given = {**arguments, "events": x, "trusted": y}
        scores = call(keep_scores, given)
        cost = tf.reduce_sum(call(event_transport, given).cost)
    assert tape.gradient(scores, [x, y]) == [None, None]
    matched = arguments["mask"].any(axis=1) & arguments["trusted_mask"].any(axis=1)
    for gradient, mask in zip(
        tape.gradient(cost, [x, y]), (arguments["mask"], arguments["trusted_mask"]), strict=True
    ):
        real = mask & matched[:, np.newaxis]
        np.testing.assert_array_equal(np.any(gradient.numpy() != 0, axis=2), real)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_scores_are_at_least_float32(dtype):
    arguments = events()
    given = {
        name: tf.cast(np.nan_to_num(x, nan=0, posinf=0), dtype) if x.dtype == float else x
        for name, x in arguments.items()
    }
    scores = call(keep_scores, given)
    assert scores.dtype == (tf.float64 if dtype == "float64" else tf.float32)
    np.testing.assert_allclose(scores, call(keep_scores, arguments), atol=0.02)


def test_unknown_sizes_in_a_graph():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, None]),
            tf.TensorSpec([None, None, None]),
            tf.TensorSpec([None, None], tf.bool),
            tf.TensorSpec([None, None], tf.bool),
        ]
    )
    def scores(x, y, mask, trusted_mask):
        return keep_scores(x, y, mask=mask, trusted_mask=trusted_mask, **OPTIONS)

    arguments = {
        name: x.astype("float32") if x.dtype == float else x for name, x in events().items()
    }
    whole = scores(*map(tf.constant, arguments.values()))
    np.testing.assert_allclose(whole, call(keep_scores, arguments), atol=1e-5)
    half = scores(*(tf.constant(x[:2, 1:]) for x in arguments.values()))
    assert half.shape == (2, L - 1)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 4, 3), (2, 5, 2), (2, 4), (2, 5)), "`x` and `y` must have shape"),
        (((2, 4, 3), (3, 5, 3), (2, 4), (3, 5)), "`x` and `y` must have shape"),
        (((2, 4, 3), (5, 3), (2, 4), (5,)), "`x` and `y` must have shape"),
        (((2, 4, 3), (2, 5, 3), (2, 5), (2, 5)), "`row_mass`"),
        (((2, 4, 3), (2, 5, 3), (2, 4), (5,)), "`column_mass`"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes, message):
    x, y = tf.zeros(shapes[0]), tf.zeros(shapes[1])
    mask, trusted_mask = tf.fill(shapes[2], True), tf.fill(shapes[3], True)
    with pytest.raises(ValueError, match=message + ".*Received: "):
        event_transport(x, y, mask=mask, trusted_mask=trusted_mask)


def test_an_unknown_option_is_refused():
    a, b = (tf.constant(x) for x in views())
    with pytest.raises(ValueError, match="`epsilon` must be above 0"):
        view_transport(a, b, mask=tf.fill([7], True), epsilon=-1.0)
    with pytest.raises(TypeError, match="temperature"):
        view_transport(a, b, mask=tf.fill([7], True), temperature=0.1)
