"""How often two rows of a log are false negatives of each other: counted, not sampled."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqdenoise.data.columns import IntArray, flatten_lists, int64_values
from seqdenoise.data.mixing import mix64

KeyArray = npt.NDArray[np.uint64]

# Any two numbers will do, and any odd one.
_SEEDS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))
_ODD = np.uint64(0xD1342543DE82EF95)


def list_keys(lists: pa.ChunkedArray | pa.Array, place: str) -> tuple[KeyArray, IntArray]:
    """Short keys of lists of integers, equal where the lists are equal element by element.

    A key is two sums of 64 bits over the list, of a hash of each element with its position, mixed
    with the length. Two different lists share one with a probability of about 2^-128, unless
    somebody means them to.

    Args:
        lists: Lists of integers without null elements; a null list is an empty one.
        place: What error messages call the lists.

    Returns:
        uint64 `[rows, 2]`, and int64 `[rows]`, the lists' lengths.

    Raises:
        DataError: The lists hold something else than integers, or nulls.

    Example:
        >>> keys, lengths = list_keys(pa.array([[1, 2], [2, 1], [1, 2], None]), "clicks")
        >>> bool((keys[0] == keys[2]).all()), bool((keys[0] == keys[1]).all()), lengths.tolist()
        (True, False, [2, 2, 2, 0])
    """
    flat, lengths = flatten_lists(lists)
    items = int64_values(pa.table({"items": flat}), "items", place).astype(np.uint64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    positions = np.arange(len(items)) - np.repeat(starts, lengths)
    longest = int(lengths.max(initial=0))
    filled = lengths > 0  # `reduceat` would take an empty list for one element
    keys = np.empty((len(lengths), 2), np.uint64)
    for word, seed in enumerate(_SEEDS):
        of_position = mix64(np.arange(longest, dtype=np.uint64) * _ODD + seed)
        hashed = mix64(items ^ of_position[positions])
        sums = lengths.astype(np.uint64) * _ODD
        if filled.any():
            sums[filled] += np.add.reduceat(hashed, starts[filled])
        keys[:, word] = mix64(sums + seed)
    return keys, lengths


@dataclass(frozen=True)
class PairCounts:
    """What some users' rows say of pairs of rows; those of different users can be added up.

    Attributes:
        rows: Number of rows.
        of_user: Pairs of rows of the same user.
        of_both: Pairs of rows of the same user and with identical sequences.
        keys: uint64 `[distinct, 2]`, the different sequences' keys in increasing order.
        counts: int64 `[distinct]`, the rows of each.
    """

    rows: int
    of_user: int
    of_both: int
    keys: KeyArray
    counts: IntArray


def count_pairs(users: IntArray, keys: KeyArray) -> PairCounts:
    """Counts pairs of rows.

    Args:
        users: int64 `[rows]`; all rows of these users.
        keys: uint64 `[rows, 2]`, the sequences' `list_keys`.

    Returns:
        The counts.

    Raises:
        ValueError: The shapes do not fit.
    """
    if users.ndim != 1 or keys.shape != (len(users), 2):
        raise ValueError(
            "`users` must have shape [rows] and `keys` [rows, 2]. "
            f"Received: {users.shape} and {keys.shape}"
        )
    user = np.unique(users, return_inverse=True)[1].astype(np.int64)
    numbers, distinct = _numbered(keys)
    counts = np.bincount(numbers, minlength=len(distinct)).astype(np.int64)
    both = np.unique(user * max(len(distinct), 1) + numbers, return_counts=True)[1]
    return PairCounts(
        rows=len(users),
        of_user=num_pairs(np.bincount(user)),
        of_both=num_pairs(both),
        keys=distinct,
        counts=counts,
    )


def num_pairs(sizes: IntArray) -> int:
    """The pairs within groups of these sizes: a group of `n` rows holds `n (n - 1) / 2`.

    Example:
        >>> num_pairs(np.array([3, 1, 2]))
        4
    """
    sizes = sizes.astype(np.int64)
    return int((sizes * (sizes - 1) // 2).sum())


def rates_of_pairs(*, rows: int, of_user: int, of_sequence: int, of_both: int) -> dict[str, float]:
    """How often two different rows share a user, or an identical sequence.

    Args:
        rows: Number of rows.
        of_user: Pairs of rows of the same user.
        of_sequence: Pairs of rows with identical sequences.
        of_both: Pairs of rows with both.

    Returns:
        As `shared_rates`.
    """
    every = rows * (rows - 1) // 2
    return {
        "same_user_or_sequence": _share(of_user + of_sequence - of_both, every),
        "same_sequence_of_other_user": _share(of_sequence - of_both, every - of_user),
    }


def shared_rates(users: IntArray, keys: KeyArray) -> dict[str, float]:
    """How often two different rows share a user, or an identical sequence.

    Exact over all pairs of rows, by counting groups. For rows that do not fit in memory, add up
    the `count_pairs` of parts and call `rates_of_pairs`.

    Args:
        users: int64 `[rows]`.
        keys: uint64 `[rows, 2]`, the sequences' `list_keys`.

    Returns:
        `same_user_or_sequence`, the share of pairs of rows that have the same user or identical
        sequences; and `same_sequence_of_other_user`, the share of those with identical sequences
        among the pairs of different users. 0 where there is no such pair to judge by.

    Raises:
        ValueError: The shapes do not fit.

    Example:
        >>> keys, _ = list_keys(pa.array([[1], [1], [2], [1]]), "clicks")
        >>> rates = shared_rates(np.array([7, 7, 7, 8]), keys)
        >>> round(rates["same_user_or_sequence"], 4)  # 5 of 6 pairs
        0.8333
        >>> round(rates["same_sequence_of_other_user"], 4)  # 2 of 3 pairs
        0.6667
    """
    counted = count_pairs(users, keys)
    return rates_of_pairs(
        rows=counted.rows,
        of_user=counted.of_user,
        of_sequence=num_pairs(counted.counts),
        of_both=counted.of_both,
    )


def _numbered(keys: KeyArray) -> tuple[IntArray, KeyArray]:
    """Numbers the distinct keys from 0 on; each row's number, and the keys in that order."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    new = np.ones(len(keys), np.bool_)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = np.cumsum(new) - 1
    return numbers, ordered[new]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
