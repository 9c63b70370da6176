"""Raw ids to a fixed number of ids without a vocabulary."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqdenoise.data.columns import decoded, is_string
from seqdenoise.data.mixing import mix64
from seqdenoise.data.vocabulary import Column, Vocabulary, to_arrow
from seqdenoise.errors import DataError

_MAX_BINS = 2**31 - 1 - Vocabulary.FIRST

_Words = npt.NDArray[np.uint64]

# An odd factor of the polynomial over a string's bytes.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class HashEncoder:
    """Integer or string keys to one of `num_bins` ids, by a hash.

    Nothing is fitted, so keys that training never saw have an id too; the price is that keys share
    ids: two of `n` keys do with a probability of about `n**2 / (2 * num_bins)` while that is
    small. The hash is ours, and the same in every process, on every platform and in every version.
    The integer 7 and the string "7" have different ids.

    Args:
        num_bins: Number of ids, at least 1.
        salt: At least 0 and below 2**63; another salt lets other keys share an id.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> encoder = HashEncoder(1000)
        >>> encoder.encode(pa.array(["shoe", None, "shoe", "hat"]))
        array([887,   1, 887, 412], dtype=int32)
        >>> encoder.size
        1003
    """

    PAD = Vocabulary.PAD
    OOV = Vocabulary.OOV
    MASK = Vocabulary.MASK
    FIRST = Vocabulary.FIRST

    def __init__(self, num_bins: int, salt: int = 0):
        for name, value, least, stop in (
            ("num_bins", num_bins, 1, _MAX_BINS + 1),
            ("salt", salt, 0, 2**63),
        ):
            if type(value) is not int or not least <= value < stop:
                raise ValueError(
                    f"`{name}` must be an integer of at least {least} and below {stop}. "
                    f"Received: {value!r}"
                )
        self.num_bins = num_bins
        self.salt = salt

    @property
    def size(self) -> int:
        """Number of ids, the three reserved ones included: the rows of an embedding table."""
        return self.num_bins + self.FIRST

    def expects(self, kind: pa.DataType) -> str:
        """What it takes instead of `kind`; empty if it takes that."""
        if is_string(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
            return ""
        return "integers or strings"

    def encode(self, values: Column) -> npt.NDArray[np.int32]:
        """The id of each value.

        Args:
            values: Flat: any integer type, or strings, dictionary or not.

        Returns:
            int32 of the same length: `OOV` for nulls.

        Raises:
            DataError: The values are neither, or exceed int64.
        """
        array = to_arrow(values)
        if pa.types.is_dictionary(array.type):
            found = pa.array(self.encode(array.dictionary)).take(array.indices)
            return found.fill_null(self.OOV).to_numpy(zero_copy_only=False)
        if pa.types.is_null(array.type):
            return np.full(len(array), self.OOV, np.int32)
        array = decoded(array)
        if is_string(array.type):
            words = _hash_texts(array)
        elif pa.types.is_integer(array.type):
            try:
                words = array.cast(pa.int64()).fill_null(0).to_numpy().view(np.uint64)
            except pa.ArrowInvalid as error:
                raise DataError(f"hash: expected values within int64. Received: {error}") from error
        else:
            raise DataError(f"hash: expected integers or strings. Received: {array.type}")
        mixed = mix64(words ^ mix64(np.array([self.salt], np.uint64)))
        ids = (mixed % np.uint64(self.num_bins)).astype(np.int32) + np.int32(self.FIRST)
        if array.null_count:
            ids[array.is_null().to_numpy(zero_copy_only=False)] = self.OOV
        return ids

    def to_json(self) -> str:
        """The encoder as JSON."""
        return json.dumps({"format": 1, "num_bins": self.num_bins, "salt": self.salt})

    @classmethod
    def from_json(cls, text: str) -> "HashEncoder":
        """The inverse of `to_json`.

        Raises:
            DataError: The text is something else.
        """
        try:
            content: Any = json.loads(text)
            if content["format"] != 1:
                raise ValueError(f"format {content['format']!r}")
            return cls(content["num_bins"], content["salt"])
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"hash: expected JSON with format 1, num_bins and salt. Received: {error!r}"
            ) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashEncoder) and (self.num_bins, self.salt) == (
            other.num_bins,
            other.salt,
        )

    def __hash__(self) -> int:
        return hash((self.num_bins, self.salt))

    def __repr__(self) -> str:
        return f"HashEncoder(num_bins={self.num_bins}, salt={self.salt})"


def _hash_texts(texts: pa.Array) -> _Words:
    """A polynomial over the UTF-8 bytes of each string, modulo 2**64, and its length."""
    _, offset_buffer, data = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(texts) + 1, offset=4 * texts.offset)
    offsets = offsets.astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    content = np.frombuffer(data, np.uint8, last)[first:] if last else np.empty(0, np.uint8)
    starts = offsets - first
    lengths = np.diff(starts)
    places = np.arange(last - first) - np.repeat(starts[:-1], lengths)
    powers = np.cumprod(np.full(int(lengths.max(initial=0)), _FACTOR))
    terms = (content.astype(np.uint64) + np.uint64(1)) * powers[places]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
    # The length is mixed in, or "" would be the integer 0.
    return (sums[starts[1:]] - sums[starts[:-1]]) ^ mix64(lengths.astype(np.uint64))
