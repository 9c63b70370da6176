"""Plans, costs and potentials against POT, loops in float64 and SciPy's assignment."""

import functools

import numpy as np
import ot
import pytest
import tensorflow as tf
import transport_oracles as oracles
from scipy.optimize import linear_sum_assignment
from transport_cases import EPSILONS, masses, problem, solve

TOLERANCE = {tf.float64: 1e-9, tf.float32: 1e-5}
# What stops the iterations: float32 knows a marginal no better.
PRECISION = {tf.float64: 1e-12, tf.float32: 3e-7}
RELAXATIONS = [(1e-3, 0.05), (1e-2, 0.3), (0.1, 0.3), (0.1, 3.0), (1.0, 0.05), (1.0, 3.0)]
# A cost of 1 is 1000 epsilons of 0.001, beyond the range of the kernel mode in either dtype; in
# float32, so it is of 0.01.
BALANCED = [
    (dtype, mode, epsilon)
    for dtype in TOLERANCE
    for mode in ("log", "stabilised", "kernel", "auto")
    for epsilon in EPSILONS
    if (dtype, mode) != (tf.float32, "log")
    if mode != "kernel" or epsilon >= (0.01 if dtype == tf.float64 else 0.1)
]


@functools.cache
def pot(epsilon):
    """POT's plan and its two potentials of `problem()`, in units of the cost."""
    cost, a, b = problem()
    plan, log = ot.bregman.sinkhorn_log(
        a, b, cost, epsilon, numItermax=100_000, stopThr=1e-12, log=True
    )
    # POT's potentials hold the masses: its plan is exp(u + v - C / epsilon).
    return plan, epsilon * (log["log_u"] - np.log(a)), epsilon * (log["log_v"] - np.log(b))


@functools.cache
def loops(epsilon, relaxation):
    return oracles.solve(*problem(), epsilon, relaxation)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_loops_equal_pot(epsilon):
    np.testing.assert_allclose(loops(epsilon, None)[0], pot(epsilon)[0], atol=1e-10)


@pytest.mark.parametrize(("epsilon", "relaxation"), RELAXATIONS)
def test_the_relaxed_loops_equal_pot(epsilon, relaxation):
    # Its `sinkhorn_stabilized` does not: at epsilon 0.001 and relaxation 0.3 its plan is off by
    # thousands. The plain one has float64's range to itself.
    cost, a, b = problem()
    plan = ot.unbalanced.sinkhorn_unbalanced(
        a, b, cost, epsilon, relaxation, reg_type="kl", numItermax=50_000, stopThr=1e-13
    )
    np.testing.assert_allclose(loops(epsilon, relaxation)[0], plan, atol=1e-10)


@pytest.mark.parametrize(("epsilon", "relaxation"), [(0.1, None), (0.1, 0.3), (1.0, 0.05)])
def test_the_plan_of_the_loops_is_the_minimum(epsilon, relaxation):
    cost, a, b = problem()
    plan = loops(epsilon, relaxation)[0]
    lowest = oracles.objective(plan, cost, a, b, epsilon, relaxation)
    rng = np.random.default_rng(0)
    for _ in range(20):
        step = rng.normal(size=plan.shape)
        if relaxation is None:  # along the constraints
            step -= step.mean(axis=0) + step.mean(axis=1, keepdims=True) - step.mean()
        step *= 0.01 * plan.min() / abs(step).max()
        assert oracles.objective(plan + step, cost, a, b, epsilon, relaxation) > lowest


@pytest.mark.parametrize(("dtype", "mode", "epsilon"), BALANCED)
def test_plan_cost_and_potentials_equal_pot(dtype, mode, epsilon):
    cost, a, b = problem()
    solved = solve(
        cost,
        a,
        b,
        dtype=dtype,
        mode=mode,
        epsilon=epsilon,
        num_iterations=20_000,
        # Rounding leaves this much in float32's exponents, which no iteration mends.
        tolerance=max(PRECISION[dtype], 1e-6 * PRECISION[dtype] / epsilon),
    )
    transport = solved.transport
    plan, f, g = pot(epsilon)
    near = {"atol": TOLERANCE[dtype], "rtol": 0}
    np.testing.assert_allclose(solved.plan, plan, **near)
    np.testing.assert_allclose(transport.cost, (plan * cost).sum(), **near)
    np.testing.assert_allclose(transport.row_marginal, a, **near)
    np.testing.assert_allclose(transport.column_marginal, b, **near)
    # Balanced potentials are unique up to a constant that one has more and the other less.
    shift = f[0] - transport.row_potential[0]
    np.testing.assert_allclose(transport.row_potential + shift, f, **near)
    np.testing.assert_allclose(transport.column_potential - shift, g, **near)


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [(tf.float64, "log"), (tf.float64, "stabilised"), (tf.float64, "auto"), (tf.float32, "auto")],
)
@pytest.mark.parametrize(("epsilon", "relaxation"), RELAXATIONS)
def test_a_relaxed_plan_equals_the_loops(dtype, mode, epsilon, relaxation):
    cost, a, b = problem()
    solved = solve(
        cost,
        a,
        b,
        dtype=dtype,
        mode=mode,
        epsilon=epsilon,
        relaxation=relaxation,
        num_iterations=3000,
        tolerance=PRECISION[dtype],
    )
    plan, f, g = loops(epsilon, relaxation)
    near = {"atol": TOLERANCE[dtype], "rtol": 0}
    np.testing.assert_allclose(solved.plan, plan, **near)
    np.testing.assert_allclose(solved.transport.cost, (plan * cost).sum(), **near)
    np.testing.assert_allclose(solved.transport.row_marginal, plan.sum(axis=1), **near)
    np.testing.assert_allclose(solved.transport.row_potential, f, **near)
    np.testing.assert_allclose(solved.transport.column_potential, g, **near)


