"""The random masks behind the views: which dimensions, events or fields a view sees.

The random numbers come from a counter-based generator with the algorithm pinned, and row `r` of a
mask comes from a fixed place in its stream. So the same seed gives the same masks eagerly, in a
graph and under XLA, and a replica that holds rows `k, k + 1, ...` of a global batch draws exactly
those rows' masks, without drawing the others', when it says `first_row=k`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seqdenoise.numerics import Tensor

_PHILOX = 1  # The generator's number in the raw operations.
_SCRAMBLER = 0x02461E293EC8F720  # The key under which TensorFlow scrambles seeds.
_BLOCK = 4  # Philox makes four 32-bit numbers at each value of its counter.


def random_bits(
    num_rows: Tensor | int, row_size: int | Tensor, *, seed: Tensor, first_row: Tensor | int = 0
) -> Tensor:
    """Whole random numbers, uniform over all 32-bit integers.

    Whole numbers, not floats: the bits are the same with and without XLA, the rounding of a float
    drawn from them is not.

    Args:
        num_rows: Number of rows, a number or an int scalar tensor.
        row_size: Numbers a row. Row `r` holds the numbers from `r * row_size` on of the seed's
            stream, so another size gives other numbers.
        seed: int `[2]`.
        first_row: Number of the first row, at least 0, a number or an int scalar tensor.

    Returns:
        int32 `[num_rows, row_size]`, rows `first_row, first_row + 1, ...` of the stream.

    Example:
        >>> whole = random_bits(5, 3, seed=[0, 7])
        >>> bool(tf.reduce_all(random_bits(2, 3, seed=[0, 7], first_row=3) == whole[3:]))
        True
    """
    key, upper = tf.unstack(_scrambled(seed))
    start = tf.cast(first_row, tf.int64) * tf.cast(row_size, tf.int64)
    count = tf.cast(num_rows, tf.int64) * tf.cast(row_size, tf.int64)
    # A row may start inside a block: what the block holds before it is drawn too, and dropped.
    numbers = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.reshape(count + _BLOCK - 1, [1]),
        key=tf.reshape(key, [1]),
        counter=tf.stack([tf.cast(start // _BLOCK, tf.uint64), upper]),
        alg=_PHILOX,
        dtype=tf.int32,
    )
    # By a roll: a slice from a place that varies would have XLA compile anew for each.
    numbers = tf.roll(numbers, -(start % _BLOCK), axis=0)
    return tf.reshape(numbers[:count], [num_rows, row_size])


def _scrambled(seed: Tensor) -> Tensor:
    """The generator's key and the upper half of its counter, uint64 `[2]`.

    As in `tf.random.stateless_uniform` with the algorithm pinned, whose stream this continues. The
    raw operation for it, `StatelessRandomGetKeyCounter`, is no help: under XLA, and only there, it
    drops the upper bits of an int64 seed.
    """
    mixed = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[4],
        key=tf.constant([_SCRAMBLER], tf.uint64),
        counter=tf.cast(seed, tf.uint64),
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    low, high = tf.cast(mixed[0::2], tf.uint64), tf.cast(mixed[1::2], tf.uint64)
    return tf.bitwise.bitwise_or(low, tf.bitwise.left_shift(high, tf.constant(32, tf.uint64)))


def complementary_mask(
    num_rows: Tensor | int, num_features: int, *, seed: Tensor, first_row: Tensor | int = 0
) -> Tensor:
    """Draws, for each row on its own, exactly half of the features.

    View A keeps the features where the mask is True and view B the others, so the views are
    disjoint and together complete. With an odd number of features view A gets the smaller half.

    Args:
        num_rows: Number of rows `B`, a number or an int scalar tensor.
        num_features: Number of features `D`, at least 2.
        seed: int `[2]`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        bool `[B, D]` with `D // 2` True values in each row.

    Raises:
        ValueError: `num_features` is below 2.

    Example:
        >>> mask = complementary_mask(3, 6, seed=[0, 7])
        >>> mask.shape, tf.reduce_sum(tf.cast(mask, tf.int32), axis=1).numpy().tolist()
        (TensorShape([3, 6]), [3, 3, 3])
    """
    _check_can_be_halved(num_features)
    keys = random_bits(num_rows, num_features, seed=seed, first_row=first_row)
    # A row of argsort is a uniformly random permutation of 0 .. D-1, so exactly D // 2 of its
    # entries are below D // 2, whatever ties the keys have.
    return tf.argsort(keys, axis=1) < num_features // 2


def sampled_halves(
    num_rows: Tensor | int, num_features: int, *, seed: Tensor, first_row: Tensor | int = 0
) -> Tensor:
    """Draws, for each row on its own, exactly half of the features, fast for many rows.

    The same distribution as `complementary_mask` from other numbers, by selection sampling: the
    features are gone through in turn, and one is kept with probability (still to keep) / (still to
    come). Sorting tens of thousands of rows takes two to five times as long.

    Args:
        num_rows: Number of rows `B`, a number or an int scalar tensor.
        num_features: Number of features `D`, at least 2.
        seed: int `[2]`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        bool `[B, D]` with `D // 2` True values in each row.

    Raises:
        ValueError: `num_features` is below 2.

    References:
        Knuth, "The Art of Computer Programming", volume 2, section 3.4.2, algorithm S, in whole
        numbers: each probability is exact to 2^-32.

    Example:
        >>> mask = sampled_halves(3, 6, seed=[0, 7])
        >>> mask.shape, tf.reduce_sum(tf.cast(mask, tf.int32), axis=1).numpy().tolist()
        (TensorShape([3, 6]), [3, 3, 3])
    """
    _check_can_be_halved(num_features)
    numbers = random_bits(num_rows, num_features, seed=seed, first_row=first_row)
    numbers = tf.transpose(numbers)  # So that each turn reads its numbers from one place.
    range_ = tf.constant(2**32, tf.int64)

    def turn(feature: Tensor, to_keep: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        to_come = tf.cast(num_features - feature, tf.int64)
        number = tf.cast(numbers[feature], tf.int64) + range_ // 2
        keep = number * to_come < to_keep * range_
        return feature + 1, to_keep - tf.cast(keep, tf.int64), kept.write(feature, keep)

    _, _, kept = tf.while_loop(
        lambda feature, *_: feature < num_features,
        turn,
        (
            tf.constant(0),
            tf.fill([num_rows], tf.constant(num_features // 2, tf.int64)),
            tf.TensorArray(tf.bool, num_features, element_shape=numbers.shape[1:]),
        ),
        maximum_iterations=num_features,
    )
    return tf.transpose(kept.stack())


def half_of_events(mask: Tensor, *, seed: Tensor, first_row: Tensor | int = 0) -> Tensor:
    """Draws, for each row on its own, exactly half of its real events.

    Which events are drawn depends on where the real events lie and on the shape `[B, L]`, never on
    what padding holds: the same history padded to another length is split otherwise.

    Args:
        mask: bool `[B, L]`, True for a real event, wherever in the row.
        seed: int `[2]`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        bool `[B, L]` with `n // 2` True values in a row of `n` real events, all of them at real
        events.

    Example:
        >>> mask = tf.sequence_mask([4, 1], maxlen=5)
        >>> half = half_of_events(mask, seed=[0, 7])
        >>> tf.reduce_sum(tf.cast(half & mask, tf.int32), axis=1).numpy().tolist()
        [2, 0]
    """
    shape = tf.shape(mask)
    keys = random_bits(shape[0], shape[1], seed=seed, first_row=first_row)
    # Padding ranks behind every real event, one that drew the largest integer included.
    highest = tf.constant(tf.int32.max, tf.int32)
    keys = tf.where(mask, tf.minimum(keys, highest - 1), highest)
    # Unlike all features, n of L events need their ranks, the inverse of the sorted order.
    rank = tf.argsort(tf.argsort(keys, axis=1), axis=1)
    count = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1, keepdims=True)
    return rank < count // 2


def kept_features(
    num_rows: Tensor | int,
    num_features: int,
    *,
    rate: float,
    seed: Tensor,
    first_row: Tensor | int = 0,
) -> Tensor:
    """Keeps each feature of each row with probability `1 - rate`, independently of all others.

    The probability is exact to 2^-32: a whole random number is compared with a whole bound.

    Args:
        num_rows: Number of rows `B`, a number or an int scalar tensor.
        num_features: Number of features `D`.
        rate: Probability of dropping a feature, in `[0, 1)`.
        seed: int `[2]`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        bool `[B, D]`.

    Raises:
        ValueError: `rate` is not in `[0, 1)`.

    Example:
        >>> bool(tf.reduce_all(kept_features(3, 6, rate=0.0, seed=[0, 7])))
        True
    """
    if not 0 <= rate < 1:
        raise ValueError(f"`rate` must be in [0, 1). Received: {rate}")
    # A rate within 2^-33 of 1 would round to a bound that no 32-bit integer reaches.
    bound = min(round(rate * 2**32), 2**32 - 1) - 2**31
    return random_bits(num_rows, num_features, seed=seed, first_row=first_row) >= bound


def correlated_halves(
    fields: Sequence[str], mutual_information: Mapping[str, Mapping[str, float]]
) -> npt.NDArray[np.bool_]:
    """For each field, the half of the fields that knows most about it, itself included.

    Args:
        fields: The `F` fields' names, at least 2.
        mutual_information: Mapping from field to field to their mutual information, in any unit.
            What a field is said to know about itself is not read and may be left out.

    Returns:
        bool `[F, F]`, a row a seed field in the order of `fields`, with `F // 2` True values: the
        field itself and the others of highest mutual information with it, ties in the order of
        their names.

    Raises:
        ValueError: There are fewer than 2 fields, or `mutual_information` names other fields, or a
            value is not finite.

    Example:
        >>> information = {
        ...     "brand": {"item": 3.0, "price": 0.5, "shop": 0.9},
        ...     "item": {"brand": 3.0, "price": 2.0, "shop": 2.5},
        ...     "price": {"brand": 0.5, "item": 2.0, "shop": 0.1},
        ...     "shop": {"brand": 0.9, "item": 2.5, "price": 0.1},
        ... }
        >>> correlated_halves(["brand", "item", "price", "shop"], information).astype(int).tolist()
        [[1, 1, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]]
    """
    if len(fields) < 2:
        raise ValueError(
            f"Correlated views need at least 2 fields to share out. Received: {list(fields)}"
        )
    named = {field: {field, *others} for field, others in mutual_information.items()}
    if set(named) != set(fields) or any(others != set(fields) for others in named.values()):
        raise ValueError(
            f"`mutual_information` must name the fields {sorted(fields)} and, for each, the "
            "others. Received: "
            f"{ {field: sorted(others) for field, others in sorted(mutual_information.items())} }"
        )
    table = np.zeros([len(fields)] * 2, bool)
    for row, field in enumerate(fields):
        information: dict[str, Any] = {
            other: mutual_information[field][other] for other in fields if other != field
        }
        if not all(np.isfinite(value) for value in information.values()):
            raise ValueError(
                f"`mutual_information` must hold finite numbers. Received: for `{field}` "
                f"{information}"
            )
        others = sorted(information, key=lambda other: (-information[other], other))
        table[row] = np.isin(fields, [field, *others[: len(fields) // 2 - 1]])
    return table


def correlated_mask(
    num_rows: Tensor | int,
    halves: npt.NDArray[np.bool_],
    *,
    seed: Tensor,
    first_row: Tensor | int = 0,
) -> Tensor:
    """Draws a seed field for each row on its own, and keeps the half that belongs to it.

    The seed field is a whole 32-bit random number modulo `F`, so no field is more than a factor
    `1 + F / 2^32` likelier than another.

    Args:
        num_rows: Number of rows `B`, a number or an int scalar tensor.
        halves: bool `[F, F]` of `correlated_halves`.
        seed: int `[2]`.
        first_row: Number of the first row in the global batch, a number or an int scalar tensor.

    Returns:
        bool `[B, F]` with `F // 2` True values in each row.

    Example:
        >>> halves = np.array([[True, False], [False, True]])
        >>> mask = correlated_mask(64, halves, seed=[0, 7])
        >>> bool(tf.reduce_all(mask[:, 0] != mask[:, 1])), bool(tf.reduce_any(mask[:, 0]))
        (True, True)
    """
    numbers = random_bits(num_rows, 1, seed=seed, first_row=first_row)
    field = tf.math.floormod(numbers[:, 0], len(halves))
    return tf.gather(tf.constant(halves), field)


def _check_can_be_halved(num_features: int) -> None:
    if num_features < 2:
        raise ValueError(
            "Complementary views need at least 2 features to share out. "
            f"Received: num_features={num_features}"
        )
