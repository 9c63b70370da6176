"""Entropic optimal transport between clouds of vectors, at the cost `1 - cosine`."""

from collections.abc import Callable

import tensorflow as tf

from seqdenoise.numerics import Tensor, at_least_float32, l2_normalize
from seqdenoise.transport.iterations import KERNEL_RANGE, Problem, Solution, kernel_scalings
from seqdenoise.transport.sinkhorn import (
    Mode,
    Transport,
    as_masses,
    check_options,
    even_masses,
    finish,
    of_mass,
    solve_problem,
    without_gradients,
)

_LARGEST_COST = 2.0


def cosine_transport(
    x: Tensor,
    y: Tensor,
    row_mass: Tensor,
    column_mass: Tensor,
    *,
    epsilon: float = 0.1,
    relaxation: float | None = None,
    num_iterations: int = 50,
    tolerance: float | None = None,
    mode: Mode = "auto",
) -> Transport:
    r"""Transport between two clouds of vectors, at the cost `C_ij = 1 - cos(x_i, y_j)`.

    The same as `sinkhorn` of that cost. The gradient, which holds the plan constant, is

    $$ \frac{\partial \langle P, C \rangle}{\partial \hat x_i} = -\sum_j P_{ij} \hat y_j $$

    with `\hat x` the unit vectors, and is all that is kept for the backward pass: no `[n, m]`
    matrix outlives the forward one.

    Args:
        x: float `[n, d]` or `[B, n, d]`, of any length. A zero vector has cosine 0 to everything.
            Vectors without mass may be anything, NaN included.
        y: float `[m, d]` or `[B, m, d]`.
        row_mass: float `[n]` or `[B, n]`, at least 0; 0 for padding.
        column_mass: float `[m]` or `[B, m]`, at least 0; 0 for padding.
        epsilon: See `sinkhorn`. With `"auto"` the kernel mode from 0.034 on (float64: 0.0042).
        relaxation: See `sinkhorn`.
        num_iterations: See `sinkhorn`.
        tolerance: See `sinkhorn`.
        mode: See `sinkhorn`.

    Returns:
        The solved problems, float32 or float64.

    Raises:
        ValueError: A shape or an option does not fit.

    Example:
        >>> x = tf.constant([[1.0, 0.0], [0.0, 2.0]])
        >>> half = tf.constant([0.5, 0.5])
        >>> round(float(cosine_transport(x, -x, half, half, epsilon=0.1).cost), 4)
        1.0
    """
    x, y = at_least_float32(x), at_least_float32(y)
    check_options(epsilon, relaxation, num_iterations, tolerance, mode)
    if (
        x.shape.rank not in (2, 3)
        or not x.shape[:-2].is_compatible_with(y.shape[:-2])
        or (y.shape.rank != x.shape.rank or not x.shape[-1:].is_compatible_with(y.shape[-1:]))
    ):
        raise ValueError(
            "`x` and `y` must have shape [n, d] and [m, d], or [B, n, d] and [B, m, d]. "
            f"Received: {x.shape} and {y.shape}"
        )
    y = tf.cast(y, x.dtype)
    row_mass, column_mass = as_masses(x.shape[:-1] + y.shape[-2:-1], x.dtype, row_mass, column_mass)
    x, y = (
        l2_normalize(tf.where(mass[..., tf.newaxis] > 0, vectors, tf.zeros_like(vectors)))[0]
        for vectors, mass in ((x, row_mass), (y, column_mass))
    )
    is_in_range = KERNEL_RANGE[x.dtype] * epsilon >= _LARGEST_COST
    if mode == "auto":
        mode = "kernel" if is_in_range else "stabilised"

    @tf.custom_gradient
    def solve(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, ...], Callable[..., Tensor]]:
        problem = Problem(
            1 - tf.matmul(x, y, transpose_b=True), row_mass, column_mass, epsilon, relaxation
        )
        if mode == "kernel" and is_in_range:
            solved = _solve_by_kernel(x, y, problem, num_iterations, tolerance)
        else:
            solved = _solve_by_plan(x, y, problem, num_iterations, tolerance, mode)
        transport, from_x, from_y = solved

        def gradient(upstream: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
            upstream = upstream[..., tf.newaxis, tf.newaxis]
            return -upstream * from_x, -upstream * from_y

        return tuple(transport), gradient

    return without_gradients(solve(x, y))


def _solve_by_plan(
    x: Tensor,
    y: Tensor,
    problem: Problem,
    num_iterations: int,
    tolerance: float | None,
    mode: str,
) -> tuple[Transport, Tensor, Tensor]:
    """The result, `P y [..., n, d]` and `P^T x [..., m, d]`."""
    transport, plan = solve_problem(problem, num_iterations, tolerance, mode)
    return transport, tf.matmul(plan, y), tf.matmul(plan, x, transpose_a=True)


def _solve_by_kernel(
    x: Tensor, y: Tensor, problem: Problem, num_iterations: int, tolerance: float | None
) -> tuple[Transport, Tensor, Tensor]:
    """The same with the kernel as the only `[..., n, m]` array.

    The plan is its rows and columns scaled, and the cost of unit vectors follows from what the plan
    brings to each.
    """
    epsilon = problem.epsilon
    kernel = tf.exp(-problem.cost / epsilon)
    even, row_shift, column_shift = even_masses(problem, epsilon)
    u, v, count = kernel_scalings(kernel, even, num_iterations, tolerance)
    # Rows were brought to the columns' total; with hard marginals, back to the columns' own.
    masses = problem.column_mass if problem.relaxation is None else even.column_mass
    rows, columns = of_mass(problem, even.row_mass * u, masses * v)
    from_x = rows[..., tf.newaxis] * tf.matmul(kernel, columns[..., tf.newaxis] * y)
    # Transposed by hand: the product with a transposed kernel is several times slower.
    from_y = columns[..., tf.newaxis] * tf.linalg.matrix_transpose(
        tf.matmul(rows[..., tf.newaxis] * x, kernel, transpose_a=True)
    )
    row_marginal = rows * tf.linalg.matvec(kernel, columns)
    f, g = of_mass(
        problem, epsilon * tf.math.log(u) + row_shift, epsilon * tf.math.log(v) + column_shift
    )
    transport = finish(
        problem,
        Solution(f, g, count),
        cost=tf.reduce_sum(row_marginal, axis=-1) - tf.reduce_sum(x * from_x, axis=(-2, -1)),
        row_marginal=row_marginal,
        column_marginal=columns * tf.linalg.matvec(kernel, rows, transpose_a=True),
        tolerance=tolerance,
    )
    return transport, from_x, from_y
