"""Sinkhorn's iterations: in the kernel domain, stabilised by absorption, and in the log domain."""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from seqdenoise.numerics import Tensor

# Iterations between two absorptions, and how far a scaling may move in between, as a logarithm:
# two scalings and a kernel entry of up to the number of rows stay far below float32's e^88.
_BLOCK = 10
_MAX_LOG_SCALING = 30.0
# A cost that spans this many epsilons leaves its kernel and both scalings inside the dtype's range.
KERNEL_RANGE = {tf.float32: 60.0, tf.float64: 480.0}


class Problem(NamedTuple):
    """Transport problems of one shape, free of padding's contents.

    Attributes:
        cost: `[..., n, m]`, finite.
        row_mass: `[..., n]`, at least 0, not all 0.
        column_mass: `[..., m]`, at least 0, not all 0.
        epsilon: Strength of the entropic regularisation.
        relaxation: Strength of the marginals' penalty; None where they are constraints.
    """

    cost: Tensor
    row_mass: Tensor
    column_mass: Tensor
    epsilon: float
    relaxation: float | None

    @property
    def damping(self) -> float:
        """The exponent of a scaling update, 1 for hard marginals."""
        if self.relaxation is None:
            return 1.0
        return self.relaxation / (self.relaxation + self.epsilon)


class Solution(NamedTuple):
    """Where the iterations ended.

    Attributes:
        row_potential: `[..., n]`.
        column_potential: `[..., m]`.
        row_marginal: `[..., n]`, mass that the plan takes from each row.
        column_marginal: `[..., m]`, mass that the plan brings to each column.
        num_iterations: int32 scalar.
    """

    row_potential: Tensor
    column_potential: Tensor
    row_marginal: Tensor
    column_marginal: Tensor
    num_iterations: Tensor


def marginal_error(problem: Problem, row_potential: Tensor, row_marginal: Tensor) -> Tensor:
    """L1 distance of the row marginal from what optimality asks, relative to the total mass.

    Optimality asks for `a` with hard marginals, and for `a exp(-f / relaxation)` with relaxed ones.
    The column marginal meets its own condition after every iteration.

    Args:
        problem: The problems.
        row_potential: `[..., n]`.
        row_marginal: `[..., n]`.

    Returns:
        `[...]`, at least 0.
    """
    target = problem.row_mass
    if problem.relaxation is not None:
        target = target * tf.exp(-row_potential / problem.relaxation)
    distance = tf.reduce_sum(tf.abs(row_marginal - target), axis=-1)
    return distance / tf.reduce_sum(problem.row_mass, axis=-1)


