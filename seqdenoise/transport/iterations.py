"""Sinkhorn's iterations: in the kernel domain, stabilised by absorption, and in the log domain."""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from seqdenoise.numerics import Tensor

# Costs that span this many epsilons leave their kernel and both scalings inside the dtype's range.
KERNEL_RANGE = {tf.float32: 60.0, tf.float64: 480.0}
# Iterations between two absorptions, and how far a scaling may move in between, as a logarithm:
# two scalings and a kernel entry of up to the number of rows stay far below float32's e^88 (e^709).
_BLOCK = 10
_MAX_LOG_SCALING = {dtype: limit / 2 for dtype, limit in KERNEL_RANGE.items()}
# The first epsilon is the largest cost over this. From there, halving each time, scalings that move
# by e^30 bring potentials as far as that cost.
_DESCENT_FROM = 60.0
# What a scaling is the inverse of stays above this, times a mass above 1, and below its inverse: so
# scalings and their products with masses are finite.
_TINY = {tf.float32: 1e-36, tf.float64: 1e-306}
# The smallest epsilon relative to the largest cost: a potential of that size, divided by epsilon,
# is right to 2^-8 then, in both dtypes. Far below, rounding alone would decide the plan.
_RESOLUTION = {tf.float32: 2.0**-16, tf.float64: 2.0**-45}


class Problem(NamedTuple):
    """Transport problems of one shape, free of padding's contents.

    Attributes:
        cost: `[..., n, m]`, finite.
        row_mass: `[..., n]`, at least 0; the schemes below want a total like the columns'.
        column_mass: `[..., m]`, at least 0.
        epsilon: Strength of the entropic regularisation.
        relaxation: Strength of the marginals' penalty; None where they are constraints.
    """

    cost: Tensor
    row_mass: Tensor
    column_mass: Tensor
    epsilon: float
    relaxation: float | None

    @property
    def rho(self) -> float:
        """The relaxation, infinite for hard marginals."""
        return math.inf if self.relaxation is None else self.relaxation

    @property
    def largest_cost(self) -> Tensor:
        """`[..., 1]`, the largest absolute value of each problem's costs."""
        return tf.reduce_max(tf.abs(self.cost), axis=(-2, -1))[..., tf.newaxis]

    @property
    def resolvable_epsilon(self) -> Tensor:
        """`[..., 1]`, epsilon raised to what the rounding of each problem's costs lets it be."""
        return tf.maximum(self.largest_cost * _RESOLUTION[self.cost.dtype], self.epsilon)


class Solution(NamedTuple):
    """Where the iterations ended.

    Attributes:
        row_potential: `[..., n]`.
        column_potential: `[..., m]`.
        num_iterations: int32 scalar.
    """

    row_potential: Tensor
    column_potential: Tensor
    num_iterations: Tensor


def is_in_kernel_range(problem: Problem) -> Tensor:
    """Bool scalar, whether the kernel mode is right for every problem."""
    cost = problem.cost
    # With 0, which is the cost of padding: neither a cost nor a difference of two is larger.
    span = tf.reduce_max(tf.nn.relu(cost), axis=(-2, -1)) + tf.reduce_max(
        tf.nn.relu(-cost), axis=(-2, -1)
    )
    # `not any above`: a NaN among the costs stays its own problem's affair.
    return ~tf.reduce_any(span > KERNEL_RANGE[cost.dtype] * problem.epsilon)


def marginal_error(problem: Problem, row_potential: Tensor, row_marginal: Tensor) -> Tensor:
    """L1 distance of the row marginal from what optimality asks, relative to the total mass.

    Optimality asks for `a` with hard marginals, and for `a exp(-f / relaxation)` with relaxed ones.
    The column marginal meets its own condition after every iteration. Where rows and columns have
    different totals, the total is their geometric mean.

    Args:
        problem: The problems.
        row_potential: `[..., n]`.
        row_marginal: `[..., n]`.

    Returns:
        `[...]`, at least 0.
    """
    a, b = problem.row_mass, problem.column_mass
    target = a * tf.exp(-row_potential / problem.rho)
    # Padding has a potential too, of any size.
    distance = tf.where(a > 0, tf.abs(row_marginal - target), tf.zeros_like(a))
    total = tf.sqrt(tf.reduce_sum(a, axis=-1)) * tf.sqrt(tf.reduce_sum(b, axis=-1))
    return tf.math.divide_no_nan(tf.reduce_sum(distance, axis=-1), total)


