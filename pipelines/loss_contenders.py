"""Ways to compute InfoNCE of a batch, ours and others.

Every contender does the same work: from two views of float32 vectors, the mean InfoNCE loss of
their directions, with every other row a negative, and its gradient with respect to both views.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.contest import Contender, Results

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """Two views of a batch.

    Attributes:
        view_a: float32 `[B, d]`.
        view_b: float32 `[B, d]`, near to it.
        ids: int64 `[B]`, all different.
        temperature: Of the loss.
    """

    view_a: Array
    view_b: Array
    ids: NDArray[np.int64]
    temperature: float


def make_problem(num_rows: int, dim: int, temperature: float) -> Batch:
    """The same draw in every process."""
    rng = np.random.default_rng(0)
    view_a = rng.standard_normal((num_rows, dim), np.float32)
    view_b = view_a + 0.5 * rng.standard_normal((num_rows, dim), np.float32)
    return Batch(view_a, view_b, rng.permutation(num_rows).astype(np.int64), temperature)


def _in_graph(loss: Callable[..., Any], batch: Batch, **options: Any) -> Callable[[], Results]:
    """A call of a loss of two views and its gradients, in a graph."""
    import tensorflow as tf

    @tf.function(**options)
    def solve(a: Any, b: Any) -> Results:
        with tf.GradientTape() as tape:
            tape.watch((a, b))
            value = loss(a, b)
        return (value, *tape.gradient(value, (a, b)))

    views = tf.constant(batch.view_a), tf.constant(batch.view_b)
    return lambda: solve(*views)


def _products(batch: Batch) -> Callable[[], Results]:
    """The matrix products that no contender can do without, of matrices that are in memory."""
    import tensorflow as tf

    @tf.function
    def solve(a: Any, b: Any) -> Results:
        products = tf.matmul(a, b, transpose_b=True)
        from_a = tf.matmul(products, b)
        return products[0, 0], from_a, tf.matmul(products, a, transpose_a=True)

    views = tf.constant(batch.view_a), tf.constant(batch.view_b)
    return lambda: solve(*views)


def _seqdenoise(
    *, jit_compile: bool = False, with_ids: bool = False
) -> Callable[[Batch], Callable[[], Results]]:
    def make(batch: Batch) -> Callable[[], Results]:
        import tensorflow as tf

        from seqdenoise import info_nce_loss

        mask = tf.ones(batch.ids.shape, tf.bool)
        ids = tf.constant(batch.ids) if with_ids else None

        def loss(a: Any, b: Any) -> Any:
            return info_nce_loss(a, b, mask=mask, ids=ids, temperature=batch.temperature)

        return _in_graph(loss, batch, jit_compile=jit_compile)

    return make


def _cross_entropy(batch: Batch) -> Callable[[], Results]:
    """What one writes by hand."""
    import tensorflow as tf

    def loss(a: Any, b: Any) -> Any:
        a, b = tf.math.l2_normalize(a, -1), tf.math.l2_normalize(b, -1)
        logits = tf.matmul(a, b, transpose_b=True) / batch.temperature
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(a)[0]), logits)
        return tf.reduce_mean(losses)

    return _in_graph(loss, batch)


def _retrieval(batch: Batch) -> Callable[[], Results]:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf
    import tensorflow_recommenders as tfrs

    task = tfrs.tasks.Retrieval(temperature=batch.temperature)

    def loss(a: Any, b: Any) -> Any:
        a, b = tf.math.l2_normalize(a, -1), tf.math.l2_normalize(b, -1)
        # It sums over the rows.
        return task(a, b, compute_metrics=False) / batch.view_a.shape[0]

    return _in_graph(loss, batch)


def _torch(batch: Batch) -> Callable[[], Results]:
    import torch

    a, b = (torch.tensor(view, requires_grad=True) for view in (batch.view_a, batch.view_b))
    own = torch.arange(len(batch.view_a))

    def call() -> Results:
        units = [torch.nn.functional.normalize(view, dim=-1) for view in (a, b)]
        logits = units[0] @ units[1].T / batch.temperature
        value = torch.nn.functional.cross_entropy(logits, own)
        return (value.detach(), *torch.autograd.grad(value, (a, b)))

    return call


# Those that keep matrices of B x B need 4 to 9 GB at twice this.
_LARGEST = 16_384
CONTENDERS: Sequence[Contender] = (
    Contender("matrix products alone", _products, is_comparable=False),
    Contender("seqdenoise", _seqdenoise()),
    Contender("seqdenoise, ids", _seqdenoise(with_ids=True)),
    Contender("seqdenoise, XLA", _seqdenoise(jit_compile=True)),
    Contender("TensorFlow, cross-entropy", _cross_entropy, largest=_LARGEST),
    Contender("TFRS Retrieval", _retrieval, largest=_LARGEST),
    Contender(
        "torch, cross-entropy", _torch, packages=("torch",), modules=("torch",), largest=_LARGEST
    ),
)