def kernel_iterations(problem: Problem, num_iterations: int, tolerance: float | None) -> Solution:
    """Iterates on scalings of `exp(-C / epsilon)`: two matrix-vector products an iteration.

    Right as long as no cost exceeds `KERNEL_RANGE` times epsilon; silently wrong beyond.
    """
    a, b, epsilon = problem.row_mass, problem.column_mass, problem.epsilon
    kernel = tf.exp(-problem.cost / epsilon)

    def update(product: Tensor) -> Tensor:
        if problem.relaxation is None:
            return 1 / product
        return tf.pow(product, -problem.damping)

    def iterate(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        u = update(state[2])
        to_columns = tf.linalg.matvec(kernel, a * u, transpose_a=True)
        v = update(to_columns)
        return u, v, tf.linalg.matvec(kernel, b * v), to_columns

    def error(state: tuple[Tensor, ...]) -> Tensor:
        u, _, to_rows, _ = state
        return marginal_error(problem, epsilon * tf.math.log(u), a * u * to_rows)

    start = (tf.ones_like(a), tf.ones_like(b), tf.linalg.matvec(kernel, b), tf.ones_like(b))
    (u, v, to_rows, to_columns), count = _loop(iterate, error, start, num_iterations, tolerance)
    return Solution(
        row_potential=epsilon * tf.math.log(u),
        column_potential=epsilon * tf.math.log(v),
        row_marginal=a * u * to_rows,
        column_marginal=b * v * to_columns,
        num_iterations=count,
    )


def stabilised_iterations(
    problem: Problem, num_iterations: int, tolerance: float | None
) -> Solution:
    """Iterates on scalings of `exp((f + g - C) / epsilon)`, absorbing them into `f` and `g`.

    Epsilon comes down by halves from where the kernel domain is safe, ten iterations a stage, so
    that the potentials are near before the kernel becomes sharp. Between two absorptions a scaling
    moves by at most `e^30`: far from the solution that damps the update, at it nothing moves.
    `num_iterations` are those at the final epsilon, rounded up to whole blocks of ten.

    References:
        Schmitzer (2019), "Stabilized sparse scaling algorithms for entropy regularized transport
        problems", sections 3.1 and 3.2.
    """
    a, b, cost, final = problem.row_mass, problem.column_mass, problem.cost, problem.epsilon
    real = (a > 0)[..., :, tf.newaxis] & (b > 0)[..., tf.newaxis, :]
    rho = math.inf if problem.relaxation is None else problem.relaxation

    def block(f: Tensor, g: Tensor, epsilon: Tensor) -> tuple[Tensor, ...]:
        exponent = (f[..., :, tf.newaxis] + g[..., tf.newaxis, :] - cost) / epsilon
        kernel = tf.where(real, tf.exp(exponent), tf.zeros_like(exponent))
        damping = 1 / (1 + epsilon / rho)

        def update(potential: Tensor, product: Tensor, mass: Tensor) -> Tensor:
            log = -potential / (rho + epsilon) - damping * tf.math.log(product)
            log = tf.clip_by_value(log, -_MAX_LOG_SCALING, _MAX_LOG_SCALING)
            return tf.where(mass > 0, log, tf.zeros_like(log))

        def iterate(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            log_u = update(f, state[2], a)
            to_columns = tf.linalg.matvec(kernel, a * tf.exp(log_u), transpose_a=True)
            log_v = update(g, to_columns, b)
            return log_u, log_v, tf.linalg.matvec(kernel, b * tf.exp(log_v)), to_columns

        start = (tf.zeros_like(a), tf.zeros_like(b), tf.linalg.matvec(kernel, b), tf.zeros_like(b))
        (log_u, log_v, to_rows, to_columns), _ = _loop(iterate, None, start, _BLOCK, None)
        return (
            f + epsilon * log_u,
            g + epsilon * log_v,
            a * tf.exp(log_u) * to_rows,
            b * tf.exp(log_v) * to_columns,
            epsilon,
        )

    def iterate(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return block(state[0], state[1], tf.maximum(state[4] / 2, final))

    def error(state: tuple[Tensor, ...]) -> Tensor:
        f, _, row_marginal, _, epsilon = state
        at_final = marginal_error(problem, f, row_marginal)
        return tf.where(epsilon > final, tf.ones_like(at_final) * math.inf, at_final)

    largest = tf.reduce_max(tf.abs(cost))
    coarse = tf.maximum(largest / KERNEL_RANGE[cost.dtype], tf.constant(final, cost.dtype))
    stages = tf.cast(tf.math.ceil(tf.math.log(coarse / final) / math.log(2.0)), tf.int32)
    start = (tf.zeros_like(a), tf.zeros_like(b), tf.zeros_like(a), tf.zeros_like(b), 2 * coarse)
    state, blocks = _loop(
        iterate, error, start, stages + max(-(-num_iterations // _BLOCK), 1), tolerance
    )
    f, g, row_marginal, column_marginal, _ = state
    return Solution(f, g, row_marginal, column_marginal, blocks * _BLOCK)


def log_iterations(problem: Problem, num_iterations: int, tolerance: float | None) -> Solution:
    """Iterates on the potentials with log-sum-exps: right at any epsilon, but slow."""
    cost, epsilon, damping = problem.cost, problem.epsilon, problem.damping
    log_a, log_b = (tf.math.log(mass) for mass in (problem.row_mass, problem.column_mass))

    def to_rows(g: Tensor) -> Tensor:
        return tf.reduce_logsumexp(
            log_b[..., tf.newaxis, :] + (g[..., tf.newaxis, :] - cost) / epsilon, axis=-1
        )

    def to_columns(f: Tensor) -> Tensor:
        return tf.reduce_logsumexp(
            log_a[..., :, tf.newaxis] + (f[..., :, tf.newaxis] - cost) / epsilon, axis=-2
        )

    def iterate(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        f = -damping * epsilon * state[2]
        log_columns = to_columns(f)
        g = -damping * epsilon * log_columns
        return f, g, to_rows(g), log_columns

    def row_marginal(state: tuple[Tensor, ...]) -> Tensor:
        return problem.row_mass * tf.exp(state[0] / epsilon + state[2])

    def error(state: tuple[Tensor, ...]) -> Tensor:
        return marginal_error(problem, state[0], row_marginal(state))

    g = tf.zeros_like(problem.column_mass)
    start = (tf.zeros_like(problem.row_mass), g, to_rows(g), g)
    state, count = _loop(iterate, error, start, num_iterations, tolerance)
    f, g, _, log_columns = state
    column_marginal = problem.column_mass * tf.exp(g / epsilon + log_columns)
    return Solution(f, g, row_marginal(state), column_marginal, count)


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
