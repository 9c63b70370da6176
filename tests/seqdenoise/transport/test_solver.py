"""What holds for every mode: padding, batches, what is flagged, graphs, errors."""

import numpy as np
import pytest
import tensorflow as tf
import transport_oracles as oracles
from scipy.optimize import linear_sum_assignment
from transport_cases import MODES, problem, solve

from seqdenoise.transport import cosine_transport, sinkhorn, transport_plan
from seqdenoise.transport.iterations import Problem, is_in_kernel_range

every_mode = pytest.mark.parametrize("mode", MODES)
RELAXED = pytest.mark.parametrize("relaxation", [None, 0.3])


def padded(cost, a, b, fill, rows=(1, 4), columns=(0, 5)):
    """The same problem with rows and columns of zero mass before those given, full of `fill`."""
    cost = np.insert(np.insert(cost, rows, fill, axis=0), columns, fill, axis=1)
    a, b = np.insert(a, rows, 0.0), np.insert(b, columns, 0.0)
    return cost, a, b


@every_mode
@RELAXED
def test_padding_with_anything_equals_the_sliced_problem(mode, relaxation):
    cost, a, b = problem()
    options = {"epsilon": 0.02, "relaxation": relaxation, "mode": mode, "num_iterations": 60}
    plain = solve(cost, a, b, **options)
    for fill in (np.nan, np.inf, -1e300):
        wide = solve(*padded(cost, a, b, fill), **options)
        rows, columns = (x.nonzero()[0] for x in padded(cost, a, b, fill)[1:])
        near = {"rtol": 1e-11, "atol": 1e-15}
        for field in ("cost", "marginal_error", "converged", "num_iterations"):
            expected = getattr(plain.transport, field)
            np.testing.assert_allclose(
                getattr(wide.transport, field), expected, rtol=1e-11, atol=1e-14, err_msg=field
            )
        for field in ("row_marginal", "row_potential"):
            got, expected = getattr(wide.transport, field), getattr(plain.transport, field)
            np.testing.assert_allclose(got[rows], expected, err_msg=field, **near)
            assert not np.delete(got, rows).any()
        for field in ("column_marginal", "column_potential"):
            got, expected = getattr(wide.transport, field), getattr(plain.transport, field)
            np.testing.assert_allclose(got[columns], expected, err_msg=field, **near)
            assert not np.delete(got, columns).any()
        for got, expected in ((wide.plan, plain.plan), (wide.gradient, plain.gradient)):
            np.testing.assert_allclose(got[np.ix_(rows, columns)], expected, **near)
            assert not np.delete(got, rows, axis=0).any()
            assert not np.delete(got, columns, axis=1).any()


