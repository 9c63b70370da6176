"""Sums over pairs of rows, a block of anchors at a time: memory grows with B, not with B x B.

Forward, the products of a block of anchors with all columns are made, summed and dropped; backward,
they are made again. A block has about four million pairs. At usual
batch sizes the first block is the whole batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from seqdenoise.numerics import Tensor

# Pairs of a block: 16 MB of float32.
_PAIRS = 2**22
_FEWEST_ROWS = 16


class Pairs(NamedTuple):
    """Which columns count for which anchors: both are valid, and their keys are as asked.

    Attributes:
        anchors: bool `[N]`; False where nothing counts for the anchor.
        columns: bool `[M]`; False where the column counts for nothing.
        differ: Keys of anchors, int `[N]`, and of columns, int `[M]`, that must differ.
        agree: Keys likewise that must be equal.
    """

    anchors: Tensor
    columns: Tensor
    differ: tuple[tuple[Tensor, Tensor], ...] = ()
    agree: tuple[tuple[Tensor, Tensor], ...] = ()


class Limit(NamedTuple):
    """Columns that are nearer to the anchor than `largest` do not count.

    Attributes:
        largest: Scalar: the largest inner product that counts. NaN counts, so that it surfaces.
        anchors: `[N, d]`, those of the inner product; None for the ones that are summed.
        columns: `[M, d]`, likewise.
    """

    largest: Tensor
    anchors: Tensor | None = None
    columns: Tensor | None = None


def log_pair_sums(
    anchors: Tensor,
    columns: Tensor,
    pairs: Pairs,
    *,
    limit: Limit | None = None,
    powers: Sequence[float] = (1.0,),
) -> tuple[list[Tensor], Tensor]:
    r"""For each anchor, logarithms of sums of exponentials over the columns that count.

    $$ l_{p, i} = \log \sum_{j \in P_i} e^{p \langle a_i, b_j \rangle} $$

    Args:
        anchors: float32 or float64 `[N, d]`, finite where not valid.
        columns: `[M, d]`, likewise and of the same dtype.
        pairs: Which columns count.
        limit: Optional further condition, a constant in the gradient.
        powers: The `p`.

    Returns:
        For each power `[N]`; minus infinity, with gradient 0, where no column counts. And `[N]`,
        how many count, as a constant of the same dtype.
    """
    minus_infinity = tf.constant(float("-inf"), anchors.dtype)

    @tf.custom_gradient
    def summed(a: Tensor, b: Tensor) -> Any:
        blocks = Blocks(a, b, pairs, limit)

        def forward(block: Block) -> list[Tensor]:
            number = tf.reduce_sum(tf.cast(block.counts, a.dtype), axis=1)
            sums = []
            for power in powers:
                logits = tf.where(block.counts, _times(power, block.products), minus_infinity)
                highest = tf.reduce_max(logits, axis=1)
                # Of none the maximum is -inf, whose difference with itself would be NaN.
                highest = tf.where(number > 0, highest, tf.zeros_like(highest))
                total = tf.reduce_sum(tf.exp(logits - highest[:, tf.newaxis]), axis=1)
                sums.append(highest + tf.math.log(total))
            return [number, *sums]

        (number, *sums), _ = blocks.collect(forward, [[]] * (1 + len(powers)))

        def gradient(*upstream: Tensor) -> tuple[Tensor, Tensor]:
            none = [tf.equal(x, minus_infinity) for x in sums]
            levels = [
                tf.where(empty, tf.zeros_like(x), x) for empty, x in zip(none, sums, strict=True)
            ]
            outer = [_times(p, g) for p, g in zip(powers, upstream, strict=False)]

            def backward(block: Block, *rows: Tensor) -> list[Tensor]:
                terms = []
                for power, level, slope in zip(
                    powers, rows[: len(powers)], rows[len(powers) :], strict=True
                ):
                    exponents = _times(power, block.products) - level[:, tf.newaxis]
                    terms.append(tf.exp(exponents) * slope[:, tf.newaxis])
                shares = tf.add_n(terms) if len(terms) > 1 else terms[0]
                # What does not count may have overflowed.
                shares = tf.where(block.counts, shares, tf.zeros_like(shares))
                return [tf.matmul(shares, b), tf.matmul(shares, block.anchors, transpose_a=True)]

            (of_anchors,), of_columns = blocks.collect(
                backward, [[a.shape[1]]], [*levels, *outer], total_like=b
            )
            return of_anchors, of_columns

        return (*sums, number), gradient

    *sums, number = summed(anchors, columns)
    return sums, tf.stop_gradient(number)


def pair_sums(
    columns: Tensor, pairs: Pairs, *, limit: Limit | None = None
) -> tuple[Tensor, Tensor]:
    """For each anchor the sum of the columns that count.

    Args:
        columns: float `[M, d]`, finite where not valid.
        pairs: Which columns count.
        limit: Optional further condition, a constant in the gradient, with vectors of its own.

    Returns:
        `[N, d]`; and `[N]`, how many count, as a constant of the same dtype.
    """

    @tf.custom_gradient
    def summed(b: Tensor) -> Any:
        # Nothing but a limit looks at the anchors' products.
        blocks = Blocks(None, b, pairs, limit)

        def forward(block: Block) -> list[Tensor]:
            counts = tf.cast(block.counts, b.dtype)
            return [tf.reduce_sum(counts, axis=1), tf.matmul(counts, b)]

        (number, total), _ = blocks.collect(forward, [[], [b.shape[1]]])

        def gradient(upstream: Tensor, _: Tensor) -> Tensor:
            def backward(block: Block, slope: Tensor) -> list[Tensor]:
                return [tf.matmul(tf.cast(block.counts, b.dtype), slope, transpose_a=True)]

            _, of_columns = blocks.collect(backward, [], [upstream], total_like=b)
            return of_columns

        return (total, number), gradient

    total, number = summed(columns)
    return total, tf.stop_gradient(number)


class Block(NamedTuple):
    """Some anchors `[R, d]`, columns `[M, d]`, their products `[R, M]`, and which of them count."""

    anchors: Tensor
    columns: Tensor
    products: Tensor
    counts: Tensor


class Blocks:
    """The anchors in blocks of equally many, the last one filled up with invalid ones.

    Args:
        anchors: `[N, d]`, or None.
        columns: `[M, d]`.
        pairs: Which columns count for which anchors.
        limit: Optional further condition.
        diagonal_rows: Where the columns are as many as the anchors, the anchors of a block, which
            then meet only the columns of the same rows; None for blocks that meet all columns.
    """

    def __init__(
        self,
        anchors: Tensor | None,
        columns: Tensor,
        pairs: Pairs,
        limit: Limit | None,
        diagonal_rows: Tensor | int | None = None,
    ) -> None:
        self.columns = columns
        self.number = _size(pairs.anchors)
        self.is_diagonal = diagonal_rows is not None
        if diagonal_rows is None:
            self.rows, self.count = _rows_and_blocks(self.number, _size(columns))
        else:
            self.rows, self.count = diagonal_rows, -(-self.number // diagonal_rows)
        # Known when the graph is made; else there is a loop, of one turn perhaps.
        self.is_one = isinstance(self.count, int) and self.count == 1
        self.valid = self._stacks(pairs.anchors, pairs.columns)
        self.compared = [
            (compare, *self._stacks(*keys))
            for compare, both in ((tf.not_equal, pairs.differ), (tf.equal, pairs.agree))
            for keys in both
        ]
        self.vectors = self._stacks(anchors, columns)
        self.limit = limit
        self.near = None
        if limit is not None and limit.anchors is not None:
            self.near = self._stacks(limit.anchors, limit.columns)

    def collect(
        self,
        fn: Callable[..., list[Tensor]],
        shapes: Sequence[list[int]],
        rows: Sequence[Tensor] = (),
        total_like: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor | None]:
        """Calls `fn` for every block and puts together what it returns.

        Args:
            fn: From a block and its part of `rows` to values of its anchors, and then, with
                `total_like`, to one that is summed over the blocks.
            shapes: Of the anchors' values, each without the first axis.
            rows: Further values of the anchors.
            total_like: Of the shape of the sum.

        Returns:
            The anchors' values, and the sum.
        """
        further = [self._stacked(x) for x in rows]
        if self.is_one:
            found = fn(self._block(0), *(x[0] for x in further))
            return found[: len(shapes)], found[-1] if total_like is not None else None
        dtype = self.columns.dtype
        arrays = [
            tf.TensorArray(dtype, self.count, element_shape=[None, *shape]) for shape in shapes
        ]
        total = tf.zeros_like(self.columns[:0] if total_like is None else total_like)

        def body(i: Tensor, arrays: list[Any], total: Tensor) -> tuple[Any, ...]:
            found = fn(self._block(i), *(x[i] for x in further))
            if total_like is not None:
                total += found.pop()
            return i + 1, [x.write(i, y) for x, y in zip(arrays, found, strict=True)], total

        _, arrays, total = tf.while_loop(
            lambda i, *_: i < self.count, body, (0, arrays, total), parallel_iterations=1
        )
        values = [
            tf.reshape(x.stack(), [self.rows * self.count, *shape])[: self.number]
            for x, shape in zip(arrays, shapes, strict=True)
        ]
        return values, total

    def _stacked(self, x: Tensor) -> Tensor:
        """`[N, ...]` as `[blocks, R, ...]`."""
        missing = self.rows * self.count - self.number
        padded = tf.pad(x, [[0, missing], *[[0, 0]] * (x.shape.rank - 1)])
        return tf.reshape(padded, [self.count, self.rows, *x.shape[1:]])

    def _stacks(self, anchors: Tensor | None, columns: Tensor) -> tuple[Tensor | None, Tensor]:
        """Both by block; columns that all blocks meet stay as they are."""
        return (
            None if anchors is None else self._stacked(anchors),
            self._stacked(columns) if self.is_diagonal else columns,
        )

    def _block(self, i: Any) -> Block:
        def both(anchors: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
            return (
                None if anchors is None else anchors[i],
                columns[i] if self.is_diagonal else columns,
            )

        valid, of_columns = both(*self.valid)
        counts = valid[:, tf.newaxis] & of_columns
        for compare, *keys in self.compared:
            of_anchors, of_columns = both(*keys)
            counts &= compare(of_anchors[:, tf.newaxis], of_columns)
        anchors, columns = both(*self.vectors)
        products = None
        if anchors is not None:
            products = tf.matmul(anchors, columns, transpose_b=True)
        if self.limit is not None:
            near = products
            if self.near is not None:
                near = tf.matmul(*both(*self.near), transpose_b=True)
            # A NaN must stay among the pairs and surface. `~(near > largest)` would say so too, but
            # graph optimisation makes that `near <= largest`.
            counts &= (near <= self.limit.largest) | tf.math.is_nan(near)
        return Block(anchors, columns, products, counts)


def _rows_and_blocks(number: Any, columns: Any) -> tuple[Any, Any]:
    """How many anchors a block has, and how many blocks there are; plain numbers where known."""
    if isinstance(number, int) and isinstance(columns, int):
        rows = max(1, min(number, max(_FEWEST_ROWS, _PAIRS // max(columns, 1))))
        return rows, max(1, -(-number // rows))
    rows = tf.maximum(_FEWEST_ROWS, _PAIRS // tf.maximum(columns, 1))
    rows = tf.maximum(1, tf.minimum(number, rows))
    return rows, tf.maximum(1, -(-number // rows))


def _size(x: Tensor) -> Any:
    """The first axis, as a plain number where it is known."""
    return tf.shape(x)[0] if x.shape[0] is None else x.shape[0]


def _times(factor: float, x: Tensor) -> Tensor:
    """Without the work, and the rounding of a product, for a factor of 1."""
    return x if factor == 1 else factor * x
