"""Solvers of one transport problem, ours and others, each called as its own documentation advises.

Every contender does the same work: from two clouds of float32 vectors, so many Sinkhorn iterations
at the cost `1 - cosine`, then a value of each problem and the gradient of their sum with respect to
both clouds, holding the plan constant (the envelope theorem, which all of them use).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.contest import Contender, Results

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Problem:
    """Clouds to transport into each other, every vector of a cloud weighing the same.

    Attributes:
        x: float32 `[n, d]`, or `[B, n, d]` for B problems.
        y: float32 `[m, d]` or `[B, m, d]`.
        epsilon: Strength of the entropic regularisation.
        num_iterations: Sinkhorn iterations, of two passes over the costs each.
    """

    x: Array
    y: Array
    epsilon: float
    num_iterations: int

    @property
    def row_mass(self) -> Array:
        """float32 `[n]` or `[B, n]`."""
        return _uniform(self.x)

    @property
    def column_mass(self) -> Array:
        """float32 `[m]` or `[B, m]`."""
        return _uniform(self.y)


def _uniform(cloud: Array) -> Array:
    return np.full(cloud.shape[:-1], 1 / cloud.shape[-2], np.float32)


def make_problem(
    num_problems: int, num_rows: int, num_columns: int, dim: int, epsilon: float, iterations: int
) -> Problem:
    """The same draw of normal vectors in every process; one problem is not a batch of one."""
    rng = np.random.default_rng(0)
    batch = () if num_problems == 1 else (num_problems,)
    x = rng.standard_normal((*batch, num_rows, dim), np.float32)
    y = rng.standard_normal((*batch, num_columns, dim), np.float32)
    return Problem(x, y, epsilon, iterations)


@dataclass(frozen=True)
class Solver(Contender):
    """One way to solve a `Problem`.

    Attributes:
        is_regularised: Whether its value is the regularised minimum instead of the transport cost
            `<P, C>`. The gradient is the same.
        for_batches: Whether it is only for many problems at once.
    """

    is_regularised: bool = False
    for_batches: bool = False

    def takes(self, problem: Mapping[str, Any]) -> bool:
        """Whether there are many problems, or it takes one alone."""
        return problem["num_problems"] > 1 or not self.for_batches


def _seqdenoise(*, jit_compile: bool) -> Callable[[Problem], Callable[[], Results]]:
    def make(problem: Problem) -> Callable[[], Results]:
        import tensorflow as tf

        from seqdenoise.transport import cosine_transport

        x, y, a, b = _tensors(problem)

        @tf.function(jit_compile=jit_compile)
        def solve(x: Any, y: Any) -> Results:
            with tf.GradientTape() as tape:
                tape.watch((x, y))
                cost = cosine_transport(
                    x, y, a, b, epsilon=problem.epsilon, num_iterations=problem.num_iterations
                ).cost
            return (cost, *tape.gradient(cost, (x, y)))

        return lambda: solve(x, y)

    return make


def _tensors(problem: Problem) -> list[Any]:
    import tensorflow as tf

    parts = (problem.x, problem.y, problem.row_mass, problem.column_mass)
    return [tf.constant(part) for part in parts]


def _autodiff(problem: Problem) -> Callable[[], Results]:
    """What one writes without a custom gradient: the tape runs back through every iteration."""
    import tensorflow as tf

    x, y, a, b = _tensors(problem)
    epsilon = problem.epsilon

    @tf.function
    def solve(x: Any, y: Any) -> Results:
        with tf.GradientTape() as tape:
            tape.watch((x, y))
            cosine = tf.matmul(
                tf.math.l2_normalize(x, -1), tf.math.l2_normalize(y, -1), transpose_b=True
            )
            kernel = tf.exp((cosine - 1) / epsilon)
            u, v = tf.ones_like(a), tf.ones_like(b)
            for _ in tf.range(problem.num_iterations):
                u = 1 / tf.linalg.matvec(kernel, b * v)
                v = 1 / tf.linalg.matvec(kernel, a * u, transpose_a=True)
            dual = tf.reduce_sum(a * tf.math.log(u), -1) + tf.reduce_sum(b * tf.math.log(v), -1)
            value = epsilon * dual
        return (value, *tape.gradient(value, (x, y)))

    return lambda: solve(x, y)


def _load_pot(*, tensorflow: bool = False) -> Any:
    # POT loads every framework it finds, which costs memory and threads.
    for framework in ("TENSORFLOW", "PYTORCH", "JAX", "CUPY"):
        os.environ[f"POT_BACKEND_DISABLE_{framework}"] = "1"
    if tensorflow:
        del os.environ["POT_BACKEND_DISABLE_TENSORFLOW"]
    import ot

    return ot


def _pot_plans(ot: Any, problem: Problem, *, in_logs: bool) -> Callable[[Any, Any, Any], Any]:
    """POT's function from costs and masses of one problem to its plan."""
    solver = ot.bregman.sinkhorn_log if in_logs else ot.bregman.sinkhorn_knopp
    return lambda cost, a, b: solver(
        a, b, cost, problem.epsilon, numItermax=problem.num_iterations, stopThr=0, warn=False
    )


