"""Entropic optimal transport between weighted points, given their costs."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import tensorflow as tf

from seqdenoise.numerics import Tensor, at_least_float32
from seqdenoise.transport.iterations import (
    Problem,
    Solution,
    is_in_kernel_range,
    kernel_iterations,
    log_iterations,
    marginal_error,
    stabilised_iterations,
)

Mode = Literal["auto", "kernel", "stabilised", "log"]

# Without a tolerance, what an error must be below to count as converged.
_CONVERGED = 1e-3
# Keeps a plan finite whatever its potentials. A right plan needs more only where both masses that
# an entry joins are below the exponential of minus this.
_MAX_EXPONENT = {tf.float32: 80.0, tf.float64: 700.0}
_SCHEMES: dict[str, Callable[[Problem, int, float | None], Solution]] = {
    "kernel": kernel_iterations,
    "stabilised": stabilised_iterations,
    "log": log_iterations,
}


class Transport(NamedTuple):
    """Solved transport problems.

    Attributes:
        cost: float `[...]`, `<P, C>`. Its gradient holds the plan `P` constant.
        row_marginal: float `[..., n]`, mass that the plan takes from each row, `P 1`.
        column_marginal: float `[..., m]`, mass that the plan brings to each column, `P^T 1`.
        row_potential: float `[..., n]`, in units of the cost.
        column_potential: float `[..., m]`, in units of the cost.
        marginal_error: float `[...]`, L1 distance of a marginal from what optimality asks, `a` or,
            relaxed, `a exp(-f / rho)`, relative to the total mass: of the rows or of the columns,
            whichever is larger.
        converged: bool `[...]`, whether that error is below the tolerance (0.001 without one). True
            for a problem without mass, whose plan is zero.
        num_iterations: int32 scalar, those of a descent in epsilon included.
    """

    cost: Tensor
    row_marginal: Tensor
    column_marginal: Tensor
    row_potential: Tensor
    column_potential: Tensor
    marginal_error: Tensor
    converged: Tensor
    num_iterations: Tensor


def sinkhorn(
    cost: Tensor,
    row_mass: Tensor,
    column_mass: Tensor,
    *,
    epsilon: float = 0.1,
    relaxation: float | None = None,
    num_iterations: int = 50,
    tolerance: float | None = None,
    mode: Mode = "auto",
) -> Transport:
    r"""Cost, marginals and potentials of the entropic transport plan of each problem.

    $$ P = \arg\min_{P \ge 0} \langle P, C \rangle + \epsilon \, KL(P \,|\, a b^T)
    + \rho \, KL(P 1 \,|\, a) + \rho \, KL(P^T 1 \,|\, b), \quad
    P_{ij} = a_i b_j e^{(f_i + g_j - C_{ij}) / \epsilon} $$

    with `KL(p|q) = sum p log(p/q) - p + q`. Without `relaxation` the marginals are constraints.
    Relaxed, a row that is far from every column sends less than its mass. Problems are solved side
    by side, each with its own masses. Rows and columns without mass are padding: their costs may be
    anything, NaN included. A problem without any mass on one side has a zero plan and cost 0.

    The gradient of `cost` with respect to the costs is `P` times the upstream gradient, which is
    that of the regularised minimum itself (envelope theorem); nothing is differentiated through the
    iterations, and no other result has a gradient.

    Args:
        cost: float `[n, m]` or `[B, n, m]`. Half precision is computed in float32.
        row_mass: float `[n]` or `[B, n]`, at least 0: `a`.
        column_mass: float `[m]` or `[B, m]`, at least 0: `b`. Without `relaxation` its total must
            equal that of `row_mass`, or there is no solution and the problem does not converge.
        epsilon: Above 0, in units of the cost. Smaller is nearer to unregularised transport, and
            slower to converge. What is below 2^-16 (float64: 2^-45) of a problem's largest cost is
            raised to that: rounding alone would decide the plan.
        relaxation: Above 0, in units of the cost: `rho`. None for hard marginals.
        num_iterations: At least 1; updates of both potentials.
        tolerance: Above 0: stop as soon as every problem's `marginal_error` is below it, at the
            latest after `num_iterations`. None for exactly `num_iterations`.
        mode: `"kernel"`: scalings of `exp(-C / epsilon)`, fastest, and wrong where 0 and the costs
            span more than 60 epsilon (float64: 480). `"stabilised"`: scalings absorbed into the
            potentials every ten iterations, after a descent in epsilon of ten iterations a halving
            that `num_iterations` does not count. `"log"`: log-sum-exps, the slow reference.
            `"auto"`: kernel where it is safe, else stabilised.

    Returns:
        The solved problems, in the dtype of `cost`.

    Raises:
        ValueError: A shape or an option does not fit.

    References:
        Cuturi (2013), "Sinkhorn Distances", algorithm 1; Chizat et al. (2018), "Scaling algorithms
        for unbalanced optimal transport problems", section 3 and table 1 (KL): scalings to the
        power `rho / (rho + epsilon)`.

    Example:
        >>> cost = tf.constant([[0.0, 1.0], [1.0, 0.0]])
        >>> half = tf.constant([0.5, 0.5])
        >>> round(float(sinkhorn(cost, half, half, epsilon=0.1).cost), 4)
        0.0
        >>> far = tf.constant([[0.0], [1.5]])
        >>> solved = sinkhorn(far, half, tf.constant([1.0]), epsilon=0.05, relaxation=0.3)
        >>> (solved.row_marginal / half).numpy().round(1).tolist()
        [1.399999976158142, 0.0]
    """
    cost = at_least_float32(cost)
    check_options(epsilon, relaxation, num_iterations, tolerance, mode)
    row_mass, column_mass = as_masses(cost.shape, cost.dtype, row_mass, column_mass)
    has_mass = (row_mass > 0)[..., :, tf.newaxis] & (column_mass > 0)[..., tf.newaxis, :]
    # Before any arithmetic: padding's NaN would otherwise reach the gradient.
    cost = tf.where(has_mass, cost, tf.zeros_like(cost))

    @tf.custom_gradient
    def solve(cost: Tensor) -> tuple[tuple[Tensor, ...], Callable[..., Tensor]]:
        problem = Problem(cost, row_mass, column_mass, epsilon, relaxation)
        transport, plan = solve_problem(problem, num_iterations, tolerance, mode)

        def gradient(upstream: Tensor, *_: Tensor) -> Tensor:
            return upstream[..., tf.newaxis, tf.newaxis] * plan

        return tuple(transport), gradient

    return without_gradients(solve(cost))


def transport_plan(
    cost: Tensor,
    row_mass: Tensor,
    column_mass: Tensor,
    transport: Transport,
    *,
    epsilon: float = 0.1,
) -> Tensor:
    """The plan of solved problems.

    Args:
        cost: float `[n, m]` or `[B, n, m]`, as solved.
        row_mass: float `[n]` or `[B, n]`, as solved.
        column_mass: float `[m]` or `[B, m]`, as solved.
        transport: What `sinkhorn` returned.
        epsilon: As solved.

    Returns:
        `P`, float `[n, m]` or `[B, n, m]`, 0 in rows and columns without mass.
    """
    cost = at_least_float32(cost)
    row_mass, column_mass = as_masses(cost.shape, cost.dtype, row_mass, column_mass)
    has_mass = (row_mass > 0)[..., :, tf.newaxis] & (column_mass > 0)[..., tf.newaxis, :]
    cost = tf.where(has_mass, cost, tf.zeros_like(cost))
    problem = Problem(cost, row_mass, column_mass, epsilon, None)
    return _plan(problem, transport.row_potential, transport.column_potential)


def check_options(
    epsilon: float,
    relaxation: float | None,
    num_iterations: int,
    tolerance: float | None,
    mode: str,
) -> None:
    """Raises a `ValueError` that names the option which is out of range."""
    for name, value, holds, expected in (
        ("epsilon", epsilon, epsilon > 0, "above 0"),
        ("relaxation", relaxation, relaxation is None or relaxation > 0, "None or above 0"),
        ("num_iterations", num_iterations, num_iterations >= 1, "at least 1"),
        ("tolerance", tolerance, tolerance is None or tolerance > 0, "None or above 0"),
        ("mode", repr(mode), mode in ("auto", *_SCHEMES), f"one of {['auto', *_SCHEMES]}"),
    ):
        if not holds:
            raise ValueError(f"`{name}` must be {expected}. Received: {value}")


def as_masses(
    shape: tf.TensorShape, dtype: tf.DType, row_mass: Tensor, column_mass: Tensor
) -> tuple[Tensor, Tensor]:
    """Masses in the dtype of the costs, constant in every gradient.

    Raises:
        ValueError: Their shapes do not fit the costs' `shape`, `[n, m]` or `[B, n, m]`.
    """
    row_mass, column_mass = (
        tf.stop_gradient(tf.cast(mass, dtype)) for mass in (row_mass, column_mass)
    )
    if (
        shape.rank not in (2, 3)
        or not row_mass.shape.is_compatible_with(shape[:-1])
        or not column_mass.shape.is_compatible_with(shape[:-2] + shape[-1:])
    ):
        raise ValueError(
            "Costs must have shape [n, m] or [B, n, m], `row_mass` [n] or [B, n], `column_mass` "
            f"[m] or [B, m]. Received: {shape}, {row_mass.shape}, {column_mass.shape}"
        )
    return row_mass, column_mass


def solve_problem(
    problem: Problem, num_iterations: int, tolerance: float | None, mode: str
) -> tuple[Transport, Tensor]:
    """Solves problems that may be without mass, and whose totals may differ.

    Returns:
        The result, no part of it with a gradient; the plan `[..., n, m]`.
    """
    even, row_shift, column_shift = even_masses(problem, problem.resolvable_epsilon)

    def solve(mode: str) -> Solution:
        return _SCHEMES[mode](even, num_iterations, tolerance)

    if mode == "auto":
        is_safe = is_in_kernel_range(problem)
        f, g, count = tf.cond(is_safe, lambda: solve("kernel"), lambda: solve("stabilised"))
    else:
        f, g, count = solve(mode)
    f, g = of_mass(problem, f + row_shift, g + column_shift)
    plan = _plan(problem, f, g)
    transport = finish(
        problem,
        Solution(f, g, count),
        cost=tf.reduce_sum(plan * problem.cost, axis=(-2, -1)),
        row_marginal=tf.reduce_sum(plan, axis=-1),
        column_marginal=tf.reduce_sum(plan, axis=-2),
        tolerance=tolerance,
    )
    return transport, plan


def is_solvable(problem: Problem) -> Tensor:
    """Which problems have mass on both sides, bool `[..., 1]`."""
    a, b = problem.row_mass, problem.column_mass
    rows = tf.reduce_any(a > 0, axis=-1, keepdims=True)
    return rows & tf.reduce_any(b > 0, axis=-1, keepdims=True)


def of_mass(problem: Problem, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Values of rows `[..., n]` and columns `[..., m]`, 0 where there is no mass to move."""
    solvable = is_solvable(problem)
    return (
        tf.where(solvable & (problem.row_mass > 0), rows, tf.zeros_like(rows)),
        tf.where(solvable & (problem.column_mass > 0), columns, tf.zeros_like(columns)),
    )


