"""Transport problems, and the solver as one graph that gives everything a test looks at."""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from seqdenoise.transport import Transport, sinkhorn, transport_plan

EPSILONS = [1e-3, 1e-2, 0.1, 1.0]
MODES = ["auto", "kernel", "stabilised", "log"]
_WORTH_A_GRAPH = 100  # iterations, that take longer than tracing does


class Solved(NamedTuple):
    """What `solve` returns: NumPy, but for the fields of `transport`, which are NumPy too."""

    transport: Transport
    plan: np.ndarray
    gradient: np.ndarray


def masses(rng, *shape, even=False):
    """Masses that sum to 1 along the last axis, the largest up to ten times the smallest."""
    mass = np.ones(shape) if even else rng.uniform(0.1, 1.0, shape)
    return mass / mass.sum(axis=-1, keepdims=True)


def problem(n=6, m=8, batch=None, seed=0, even=False):
    """Costs between 0 and 1, and masses that are not uniform."""
    rng = np.random.default_rng(seed)
    before = () if batch is None else (batch,)
    cost = rng.random((*before, n, m))
    return cost, masses(rng, *before, n, even=even), masses(rng, *before, m, even=even)


def solve(cost, a, b, upstream=None, dtype=tf.float64, **options) -> Solved:
    """Solves, with the gradient of the costs' weighted sum, in a graph where that is faster."""
    cost, a, b = (tf.cast(x, dtype) for x in (cost, a, b))
    upstream = np.ones(cost.shape[:-2]) if upstream is None else upstream
    upstream = tf.cast(upstream, plan_dtype(dtype))
    if options.get("num_iterations", 50) <= _WORTH_A_GRAPH:
        transport, plan, gradient = _solve(cost, a, b, upstream, options)
    else:
        graph = _graph(dtype, cost.shape.rank, tuple(sorted(options.items())))
        transport, plan, gradient = graph(cost, a, b, upstream)
    return Solved(Transport(*(x.numpy() for x in transport)), plan.numpy(), gradient.numpy())


def plan_dtype(dtype):
    return tf.float64 if dtype == tf.float64 else tf.float32


@functools.cache
def _graph(dtype: tf.DType, rank: int, options: tuple[tuple[str, Any], ...]) -> Any:
    """Of unknown shapes."""
    shape = [None] * rank
    signature = [
        tf.TensorSpec(shape, dtype),
        tf.TensorSpec(shape[1:], dtype),
        tf.TensorSpec(shape[1:], dtype),
        tf.TensorSpec(shape[2:], plan_dtype(dtype)),
    ]

    return tf.function(functools.partial(_solve, options=dict(options)), input_signature=signature)


def _solve(cost, a, b, upstream, options):
    with tf.GradientTape() as tape:
        tape.watch(cost)
        transport = sinkhorn(cost, a, b, **options)
        total = tf.reduce_sum(upstream * transport.cost)
    plan = transport_plan(cost, a, b, transport, epsilon=options["epsilon"])
    return transport, plan, tape.gradient(total, cost)
