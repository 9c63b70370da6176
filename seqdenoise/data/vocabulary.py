"""Raw ids to dense ids: padding, unknown and mask first, then the keys seen in training."""

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from seqdenoise.data.columns import decoded, flatten_lists, is_list, is_string
from seqdenoise.data.key_lookup import IntegerLookup, TextLookup
from seqdenoise.errors import DataError

Column: TypeAlias = pa.Array | pa.ChunkedArray | npt.NDArray[Any]

_MAX_SIZE = 2**31 - 1


class Vocabulary:
    """Integer or string keys, numbered from 3 in the order given.

    Args:
        keys: Distinct keys without nulls; integers within int64, or strings.

    Raises:
        DataError: A key is null, occurs twice, or is neither an integer nor a string.

    Example:
        >>> vocabulary = Vocabulary.fit(np.array([7, 9, 9]))
        >>> vocabulary.keys, vocabulary.size
        ([9, 7], 5)
        >>> vocabulary.encode(pa.array([7, 8, None, 9]))
        array([4, 1, 1, 3], dtype=int32)
    """

    PAD = 0
    OOV = 1
    MASK = 2
    FIRST = 3
    """The id of the first key."""

    def __init__(self, keys: Column | Sequence[int] | Sequence[str]):
        array = _flat(to_arrow(keys))
        if array.null_count:
            raise DataError("vocabulary: expected keys without nulls. Received: a null")
        if len(array) > _MAX_SIZE - self.FIRST:
            raise DataError(f"vocabulary: expected ids within int32. Received: {len(array)} keys")
        if pc.count_distinct(array).as_py() != len(array):
            twice = pc.value_counts(array).to_pylist()
            raise DataError(
                "vocabulary: expected distinct keys. Received: "
                f"{next(entry['values'] for entry in twice if entry['counts'] > 1)!r} twice"
            )
        self._keys = array
        self._lookup: IntegerLookup | TextLookup | None = None

    @classmethod
    def fit(cls, *columns: Column, min_count: int = 1) -> "Vocabulary":
        """Counts the values of some columns and keeps the frequent ones.

        Args:
            *columns: Integers or strings, flat or in lists; nulls are left out. Several columns
                share one count, for instance the candidate and the sequences that share its table.
            min_count: Rarer values are left out and encode as unknown.

        Returns:
            The vocabulary, most frequent key first, equally frequent ones in increasing order.

        Raises:
            DataError: The values are neither integers nor strings, or the columns disagree.
        """
        counter = VocabularyCounter()
        for column in columns:
            counter.add(column)
        return counter.vocabulary(min_count=min_count)

    @property
    def size(self) -> int:
        """Number of ids, the three reserved ones included: the rows of an embedding table."""
        return len(self._keys) + self.FIRST

    @property
    def keys(self) -> list[int] | list[str]:
        """The keys in the order of their ids, as Python values."""
        return self._keys.to_pylist()

    @property
    def is_text(self) -> bool:
        """Whether the keys are strings."""
        return is_string(self._keys.type)

    def expects(self, kind: pa.DataType) -> str:
        """What it takes instead of `kind`; empty if it takes that."""
        if len(self._keys) == 0 or pa.types.is_null(kind) or is_string(kind) == self.is_text:
            return ""
        return f"{'strings' if self.is_text else 'integers'}, as in its vocabulary"

    def encode(self, values: Column) -> npt.NDArray[np.int32]:
        """The id of each value.

        The first call prepares the keys for all that follow.

        Args:
            values: Flat, of the keys' kind (any integer type, or strings, dictionary or not).

        Returns:
            int32 of the same length: `OOV` for unknown values and nulls.

        Raises:
            DataError: Strings for integer keys, or the reverse.
        """
        array = to_arrow(values)
        if pa.types.is_null(array.type):
            return np.full(len(array), self.OOV, np.int32)
        if not (pa.types.is_dictionary(array.type) and is_string(array.type)):
            array = _flat(array)
        if len(self._keys) == 0:
            return np.full(len(array), self.OOV, np.int32)
        if is_string(array.type) != self.is_text:
            raise DataError(
                f"vocabulary: expected values of its keys' type {self._keys.type}. "
                f"Received: {array.type}"
            )
        if self._lookup is None:
            self._lookup = (TextLookup if self.is_text else IntegerLookup)(self._keys)
        found = self._lookup.find(array)
        return np.where(found < 0, np.int32(self.OOV), found + np.int32(self.FIRST))

    def to_json(self) -> str:
        """The keys as JSON; integers of any size are written in full."""
        return json.dumps({"format": 1, "type": str(self._keys.type), "keys": self.keys})

    @classmethod
    def from_json(cls, text: str) -> "Vocabulary":
        """The inverse of `to_json`.

        Args:
            text: What `to_json` returned.

        Returns:
            A vocabulary with the same keys and ids.

        Raises:
            DataError: The text is something else, a key is of the wrong kind, beyond int64, or
                occurs twice.
        """
        try:
            content: Any = json.loads(text)
            keys, kind = content["keys"], content["type"]
            known = content["format"] == 1 and kind in ("int64", "string")
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"vocabulary: expected JSON with format, type and keys. Received: {error!r}"
            ) from error
        if not known or not isinstance(keys, list):
            raise DataError(
                "vocabulary: expected format 1 and keys of type int64 or string. "
                f"Received: format {content['format']!r}, type {kind!r}"
            )
        python_type = int if kind == "int64" else str
        for key in keys:
            # A boolean is an int to isinstance, a float a number to Arrow: neither is a key.
            if type(key) is not python_type:
                raise DataError(f"vocabulary: expected keys of type {kind}. Received: {key!r}")
            if isinstance(key, int) and not -(2**63) <= key < 2**63:
                raise DataError(f"vocabulary: expected keys within int64. Received: {key}")
        return cls(pa.array(keys, pa.string() if kind == "string" else pa.int64()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._keys.equals(other._keys)

    def __hash__(self) -> int:
        return hash((self.size, str(self._keys.type)))

    def __repr__(self) -> str:
        return f"Vocabulary(size={self.size}, type={self._keys.type})"


class VocabularyCounter:
    """Counts values part by part, for columns that do not fit in memory."""

    def __init__(self) -> None:
        self._counts: pa.Table | None = None

    def add(self, column: Column) -> None:
        """Counts one more part.

        Args:
            column: As in `Vocabulary.fit`.

        Raises:
            DataError: The values are neither integers nor strings, or not of the earlier parts'.
        """
        array = to_arrow(column)
        if is_list(array.type):
            array, _ = flatten_lists(array)
        if pa.types.is_null(array.type):
            return
        counted = pc.value_counts(_flat(array).drop_null())
        table = pa.table({"key": counted.field("values"), "count": counted.field("counts")})
        if self._counts is not None:
            if self._counts.schema != table.schema:
                raise DataError(
                    "vocabulary: expected all values integers, or all strings. "
                    f"Received: {self._counts.schema.field('key').type}, then {array.type}"
                )
            both = pa.concat_tables([self._counts, table]).group_by("key")
            table = both.aggregate([("count", "sum")])
            table = table.rename_columns(
                ["count" if name == "count_sum" else name for name in table.column_names]
            ).select(["key", "count"])
        self._counts = table

    def vocabulary(self, *, min_count: int = 1) -> Vocabulary:
        """The values seen at least `min_count` times, ordered as in `Vocabulary.fit`."""
        if self._counts is None:
            return Vocabulary(pa.array([], pa.int64()))
        table = self._counts.filter(pc.field("count") >= min_count)
        table = table.sort_by([("count", "descending"), ("key", "ascending")])
        return Vocabulary(table["key"])


def to_arrow(values: Any) -> pa.Array:
    """A column as one Arrow array.

    Raises:
        DataError: Its values have no common type, or exceed int64.
    """
    if isinstance(values, pa.ChunkedArray):
        return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    try:
        # An empty sequence has no type; integers are the default.
        return pa.array(values) if len(values) else pa.array([], pa.int64())
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(
            f"vocabulary: expected integers within int64, or strings. Received: {error}"
        ) from error


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """int64 or string, in one piece."""
    array = decoded(column)
    if is_string(array.type):
        return array
    if not pa.types.is_integer(array.type):
        raise DataError(f"vocabulary: expected integers or strings. Received: {array.type}")
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError(f"vocabulary: expected values within int64. Received: {error}") from error
