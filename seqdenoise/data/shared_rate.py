"""How often two rows of a log are false negatives of each other: counted, not sampled."""

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqdenoise.data.columns import IntArray, flatten_lists, int64_values

KeyArray = npt.NDArray[np.uint64]


def list_keys(lists: pa.ChunkedArray | pa.Array, place: str) -> tuple[KeyArray, IntArray]:
    """Short keys of lists of integers, equal where the lists are equal element by element.

    The keys are 128 bits of a cryptographic hash. That two of a billion different lists share one
    has a probability below 10^-20.

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
    content = memoryview(int64_values(pa.table({"items": flat}), "items", place).tobytes())
    ends = np.cumsum(lengths) * 8
    digests = b"".join(
        hashlib.blake2b(content[start:end], digest_size=16).digest()
        for start, end in zip((ends - lengths * 8).tolist(), ends.tolist(), strict=True)
    )
    return np.frombuffer(digests, "<u8").reshape(-1, 2).astype(np.uint64), lengths


def shared_rates(users: IntArray, keys: KeyArray) -> dict[str, float]:
    """How often two different rows share a user, or an identical sequence.

    Exact over all pairs of rows, by counting groups: a group of `n` rows holds `n (n - 1) / 2`
    pairs.

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
    if users.ndim != 1 or keys.shape != (len(users), 2):
        raise ValueError(
            "`users` must have shape [rows] and `keys` [rows, 2]. "
            f"Received: {users.shape} and {keys.shape}"
        )
    user = np.unique(users, return_inverse=True)[1].astype(np.int64)
    sequence = _numbered(keys)
    of_user, of_sequence = _pairs(user), _pairs(sequence)
    of_both = _pairs(user * (int(sequence.max(initial=0)) + 1) + sequence)
    every = len(users) * (len(users) - 1) // 2
    return {
        "same_user_or_sequence": _share(of_user + of_sequence - of_both, every),
        "same_sequence_of_other_user": _share(of_sequence - of_both, every - of_user),
    }


def _numbered(keys: KeyArray) -> IntArray:
    """Numbers the distinct keys from 0 on."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    starts = np.concatenate([[False], (ordered[1:] != ordered[:-1]).any(axis=1)])[: len(keys)]
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = np.cumsum(starts)
    return numbers


def _pairs(groups: IntArray) -> int:
    """The number of pairs of rows within the same group."""
    sizes = np.unique(groups, return_counts=True)[1].astype(np.int64)
    return int((sizes * (sizes - 1) // 2).sum())


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