@pytest.mark.parametrize("mode", ["kernel", "log"])
@RELAXED
def test_a_batch_equals_each_problem_alone(mode, relaxation):
    cost, a, b = problem(batch=4)
    a[1, 2] = b[2, :3] = a[3] = 0.0
    if relaxation is not None:
        a[0] *= 3.0
    options = {"epsilon": 0.05, "relaxation": relaxation, "mode": mode}
    together = solve(cost, a, b, **options)
    for i in range(4):
        alone = solve(cost[i], a[i], b[i], **options)
        np.testing.assert_allclose(together.plan[i], alone.plan, rtol=1e-12)
        np.testing.assert_allclose(together.gradient[i], alone.gradient, rtol=1e-12)
        for got, expected in zip(together.transport[:-1], alone.transport[:-1], strict=True):
            np.testing.assert_allclose(got[i], expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("mode", ["auto", "stabilised"])
def test_batch_mates_of_another_scale_change_a_problem_by_less_than_the_tolerance(mode):
    # One needs no descent, its mate eleven stages; "auto" solves it in the kernel mode when alone.
    cost, a, b = problem(batch=2)
    cost[1] *= 1000
    options = {"epsilon": 0.05, "mode": mode, "num_iterations": 2000, "tolerance": 1e-8}
    alone = solve(cost[0], a[0], b[0], **options)
    together = solve(cost, a, b, **options)
    np.testing.assert_allclose(together.plan[0], alone.plan, atol=1e-8)
    assert together.transport.num_iterations > alone.transport.num_iterations


@every_mode
def test_a_nan_among_real_costs_is_seen_in_its_own_problem_only(mode):
    cost, a, b = problem(batch=3)
    options = {"epsilon": 0.05, "mode": mode, "dtype": tf.float32}
    clean = solve(cost, a, b, **options)
    cost[1, 2, 3] = np.nan
    spoilt = solve(cost, a, b, **options)
    transport = spoilt.transport
    for values in (transport.cost, transport.marginal_error, transport.row_marginal[:, 2]):
        np.testing.assert_array_equal(np.isnan(values), [False, True, False])
    assert not transport.converged[1]
    assert np.isnan(spoilt.gradient[1]).any()
    np.testing.assert_allclose(spoilt.plan[[0, 2]], clean.plan[[0, 2]], rtol=1e-5, atol=1e-9)


@every_mode
@RELAXED
def test_a_problem_without_mass_has_a_zero_plan(mode, relaxation):
    cost, a, b = problem(batch=4)
    a[0] = b[1] = a[2] = b[2] = 0.0
    cost[0] = np.nan
    solved = solve(cost, a, b, epsilon=0.1, relaxation=relaxation, mode=mode, tolerance=1e-5)
    for values in (*solved.transport[:6], solved.plan, solved.gradient):
        assert not values[:3].any()
    assert solved.transport.converged.all()
    assert solved.plan[3].sum() > 0.1


@every_mode
def test_balanced_problems_of_different_totals_are_flagged(mode):
    cost, a, b = problem(batch=3)
    a[1] *= 1.1
    a[2] *= 1e-20
    for dtype in (tf.float32, tf.float64):
        options = {"epsilon": 0.1, "mode": mode, "num_iterations": 200, "dtype": dtype}
        solved = solve(cost, a, b, **options)
        np.testing.assert_array_equal(solved.transport.converged, [True, False, False])
        np.testing.assert_allclose(solved.transport.marginal_error[1], 0.1 / 1.1**0.5, rtol=1e-4)
        np.testing.assert_allclose(solved.transport.column_marginal[1], b[1], rtol=1e-4)
        assert np.isfinite(solved.plan).all()
        # Solved as well as it can be: proportionally.
        np.testing.assert_allclose(solved.transport.row_marginal[1], a[1] / 1.1, rtol=1e-4)


@every_mode
def test_too_few_iterations_are_flagged(mode):
    cost, a, b = problem(20, 20)
    few = solve(cost, a, b, epsilon=5e-3, mode=mode, num_iterations=3)
    assert not few.transport.converged
    many = solve(cost, a, b, epsilon=5e-3, mode=mode, num_iterations=2000)
    assert many.transport.converged
    assert many.transport.marginal_error < 1e-3 < few.transport.marginal_error


@pytest.mark.parametrize("shift", [0.0, -0.5, 0.5])
def test_the_kernel_mode_out_of_its_range_is_finite_and_wrong_only_where_flagged(shift):
    cost, a, b = problem(12, 12)
    cost = (cost + shift) * 1000
    for relaxation in (None, 1.0, 0.01) if shift >= 0 else (None,):
        options = {"epsilon": 1.0, "relaxation": relaxation, "mode": "kernel"}
        forced = solve(cost, a, b, dtype=tf.float32, **options)
        for values in (*forced.transport[:6], forced.plan, forced.gradient):
            assert np.isfinite(values).all()
        if relaxation is None:
            assert not forced.transport.converged
        else:  # Rows far from everything send nothing, which the kernel mode can do.
            plan = oracles.solve(cost, a, b, 1.0, relaxation)[0]
            assert forced.transport.converged
            np.testing.assert_allclose(forced.plan, plan, rtol=1e-3, atol=1e-9)


def test_auto_leaves_the_kernel_mode_where_costs_span_more_than_its_range():
    # Costs of either sign: none above 60 epsilons, but two of them 100 apart.
    assert not is_in_kernel_range(Problem(tf.constant([[50.0, -50.0]]), None, None, 1.0, None))
    assert is_in_kernel_range(Problem(tf.constant([[29.0, -29.0]]), None, None, 1.0, None))
    cost, a, b = problem()
    cost = 100 * (cost - 0.5)
    cost[0], cost[0, 0] = 50.0, -50.0
    plan = oracles.solve(cost, a, b, 1.0)[0]
    solved = solve(cost, a, b, epsilon=1.0, num_iterations=2000, dtype=tf.float32)
    np.testing.assert_allclose(solved.plan, plan, atol=1e-5)


@every_mode
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_errors_and_marginals_are_those_of_the_plan(mode, dtype):
    cost, a, b = problem(batch=2)
    options = {"epsilon": 0.01, "mode": mode, "dtype": dtype, "num_iterations": 10}
    for relaxation in (None, 0.3):
        solved = solve(cost, a, b, relaxation=relaxation, **options)
        rows, columns = solved.plan.sum(axis=2), solved.plan.sum(axis=1)
        near = {"rtol": 1e-4 if dtype == tf.float32 else 1e-12}
        np.testing.assert_allclose(solved.transport.row_marginal, rows, **near)
        np.testing.assert_allclose(solved.transport.column_marginal, columns, **near)
        np.testing.assert_allclose(
            solved.transport.cost, (solved.plan * cost).sum(axis=(1, 2)), **near
        )
        asked_rows, asked_columns = a, b
        if relaxation is not None:
            asked_rows = a * np.exp(-solved.transport.row_potential / relaxation)
            asked_columns = b * np.exp(-solved.transport.column_potential / relaxation)
        errors = np.maximum(
            abs(rows - asked_rows).sum(axis=1), abs(columns - asked_columns).sum(axis=1)
        )
        np.testing.assert_allclose(
            solved.transport.marginal_error, errors, rtol=1e-3, atol=1e-5 if mode else 1e-12
        )


def test_without_a_tolerance_the_iterations_are_as_many_as_asked():
    cost, a, b = problem()
    for mode in ("kernel", "log"):
        for count in (1, 7):
            solved = solve(cost, a, b, epsilon=1.0, mode=mode, num_iterations=count)
            assert solved.transport.num_iterations == count
    one = solve(cost, a, b, epsilon=1.0, mode="kernel", num_iterations=1)
    u = 1 / (np.exp(-cost) @ b)
    v = 1 / (np.exp(-cost).T @ (a * u))
    np.testing.assert_allclose(one.plan, (a * u)[:, np.newaxis] * np.exp(-cost) * (b * v))


@pytest.mark.parametrize(
    ("largest", "asked", "counted"),
    # In float32, 0.6 is 60 epsilons: up to there no descent, up to 4 times that two halvings.
    [(0.5, 1, 10), (0.5, 10, 10), (0.5, 11, 20), (2.39, 10, 30), (1.3, 20, 40), (2.5, 20, 50)],
)
def test_stabilised_iterations_come_in_blocks_after_a_descent(largest, asked, counted):
    cost, a, b = problem()
    cost *= largest / cost.max()
    solved = solve(
        cost, a, b, epsilon=0.01, mode="stabilised", num_iterations=asked, dtype=tf.float32
    )
    assert solved.transport.num_iterations == counted


@pytest.mark.parametrize("mode", ["kernel", "stabilised", "log"])
@RELAXED
def test_a_tolerance_stops_early_with_the_same_result(mode, relaxation):
    cost, a, b = problem(batch=3)
    cost[1] = 0.0
    options = {"epsilon": 0.05, "relaxation": relaxation, "mode": mode, "num_iterations": 3000}
    full = solve(cost, a, b, **options)
    counts = []
    for tolerance in (1e-2, 1e-8):
        stopped = solve(cost, a, b, tolerance=tolerance, **options)
        assert stopped.transport.converged.all()
        assert (stopped.transport.marginal_error < tolerance).all()
        np.testing.assert_allclose(stopped.plan, full.plan, atol=10 * tolerance)
        counts.append(stopped.transport.num_iterations)
        # At the first check at which all are below it: with one step less, one is not.
        step = 10 if mode == "stabilised" else 1
        shorter = {**options, "num_iterations": int(counts[-1]) - step, "tolerance": tolerance}
        if shorter["num_iterations"] > 0:
            assert not solve(cost, a, b, **shorter).transport.converged.all()
    assert counts[0] < counts[1] < 3000


def test_a_tolerance_below_what_is_reached_in_time_is_flagged_problem_by_problem():
    cost, a, b = problem(batch=2)
    cost[1] = 0.0
    solved = solve(cost, a, b, epsilon=0.01, num_iterations=5, tolerance=1e-6, mode="kernel")
    np.testing.assert_array_equal(solved.transport.converged, [False, True])
    assert solved.transport.num_iterations == 5


def test_the_stabilised_mode_does_not_stop_above_the_asked_epsilon():
    # All costs equal: converged at once, at every epsilon of the descent.
    _, a, b = problem()
    solved = solve(
        np.full((6, 8), 100.0), a, b, epsilon=0.01, mode="stabilised", tolerance=1e-3,
        num_iterations=50, dtype=tf.float32,
    )  # fmt: skip
    assert solved.transport.num_iterations == 10 * (1 + 8)
    np.testing.assert_allclose(solved.plan, np.outer(a, b), rtol=1e-2)


@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e6, tf.float32), (1e10, tf.float32), (1e15, tf.float64)]
)
def test_an_epsilon_below_what_the_dtype_resolves_is_raised_to_that(scale, dtype):
    cost, a, b = problem(8, 8, even=True)
    columns = linear_sum_assignment(cost)[1]
    options = {"epsilon": 1e-4, "dtype": dtype, "num_iterations": 100}
    for mode in ("stabilised", "log"):
        solved = solve(cost * scale, a, b, mode=mode, **options)
        assert np.isfinite(solved.gradient).all()
        np.testing.assert_allclose(solved.plan, solved.gradient, rtol=1e-4)
        assert solved.transport.converged == (mode == "stabilised")
    solved = solve(cost * scale, a, b, **options)
    np.testing.assert_array_equal(solved.plan.argmax(axis=1), columns)
    np.testing.assert_allclose(solved.plan.max(axis=1), a, rtol=0.02)


