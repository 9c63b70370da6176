"""Entropic optimal transport between clouds of vectors, at the cost `1 - cosine`."""

from collections.abc import Callable

import tensorflow as tf

from seqdenoise.numerics import Tensor, at_least_float32, l2_normalize
from seqdenoise.transport.iterations import KERNEL_RANGE, Problem
from seqdenoise.transport.sinkhorn import (
    Mode,
    Transport,
    as_masses,
    check_options,
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
    if mode == "auto":
        is_safe = KERNEL_RANGE[x.dtype] * epsilon >= _LARGEST_COST
        mode = "kernel" if is_safe else "stabilised"

    @tf.custom_gradient
    def solve(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, ...], Callable[..., Tensor]]:
        cost = 1 - tf.matmul(x, y, transpose_b=True)
        problem = Problem(cost, row_mass, column_mass, epsilon, relaxation)
        transport, plan = solve_problem(problem, num_iterations, tolerance, mode)
        from_x = tf.matmul(plan, y)  # [..., n, d]
        from_y = tf.matmul(plan, x, transpose_a=True)  # [..., m, d]

        def gradient(upstream: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
            upstream = upstream[..., tf.newaxis, tf.newaxis]
            return -upstream * from_x, -upstream * from_y

        return tuple(transport), gradient

    return without_gradients(solve(x, y))