def finish(
    problem: Problem,
    solution: Solution,
    *,
    cost: Tensor,
    row_marginal: Tensor,
    column_marginal: Tensor,
    tolerance: float | None,
) -> Transport:
    """The result, with the error of the very plan that cost, marginals and gradient are of."""
    f, g, count = solution
    transposed = problem._replace(row_mass=problem.column_mass, column_mass=problem.row_mass)
    error = tf.maximum(
        marginal_error(problem, f, row_marginal), marginal_error(transposed, g, column_marginal)
    )
    error = tf.where(tf.squeeze(is_solvable(problem), axis=-1), error, tf.zeros_like(error))
    return Transport(
        cost=cost,
        row_marginal=row_marginal,
        column_marginal=column_marginal,
        row_potential=f,
        column_potential=g,
        marginal_error=error,
        converged=error < (_CONVERGED if tolerance is None else tolerance),
        num_iterations=count,
    )


def without_gradients(results: tuple[Tensor, ...]) -> Transport:
    """The results, of which only the cost lets a gradient through."""
    cost, *others = results
    return Transport(cost, *(tf.stop_gradient(x) for x in others))


def even_masses(problem: Problem, epsilon: float | Tensor) -> tuple[Problem, Tensor, Tensor]:
    """The same problem with masses of one total; what to add to its potentials, each `[..., 1]`.

    A problem without mass would divide by 0: it is given some, and its solution has to be dropped.
    With different totals the scalings would drift apart, out of any range. Relaxed, a problem does
    not change when one mass is multiplied by what the other is divided by: `a b^T` is the same, and
    the two penalties differ by amounts that cancel. With hard marginals there is no solution: rows
    are then brought to the columns' total.
    """
    solvable = is_solvable(problem)
    a, b = (
        tf.where(solvable, mass, tf.ones_like(mass))
        for mass in (problem.row_mass, problem.column_mass)
    )
    row_total = tf.reduce_sum(a, axis=-1, keepdims=True)
    column_total = tf.reduce_sum(b, axis=-1, keepdims=True)
    if problem.relaxation is None:
        even = problem._replace(row_mass=a / row_total, column_mass=b / column_total)
        shift = -epsilon * tf.math.log(row_total)
        return even, shift, tf.zeros_like(shift)
    ratio = tf.sqrt(row_total) / tf.sqrt(column_total)
    even = problem._replace(row_mass=a / ratio, column_mass=b * ratio)
    shift = problem.relaxation * tf.math.log(ratio)
    return even, shift, -shift


def _plan(problem: Problem, f: Tensor, g: Tensor) -> Tensor:
    exponent = f[..., :, tf.newaxis] + g[..., tf.newaxis, :] - problem.cost
    exponent = exponent / problem.resolvable_epsilon[..., tf.newaxis]
    exponent = tf.minimum(exponent, _MAX_EXPONENT[exponent.dtype])
    # Not the product of the masses first: of two small ones it would be 0.
    return (problem.row_mass[..., :, tf.newaxis] * tf.exp(exponent)) * problem.column_mass[
        ..., tf.newaxis, :
    ]
