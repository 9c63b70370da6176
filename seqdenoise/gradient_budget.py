"""Keeps the side loss's gradient in its place where it meets that of the host."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from seqdenoise.numerics import Tensor
from seqdenoise.replicas import summed_over_replicas


def forked(
    tensors: Sequence[Tensor],
    *,
    budget: float | None = None,
    project_conflicts: bool = False,
    is_global: bool = True,
) -> tuple[list[Tensor], list[Tensor]]:
    r"""Two equal copies of tensors, one for the host and one for the side loss.

    The values are those of the tensors. Going back, the host's gradient `g` passes untouched, and
    that of the side loss, `h`, is first made to fit it, over all tensors together:

    - with `project_conflicts`, if the two point against each other, its part along `g` goes:
      $h \leftarrow h - \min(0, \langle g, h \rangle) \, g / \lVert g \rVert^2$;
    - with a `budget`, it is shortened to at most `budget` times the length of `g`:
      $h \leftarrow h \, \min(1, budget \, \lVert g \rVert / \lVert h \rVert)$.

    Where the host has no gradient at all, as in a warm start, there is nothing to fit, and nothing
    is changed.

    Args:
        tensors: float, of any shapes.
        budget: Above 0, or None for no limit.
        project_conflicts: Whether to take out what works against the host.
        is_global: Whether, under `tf.distribute`, products and lengths are those of the rows of all
            replicas together.

    Returns:
        The copies for the host, and those for the side loss.

    Raises:
        ValueError: `budget` is not above 0.

    References:
        Yu et al. (2020), "Gradient Surgery for Multi-Task Learning", algorithm 1, for one of two
        tasks alone: the host's gradient is never changed.

    Example:
        >>> x = tf.constant([3.0])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     (host,), (side,) = forked([x], budget=0.5)
        ...     loss = 2 * host + 100 * side
        >>> tape.gradient(loss, x).numpy()  # 2, and half of that
        array([3.], dtype=float32)
    """
    if budget is not None and not budget > 0:
        raise ValueError(f"`budget` must be above 0, or None. Received: {budget}")
    number = len(tensors)

    @tf.custom_gradient
    def fork(*tensors: Tensor) -> Any:
        def gradient(*upstream: Tensor) -> list[Tensor]:
            host, side = upstream[:number], upstream[number:]
            products = tf.stack(
                [
                    tf.add_n([_product(x, y) for x, y in zip(*pair, strict=True)])
                    for pair in ((host, side), (host, host), (side, side))
                ]
            )
            if is_global:
                products = summed_over_replicas(products)
            along, of_host, of_side = tf.unstack(products)
            back = tf.zeros_like(along)
            if project_conflicts:
                back = tf.math.divide_no_nan(tf.minimum(along, 0.0), of_host)
                of_side = tf.maximum(of_side - back * along, 0.0)
            factor = tf.ones_like(along)
            if budget is not None:
                longest = budget * tf.sqrt(of_host)
                is_too_long = (of_host > 0) & (tf.sqrt(of_side) > longest)
                factor = tf.where(is_too_long, longest / tf.sqrt(of_side), factor)
            return [
                g + tf.cast(factor, g.dtype) * (h - tf.cast(back, g.dtype) * g)
                for g, h in zip(host, side, strict=True)
            ]

        return [tf.identity(x) for x in (*tensors, *tensors)], gradient

    copies = fork(*tensors)
    return list(copies[:number]), list(copies[number:])


def forked_sequences(
    sequences: Mapping[str, Any], names: Sequence[str], **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`forked` for some of a layer's sequences, whose copies keep the Keras masks.

    Args:
        sequences: Mapping from name to float `[B, L, D]`, or to a mapping from field to such.
        names: Of the sequences to copy; the others are passed on as they are.
        **options: As of `forked`.

    Returns:
        The sequences for the host, and those for the side loss.
    """
    used = {name: sequences[name] for name in names}
    tensors = tf.nest.flatten(used)
    copies = forked(tensors, **options)
    for of_one in copies:
        for copy, original in zip(of_one, tensors, strict=True):
            copy._keras_mask = getattr(original, "_keras_mask", None)
    host, side = ({**sequences, **tf.nest.pack_sequence_as(used, x)} for x in copies)
    return host, side


def _product(x: Tensor, y: Tensor) -> Tensor:
    """The inner product, in float32: squares of half precision overflow."""
    return tf.reduce_sum(tf.cast(x, tf.float32) * tf.cast(y, tf.float32))