def kernel_iterations(problem: Problem, num_iterations: int, tolerance: float | None) -> Solution:
    """Iterates on scalings of `exp(-C / epsilon)`: two matrix-vector products an iteration.

    Right as long as `is_in_kernel_range`. Beyond, the potentials are finite but wrong, which the
    marginals of their plan show.
    """
    epsilon = problem.epsilon
    lowest = -KERNEL_RANGE[problem.cost.dtype] * epsilon
    kernel = tf.exp(-tf.maximum(problem.cost, lowest) / epsilon)
    u, v, count = kernel_scalings(kernel, problem, num_iterations, tolerance)
    return Solution(epsilon * tf.math.log(u), epsilon * tf.math.log(v), count)


def kernel_scalings(
    kernel: Tensor, problem: Problem, num_iterations: int, tolerance: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The scalings `u` and `v` of a kernel, with `P_ij = a_i u_i K_ij v_j b_j`.

    Args:
        kernel: `[..., n, m]`, `exp(-C / epsilon)`.
        problem: The problems, whose cost is not read.
        num_iterations: At most so many.
        tolerance: See `sinkhorn`.

    Returns:
        `u [..., n]`, `v [..., m]`, and the number of iterations.
    """
    a, b, epsilon = problem.row_mass, problem.column_mass, problem.epsilon
    tiny = _TINY[a.dtype]
    smallest = tiny * tf.maximum(tf.reduce_sum(a, axis=-1, keepdims=True), 1)

    def update(product: Tensor) -> Tensor:
        product = tf.clip_by_value(product, smallest, 1 / tiny)
        if problem.relaxation is None:
            return 1 / product
        return tf.pow(product, -_damping(problem, epsilon))

    def iterate(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        u = update(state[2])
        v = update(tf.linalg.matvec(kernel, a * u, transpose_a=True))
        return u, v, tf.linalg.matvec(kernel, b * v)

    def error(state: tuple[Tensor, ...]) -> Tensor:
        u, _, to_rows = state
        return marginal_error(problem, epsilon * tf.math.log(u), a * u * to_rows)

    start = (tf.ones_like(a), tf.ones_like(b), tf.linalg.matvec(kernel, b))
    (u, v, _), count = _loop(iterate, error, start, num_iterations, tolerance)
    return u, v, count


def stabilised_iterations(
    problem: Problem, num_iterations: int, tolerance: float | None
) -> Solution:
    """Iterates on scalings of `exp((f + g - C) / epsilon)`, absorbing them into `f` and `g`.

    Each problem's epsilon comes down by halves from a sixtieth of its largest cost, ten iterations
    a stage, so that the potentials are near before the kernel becomes sharp. Between two
    absorptions a scaling moves by at most `e^30` (float64: `e^240`): far from the solution that
    damps the update, at it nothing moves. `num_iterations` are those at the final epsilon, rounded
    up to whole blocks of ten.

    References:
        Schmitzer (2019), "Stabilized sparse scaling algorithms for entropy regularized transport
        problems", sections 3.1 and 3.2.
    """
    a, b, cost, rho = problem.row_mass, problem.column_mass, problem.cost, problem.rho
    final, limit = problem.resolvable_epsilon, _MAX_LOG_SCALING[cost.dtype]
    real = (a > 0)[..., :, tf.newaxis] & (b > 0)[..., tf.newaxis, :]

    def block(f: Tensor, g: Tensor, epsilon: Tensor) -> tuple[Tensor, ...]:
        exponent = (f[..., :, tf.newaxis] + g[..., tf.newaxis, :] - cost) / epsilon[..., tf.newaxis]
        kernel = tf.where(real, tf.exp(exponent), tf.zeros_like(exponent))

        def update(potential: Tensor, product: Tensor, mass: Tensor) -> Tensor:
            log = -potential / (rho + epsilon) - _damping(problem, epsilon) * tf.math.log(product)
            log = tf.clip_by_value(log, -limit, limit)
            return tf.where(mass > 0, log, tf.zeros_like(log))

        def iterate(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            log_u = update(f, state[2], a)
            to_columns = tf.linalg.matvec(kernel, a * tf.exp(log_u), transpose_a=True)
            log_v = update(g, to_columns, b)
            return log_u, log_v, tf.linalg.matvec(kernel, b * tf.exp(log_v))

        start = (tf.zeros_like(a), tf.zeros_like(b), tf.linalg.matvec(kernel, b))
        (log_u, log_v, to_rows), _ = _loop(iterate, None, start, _BLOCK, None)
        row_marginal = a * tf.exp(log_u) * to_rows
        return f + epsilon * log_u, g + epsilon * log_v, row_marginal, epsilon

    def iterate(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return block(state[0], state[1], tf.maximum(state[3] / 2, final))

    def error(state: tuple[Tensor, ...]) -> Tensor:
        f, _, row_marginal, epsilon = state
        at_final = marginal_error(problem, f, row_marginal)
        is_above = tf.squeeze(epsilon > final, axis=-1)
        return tf.where(is_above, tf.ones_like(at_final) * math.inf, at_final)

    coarse = tf.maximum(problem.largest_cost / _DESCENT_FROM, final)
    halvings = tf.math.ceil(tf.math.log(coarse / final) / math.log(2.0))
    # NaN has no integer: one such problem would end the iterations of all.
    halvings = tf.where(tf.math.is_finite(halvings), halvings, tf.zeros_like(halvings))
    stages = tf.cast(tf.reduce_max(halvings), tf.int32)
    start = (tf.zeros_like(a), tf.zeros_like(b), tf.zeros_like(a), 2 * coarse)
    blocks = stages + max(-(-num_iterations // _BLOCK), 1)
    (f, g, *_), count = _loop(iterate, error, start, blocks, tolerance)
    return Solution(f, g, count * _BLOCK)


def log_iterations(problem: Problem, num_iterations: int, tolerance: float | None) -> Solution:
    """Iterates on the potentials with log-sum-exps: right at any epsilon, but slow."""
    cost, epsilon = problem.cost, problem.resolvable_epsilon
    strength = _damping(problem, epsilon) * epsilon
    log_a, log_b = (tf.math.log(mass) for mass in (problem.row_mass, problem.column_mass))

    def to_rows(g: Tensor) -> Tensor:
        scaled = (g[..., tf.newaxis, :] - cost) / epsilon[..., tf.newaxis]
        return tf.reduce_logsumexp(log_b[..., tf.newaxis, :] + scaled, axis=-1)

    def to_columns(f: Tensor) -> Tensor:
        scaled = (f[..., :, tf.newaxis] - cost) / epsilon[..., tf.newaxis]
        return tf.reduce_logsumexp(log_a[..., :, tf.newaxis] + scaled, axis=-2)

    def iterate(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        f = -strength * state[2]
        g = -strength * to_columns(f)
        return f, g, to_rows(g)

    def error(state: tuple[Tensor, ...]) -> Tensor:
        f, _, log_rows = state
        return marginal_error(problem, f, problem.row_mass * tf.exp(f / epsilon + log_rows))

    g = tf.zeros_like(problem.column_mass)
    start = (tf.zeros_like(problem.row_mass), g, to_rows(g))
    (f, g, _), count = _loop(iterate, error, start, num_iterations, tolerance)
    return Solution(f, g, count)


def _damping(problem: Problem, epsilon: float | Tensor) -> float | Tensor:
    """The exponent of a scaling update, 1 for hard marginals."""
    return 1 / (1 + epsilon / problem.rho)


def _loop(
    iterate: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]],
    error: Callable[[tuple[Tensor, ...]], Tensor] | None,
    start: tuple[Tensor, ...],
    num_iterations: int | Tensor,
    tolerance: float | None,
) -> tuple[tuple[Tensor, ...], Tensor]:
    """At least one step, at most `num_iterations`; stops when all errors are below `tolerance`."""

    def goes_on(count: Tensor, unfinished: Tensor, *state: Tensor) -> Tensor:
        return (count < num_iterations) & unfinished

    def step(count: Tensor, unfinished: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        state = iterate(state)
        if tolerance is not None and error is not None:
            # `not all below`, so that a NaN goes on and is seen by whoever reads the error.
            unfinished = ~tf.reduce_all(error(state) < tolerance)
        return count + 1, unfinished, *state

    count, _, *state = tf.while_loop(
        goes_on, step, (tf.constant(0), tf.constant(True), *start), parallel_iterations=1
    )
    return tuple(state), count