@pytest.mark.parametrize("mode", ["log", "stabilised", "kernel"])
@pytest.mark.parametrize(("row_total", "column_total"), [(1.0, 50.0), (3e-4, 1e-4), (200.0, 200.0)])
def test_relaxed_totals_may_differ(mode, row_total, column_total):
    cost, a, b = problem()
    a, b = a * row_total, b * column_total
    plan, f, g = oracles.solve(cost, a, b, 0.1, 0.3)
    solved = solve(
        cost, a, b, mode=mode, epsilon=0.1, relaxation=0.3, num_iterations=1000, tolerance=1e-12
    )
    assert solved.transport.converged
    np.testing.assert_allclose(solved.plan, plan, rtol=1e-8)
    np.testing.assert_allclose(solved.transport.row_potential, f, atol=1e-9)
    np.testing.assert_allclose(solved.transport.column_potential, g, atol=1e-9)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_different_totals_stay_in_range_at_a_large_relaxation(dtype):
    # Each potential is off by relaxation / 2 times the log of the ratio: 92 epsilons, times 2.
    cost, a, b = problem()
    options = {"epsilon": 0.05, "relaxation": 2.0, "num_iterations": 2000}
    solved = solve(cost, a * 1e-2, b, dtype=dtype, mode="kernel", **options)
    expected = oracles.solve(cost, a * 1e-2, b, 0.05, 2.0)
    assert abs(expected[1]).max() > 80 * 0.05
    np.testing.assert_allclose(solved.plan, expected[0], atol=TOLERANCE[dtype])
    np.testing.assert_allclose(solved.transport.row_potential, expected[1], atol=1e-5)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (5, 1), (13, 4)])
@pytest.mark.parametrize("relaxation", [None, 0.5])
def test_any_number_of_rows_and_columns(n, m, relaxation):
    cost, a, b = problem(n, m, seed=1)
    plan = oracles.solve(cost, a, b, 0.1, relaxation)[0]
    options = {"epsilon": 0.1, "relaxation": relaxation, "num_iterations": 1000}
    solved = solve(cost, a, b, tolerance=1e-12, **options)
    np.testing.assert_allclose(solved.plan, plan, atol=1e-9)


def test_a_large_relaxation_is_none():
    cost, a, b = problem()
    relaxed = solve(cost, a, b, epsilon=0.1, relaxation=1e7, num_iterations=500)
    np.testing.assert_allclose(relaxed.plan, pot(0.1)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "epsilon"), [(tf.float64, 1e-4), (tf.float32, 1e-4), (tf.float32, 1e-3)]
)
def test_a_small_epsilon_finds_the_assignment(dtype, epsilon):
    n = 12
    cost, a, b = problem(n, n, even=True, seed=3)
    rows, columns = linear_sum_assignment(cost)
    exact = cost[rows, columns].mean()
    solved = solve(cost, a, b, dtype=dtype, epsilon=epsilon, num_iterations=5000)
    assert solved.transport.converged
    np.testing.assert_array_equal(solved.plan.argmax(axis=1), columns)
    # The plan of least cost is within `epsilon log n` of the one that also has the most entropy;
    # below it only by what a marginal is off.
    assert exact - 1e-4 < solved.transport.cost < exact + epsilon * np.log(n)


def test_a_negative_and_a_shifted_cost():
    # Adding a constant to all costs adds it to the transport cost and changes no balanced plan.
    cost, a, b = problem()
    options = {"epsilon": 0.02, "num_iterations": 2000, "tolerance": 1e-12}
    plain = solve(cost, a, b, **options)
    for shift in (-0.5, -20.0, 20.0):
        shifted = solve(cost + shift, a, b, **options)
        np.testing.assert_allclose(shifted.plan, plain.plan, atol=1e-10)
        np.testing.assert_allclose(shifted.transport.cost, plain.transport.cost + shift, atol=1e-9)


def test_scaling_costs_with_epsilon_changes_no_plan():
    cost, a, b = problem()
    options = {"num_iterations": 500, "mode": "auto", "dtype": tf.float32}
    plain = solve(cost, a, b, epsilon=0.1, **options)
    for scale in (1e-6, 1e6):
        scaled = solve(cost * scale, a, b, epsilon=0.1 * scale, **options)
        np.testing.assert_allclose(scaled.plan, plain.plan, atol=1e-6)


def test_masses_of_very_different_size():
    rng = np.random.default_rng(2)
    cost = rng.random((6, 8))
    a, b = masses(rng, 6) ** 12, masses(rng, 8) ** 12
    a, b = a / a.sum(), b / b.sum()
    assert min(a.min(), b.min()) < 1e-9
    plan = oracles.solve(cost, a, b, 0.05)[0]
    for mode in ("kernel", "stabilised", "log"):
        options = {"epsilon": 0.05, "mode": mode, "num_iterations": 3000, "tolerance": 1e-13}
        np.testing.assert_allclose(solve(cost, a, b, **options).plan, plan, rtol=1e-6, atol=1e-14)