def test_masses_of_tiny_total_do_not_vanish():
    cost, a, b = problem()
    expected = solve(cost, a, b, epsilon=0.1, dtype=tf.float32).plan
    solved = solve(cost, a * 1e-25, b * 1e-25, epsilon=0.1, dtype=tf.float32)
    np.testing.assert_allclose(solved.plan * 1e25, expected, rtol=1e-3)
    assert solved.transport.converged


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    cost, a, b = problem()
    got = solve(cost, a, b, epsilon=0.1, dtype=dtype)
    rounded = (tf.cast(tf.cast(x, dtype), tf.float32).numpy() for x in (cost, a, b))
    expected = solve(*rounded, epsilon=0.1, dtype=tf.float32)
    assert got.transport.cost.dtype == got.plan.dtype == np.float32
    np.testing.assert_allclose(got.plan, expected.plan, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{"epsilon": 0.1}, {"epsilon": 0.01, "relaxation": 0.3, "tolerance": 1e-4}],
    ids=["kernel", "stabilised_relaxed_tolerance"],
)
def test_eager_graph_and_xla_agree(options):
    cost, a, b = (tf.constant(x, tf.float32) for x in problem(batch=2))

    def run(cost):
        with tf.GradientTape() as tape:
            tape.watch(cost)
            transport = sinkhorn(cost, a, b, **options)
        return *transport, tape.gradient(transport.cost, cost)

    eager = run(cost)
    graph = tf.function(run)(cost)
    compiled = tf.function(run, jit_compile=True)(cost)
    for other in (graph, compiled):
        for got, expected in zip(other, eager, strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-5)