def _pot_batch_plans(ot: Any, problem: Problem, *, in_logs: bool) -> Callable[[Any, Any, Any], Any]:
    """The same for many problems at once, solved by `ot.batch`."""
    return lambda cost, a, b: (
        ot.batch.solve_batch(
            cost,
            problem.epsilon,
            a,
            b,
            max_iter=problem.num_iterations,
            tol=0,
            method="log_sinkhorn" if in_logs else "sinkhorn",
            grad="detach",
        ).plan
    )


def _normalized(cloud: Array) -> tuple[Array, Array]:
    lengths = np.linalg.norm(cloud, axis=-1, keepdims=True)
    return cloud / lengths, lengths


def _through_length(gradient: Array, unit: Array, length: Array) -> Array:
    along = np.sum(gradient * unit, axis=-1, keepdims=True)
    return (gradient - along * unit) / length


def _pot(*, in_logs: bool, at_once: bool = False) -> Callable[[Problem], Callable[[], Results]]:
    def make(problem: Problem) -> Callable[[], Results]:
        ot = _load_pot()
        a, b = problem.row_mass, problem.column_mass
        plans = (_pot_batch_plans if at_once else _pot_plans)(ot, problem, in_logs=in_logs)

        def solve() -> Results:
            (x, x_length), (y, y_length) = _normalized(problem.x), _normalized(problem.y)
            cost = 1 - x @ np.swapaxes(y, -1, -2)
            if x.ndim == 2 or at_once:
                plan = plans(cost, a, b)
            else:
                plan = np.stack([plans(*one) for one in zip(cost, a, b, strict=True)])
            value = np.sum(plan * cost, axis=(-2, -1))
            from_x, from_y = -plan @ y, -np.swapaxes(plan, -1, -2) @ x
            return (
                value,
                _through_length(from_x, x, x_length),
                _through_length(from_y, y, y_length),
            )

        return solve

    return make


def _pot_tensorflow(*, in_logs: bool) -> Callable[[Problem], Callable[[], Results]]:
    """POT on TensorFlow tensors: eager only, and only with NumPy's behaviour in the whole process.

    Many problems go to `ot.batch`: one by one, every operation of each would be a call.
    """

    def make(problem: Problem) -> Callable[[], Results]:
        import tensorflow as tf

        tf.experimental.numpy.experimental_enable_numpy_behavior()
        ot = _load_pot(tensorflow=True)
        x, y, a, b = _tensors(problem)
        form = _pot_plans if problem.x.ndim == 2 else _pot_batch_plans
        plans = form(ot, problem, in_logs=in_logs)

        def solve() -> Results:
            with tf.GradientTape() as tape:
                tape.watch((x, y))
                units = (tf.math.l2_normalize(cloud, -1) for cloud in (x, y))
                cost = 1 - tf.matmul(*units, transpose_b=True)
                with tape.stop_recording():
                    plan = tf.cast(plans(cost, a, b), cost.dtype)
                value = tf.reduce_sum(plan * cost, axis=(-2, -1))
            return (value, *tape.gradient(value, (x, y)))

        return solve

    return make


