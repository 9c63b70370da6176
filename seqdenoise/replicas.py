"""The batch that the replicas of a `tf.distribute` strategy share, seen from one of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from seqdenoise.inputs import whole_number_ids
from seqdenoise.numerics import Tensor

# More rows than a replica has.
_APART = 1 << 32


@dataclass(frozen=True)
class GlobalBatch:
    """The rows of all replicas, one after another in the order of the replicas.

    Attributes:
        first_row: Number of this replica's first row in it, a number or an int64 scalar.
        num_rows: Number of all rows, an int64 scalar; None where there are none of others.
    """

    first_row: Tensor | int = 0
    num_rows: Tensor | None = None

    @classmethod
    def around(cls, rows: Tensor, *, is_global: bool) -> "GlobalBatch":
        """The batch of which this replica has these rows.

        Outside of `tf.distribute`, and with one replica, that is these rows, and no operation is
        made.

        Args:
            rows: `[B, ...]`; other replicas may have other numbers of rows, also none.
            is_global: Whether the rows of other replicas count. Without that nothing is sent
                between replicas, and `first_row` keeps the numbers of their rows apart.

        Returns:
            The batch.
        """
        if not _is_spread():
            return cls()
        context = tf.distribute.get_replica_context()
        # A tensor in a graph that serves all replicas, a number otherwise.
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        if not is_global:
            return cls(replica * _APART)
        counts = context.all_gather(tf.shape(rows, tf.int64)[:1], axis=0)
        before = tf.range(context.num_replicas_in_sync, dtype=tf.int64) < replica
        first_row = tf.reduce_sum(tf.where(before, counts, tf.zeros_like(counts)))
        return cls(first_row, tf.reduce_sum(counts))

    def count(self, rows: Tensor) -> Tensor:
        """The number of all rows, an int scalar.

        Args:
            rows: Those of this replica, `[B, ...]`.
        """
        return tf.shape(rows)[0] if self.num_rows is None else self.num_rows

    def gather(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors' rows of all replicas, in the order of `first_row`.

        The gradient of a gathered tensor is summed over the replicas, and each takes its rows. So
        where every replica computes the same loss from the same gathered rows and scales it by one
        over the number of replicas, as Keras does with what `add_loss` adds, the gradients that the
        optimizer sums up are those of that loss on one device, however the rows are spread.

        Args:
            tensors: `[B, ...]` of a static rank, dimensions behind the first known. Strings, which
                cannot be sent, become int64 by a hash.

        Returns:
            As many tensors, of as many rows as all replicas have; without other replicas the
            tensors themselves.
        """
        if self.num_rows is None:
            return list(tensors)
        context = tf.distribute.get_replica_context()
        sent = [_sendable(x) for x in tensors]
        gathered = list(sent)
        # Side by side: what a collective costs here is mostly having one.
        for dtype in dict.fromkeys(x.dtype for x in sent):
            chosen = [i for i, x in enumerate(sent) if x.dtype == dtype]
            flat = [_as_matrix(sent[i]) for i in chosen]
            together = context.all_gather(tf.concat(flat, axis=1), axis=0)
            parts = tf.split(together, [x.shape[1] for x in flat], axis=1)
            for i, part in zip(chosen, parts, strict=True):
                gathered[i] = tf.reshape(part, [-1, *sent[i].shape[1:]])
        return [
            tf.cast(x, tf.bool) if given.dtype == tf.bool else x
            for x, given in zip(gathered, tensors, strict=True)
        ]


@contextmanager
def own_losses(layer: Any) -> Iterator[None]:
    """Keeps apart what `add_loss` has added to a model in this replica and in others meanwhile.

    Replicas of one process take turns: where one waits for the others' rows, they run. Keras 3
    keeps what is added in the layers, which the replicas share, and forgets it where a call of the
    model begins; so the second one to begin would take away what the host had added in the first.
    Legacy Keras keeps it by thread.

    Args:
        layer: The layer that is being called.

    Yields:
        Nothing.
    """
    if not _is_spread() or not hasattr(layer, "_get_call_context"):
        yield
        return
    # Private to Keras, as the walk over layers in layers: nothing else knows the whole model.
    model = layer._get_call_context().entry_layer
    layers = list(model._flatten_layers(include_self=True, recursive=True))
    kept = [list(each._losses) for each in layers]
    yield
    for each, losses in zip(layers, kept, strict=True):
        each._losses[:] = losses


def summed_over_replicas(x: Tensor) -> Tensor:
    """The sum of what all replicas have; `x` itself, and no operation, where there is one."""
    if not _is_spread():
        return x
    return tf.distribute.get_replica_context().all_reduce("SUM", x)


def _is_spread() -> bool:
    context = tf.distribute.get_replica_context()
    return context is not None and context.num_replicas_in_sync > 1


def _sendable(x: Tensor) -> Tensor:
    if x.dtype == tf.string:
        return whole_number_ids(x)
    return tf.cast(x, tf.float32) if x.dtype == tf.bool else x


def _as_matrix(x: Tensor) -> Tensor:
    size = x.shape[1:].num_elements()
    # Not -1: a replica may have no rows.
    return tf.reshape(x, [tf.shape(x)[0], size])