def test_plans_need_the_same_epsilon():
    cost, a, b = (tf.constant(x) for x in problem())
    transport = sinkhorn(cost, a, b, epsilon=1.0)
    assert transport_plan(cost, a, b, transport, epsilon=1.0).shape == (6, 8)
    np.testing.assert_allclose(
        tf.reduce_sum(transport_plan(cost, a, b, transport, epsilon=1.0), axis=1), a, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "`epsilon` must be above 0. Received: 0.0"),
        ({"epsilon": float("nan")}, "`epsilon` must be above 0. Received: nan"),
        ({"relaxation": 0.0}, "`relaxation` must be None or above 0. Received: 0.0"),
        ({"relaxation": -1.0}, "`relaxation` must be None or above 0. Received: -1.0"),
        ({"num_iterations": 0}, "`num_iterations` must be at least 1. Received: 0"),
        ({"tolerance": 0.0}, "`tolerance` must be None or above 0. Received: 0.0"),
        ({"mode": "dense"}, "`mode` must be one of .*'stabilised'.* Received: 'dense'"),
    ],
)
def test_an_option_out_of_range_is_named(changes, message):
    cost, a, b = (tf.constant(x) for x in problem())
    with pytest.raises(ValueError, match=message):
        sinkhorn(cost, a, b, **changes)
    with pytest.raises(ValueError, match=message):
        cosine_transport(cost, cost, a, a, **changes)


@pytest.mark.parametrize(
    ("cost", "a", "b"),
    [
        ((6, 8), (8,), (6,)),
        ((6, 8), (6,), (1,)),
        ((6, 8), (6, 1), (8,)),
        ((6,), (6,), (6,)),
        ((2, 6, 8), (6,), (8,)),
        ((2, 6, 8), (2, 6), (1, 8)),
        ((1, 2, 6, 8), (1, 2, 6), (1, 2, 8)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(cost, a, b):
    with pytest.raises(ValueError, match=r"must have shape \[n, m\] or .*Received: ") as error:
        sinkhorn(tf.zeros(cost), tf.ones(a), tf.ones(b))
    for shape in (cost, a, b):
        assert str(tf.TensorShape(shape)) in str(error.value)
    if len(cost) < 4:
        transport = sinkhorn(tf.zeros((2, 3)), tf.ones(2) / 2, tf.ones(3) / 3)
        with pytest.raises(ValueError, match="Received: "):
            transport_plan(tf.zeros(cost), tf.ones(a), tf.ones(b), transport)