def _ott(*, in_logs: bool, from_matrix: bool) -> Callable[[Problem], Callable[[], Results]]:
    """OTT-JAX, compiled: on point clouds, or on a matrix of costs, which it then need not rebuild.

    As many least as most iterations make it run a fixed number; its error is computed once.
    """

    def make(problem: Problem) -> Callable[[], Results]:
        import jax
        import jax.numpy as jnp
        from ott.geometry import costs, geometry, pointcloud
        from ott.problems.linear import linear_problem
        from ott.solvers.linear import sinkhorn

        iterations = problem.num_iterations
        solver = sinkhorn.Sinkhorn(
            lse_mode=in_logs,
            min_iterations=iterations,
            max_iterations=iterations,
            inner_iterations=iterations,
        )

        def value(x: Any, y: Any) -> Any:
            points: Any
            if from_matrix:
                units = (z / jnp.linalg.norm(z, axis=-1, keepdims=True) for z in (x, y))
                matrix = 1 - jnp.matmul(next(units), next(units).T)
                points = geometry.Geometry(cost_matrix=matrix, epsilon=problem.epsilon)
            else:
                points = pointcloud.PointCloud(
                    x, y, cost_fn=costs.Cosine(), epsilon=problem.epsilon
                )
            return solver(linear_problem.LinearProblem(points)).reg_ot_cost

        solve = jax.value_and_grad(value, argnums=(0, 1))
        compiled = jax.jit(solve if problem.x.ndim == 2 else jax.vmap(solve))
        x, y = jnp.asarray(problem.x), jnp.asarray(problem.y)

        def call() -> Results:
            value, gradients = jax.block_until_ready(compiled(x, y))
            return (value, *gradients)

        return call

    return make


def _geomloss(problem: Problem) -> Callable[[], Results]:
    """GeomLoss's dense solver, whose iterations come down to epsilon from the largest cost.

    It has no number of iterations, only a ratio between two of them. That is chosen such that the
    first guess, the steps down and the last update make `num_iterations`: each is two passes.
    """
    import torch
    from geomloss import SamplesLoss

    torch.set_num_threads(os.cpu_count() or 1)
    blur, diameter = problem.epsilon**0.5, 2.0
    # Steps down: one at the diameter, one at the end, between them one for each started ratio.
    ratios = problem.num_iterations - 4
    loss = SamplesLoss(
        "sinkhorn",
        p=2,
        blur=blur,
        diameter=diameter,
        scaling=(blur / diameter) ** (1 / (ratios - 0.5)),
        cost=lambda x, y: 1 - torch.matmul(x, y.transpose(-1, -2)),
        debias=False,
        backend="tensorized",
    )
    x, y = (torch.tensor(cloud, requires_grad=True) for cloud in (problem.x, problem.y))
    a, b = torch.tensor(problem.row_mass), torch.tensor(problem.column_mass)

    def call() -> Results:
        units = (torch.nn.functional.normalize(cloud, dim=-1) for cloud in (x, y))
        value = loss(a, next(units), b, next(units))
        gradients = torch.autograd.grad(value.sum(), (x, y))
        return (value.detach(), *gradients)

    return call


def _ott_contender(form: str, *, in_logs: bool, from_matrix: bool) -> Solver:
    make = _ott(in_logs=in_logs, from_matrix=from_matrix)
    return Solver(f"OTT-JAX, {form}", make, ("ott-jax",), ("ott",), is_regularised=True)


CONTENDERS: Sequence[Solver] = (
    Solver("seqdenoise, XLA", _seqdenoise(jit_compile=True)),
    Solver("seqdenoise, tf.function", _seqdenoise(jit_compile=False)),
    Solver("TensorFlow, autodiff through the loop", _autodiff, is_regularised=True),
    Solver("POT NumPy", _pot(in_logs=False)),
    Solver("POT NumPy, log", _pot(in_logs=True)),
    Solver("POT NumPy, ot.batch", _pot(in_logs=False, at_once=True), for_batches=True),
    Solver("POT NumPy, ot.batch, log", _pot(in_logs=True, at_once=True), for_batches=True),
    Solver("POT TensorFlow", _pot_tensorflow(in_logs=False)),
    Solver("POT TensorFlow, log", _pot_tensorflow(in_logs=True)),
    _ott_contender("point cloud, kernel", in_logs=False, from_matrix=False),
    _ott_contender("point cloud, log", in_logs=True, from_matrix=False),
    _ott_contender("matrix, kernel", in_logs=False, from_matrix=True),
    _ott_contender("matrix, log", in_logs=True, from_matrix=True),
    Solver(
        "GeomLoss",
        _geomloss,
        packages=("geomloss", "torch"),
        modules=("geomloss", "torch"),
        is_regularised=True,
    ),
)
