"""Anybody's score files: read, checked, and put in the same order for all arms and seeds."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from seqdenoise.data.files import ParquetSource
from seqdenoise.data.locations import find_files
from seqdenoise.errors import DataError

KEY = "row"
"""A column that says which impression a row is, where rows are not in the same order."""

WEIGHT = "weight"


@dataclass(frozen=True)
class Scores:
    """The scores of all arms and seeds on the same impressions.

    Attributes:
        labels: bool `[N]`.
        users: `[N]`.
        weights: `[N]`, or None where the files have none.
        scores: By arm, `[S, N]`.
        slices: By column, `[N]`.
        files: By arm, the file of each seed.
    """

    labels: NDArray[np.bool_]
    users: NDArray[Any]
    weights: NDArray[np.float64] | None
    scores: dict[str, NDArray[np.float64]]
    slices: dict[str, NDArray[Any]]
    files: dict[str, list[str]]

    def fingerprint(self) -> dict[str, str]:
        """What tells these impressions and files from others."""
        digest = hashlib.sha256(np.packbits(self.labels).tobytes())
        digest.update("\n".join(map(str, self.users.tolist())).encode())
        found = {
            "impressions": f"{self.labels.size:,}",
            "users": f"{np.unique(self.users).size:,}",
            "share of positives": f"{self.labels.mean():.5f}",
            "users and labels, SHA-256": digest.hexdigest()[:16],
        }
        for arm, names in self.files.items():
            for seed, name in enumerate(names):
                found[f"{arm}, seed {seed}"] = name
        return found


def find_arms(arguments: Sequence[str]) -> dict[str, list[str]]:
    """The files of every arm, a file a seed, the control first.

    Args:
        arguments: Each a file, or a folder or glob of files, with or without `NAME=` before it; the
            same name again adds seeds. In a folder only `.parquet` files count. Without a name an
            arm is called by its file's or folder's name without the ending, or by all of the
            argument where that would give two arms the same name.

    Returns:
        By arm, its files in the order of arguments and names.

    Raises:
        DataError: Fewer than two arms, arms of different numbers of files, or no such file.
    """
    named = [_name_and_location(argument) for argument in arguments]
    stems = [Path(location).stem for name, location in named if not name]
    arms: dict[str, list[str]] = {}
    for name, location in named:
        stem = Path(location).stem
        arm = name or (stem if stems.count(stem) == 1 and "*" not in stem else location)
        files = [file.location for file in find_files(location)]
        if os.path.isdir(location):
            files = [file for file in files if file.endswith(".parquet")]
        if not files:
            raise DataError(f"{location}: expected parquet files in the folder. Received: none")
        arms.setdefault(arm, []).extend(files)
    if len(arms) < 2:
        raise DataError(
            f"expected the score files of at least two arms. Received: {len(arms)}, {list(arms)}"
        )
    numbers = {arm: len(files) for arm, files in arms.items()}
    if len(set(numbers.values())) > 1:
        raise DataError(f"expected as many files, one a seed, for every arm. Received: {numbers}")
    return arms


def _name_and_location(argument: str) -> tuple[str, str]:
    name, mark, location = argument.partition("=")
    # `day=3/scores.parquet` is a path.
    if mark and name and "/" not in name and not os.path.exists(argument):
        return name, location
    return "", argument


def read_scores(
    arms: Mapping[str, Sequence[str]], slices: Sequence[str] = (), key: str | None = None
) -> Scores:
    """Reads the files and checks that all score the same impressions.

    Args:
        arms: By arm, a file a seed, as many for every arm.
        slices: Columns of the very first file to slice by.
        key: The column that joins rows; by default `row` where the first file has it. Without one
            all files must hold the same rows in the same order.

    Returns:
        The scores, rows as in the first file.

    Raises:
        DataError: A file cannot be read, lacks a column, has a value that is none, or holds other
            impressions than the first.
    """
    (control, control_files) = next(iter(arms.items()))
    name = control_files[0]
    with ParquetSource(name) as source:
        names = source.schema.names
    if key is None and KEY in names:
        key = KEY
    weighted = WEIGHT in names
    optional = [column for column in (key, WEIGHT if weighted else None) if column]
    first = _File(name, ["user", "label", "score", *optional, *slices])
    labels, users = first.labels(), first.users()
    weights = first.numbers(WEIGHT) if weighted else None
    scores: dict[str, list[NDArray[np.float64]]] = {arm: [] for arm in arms}
    for arm, files in arms.items():
        for position, location in enumerate(files):
            if arm == control and position == 0:
                scores[arm].append(first.numbers("score"))
                continue
            file = _File(location, ["user", "label", "score", *optional])
            if not weighted:
                file.reject_column(WEIGHT, first.name)
            order = file.order_of(first, key)
            file.require_same("user", users, file.users()[order], first.name, order)
            file.require_same("label", labels, file.labels()[order], first.name, order)
            if weights is not None:
                theirs = file.numbers(WEIGHT)[order]
                file.require_same(WEIGHT, weights, theirs, first.name, order)
            scores[arm].append(file.numbers("score")[order])
    return Scores(
        labels=labels,
        users=users,
        weights=weights,
        scores={arm: np.stack(rows) for arm, rows in scores.items()},
        slices={column: first.values(column) for column in slices},
        files={arm: list(files) for arm, files in arms.items()},
    )


def _shown(value: Any) -> str:
    """A value as Python writes it, without NumPy's type around it."""
    return repr(value.item() if isinstance(value, np.generic) else value)


class _File:
    """The columns of one score file, each checked when it is asked for."""

    def __init__(self, location: str, columns: Sequence[str]):
        columns = list(dict.fromkeys(columns))
        with ParquetSource(location) as source:
            self.name = source.path
            self.columns = source.schema.names
            source.require(columns)
            self._table = source.read(columns)
        if not self._table.num_rows:
            raise DataError(f"{self.name}: expected rows. Received: none")

    def _reject(self, column: str, wrong: NDArray[np.bool_], expected: str) -> None:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            value = self._table[column][row].as_py()
            raise DataError(
                f"{self.name}, row {row}, column `{column}`: expected {expected}. "
                f"Received: {value!r}"
            )

    def _column(self, column: str) -> pa.ChunkedArray:
        """A column without missing values; dictionaries decoded."""
        values = self._table[column]
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        missing = np.asarray(pc.is_null(values).to_numpy(), bool)
        self._reject(column, missing, "a value")
        return values

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Finite numbers `[N]`."""
        values = self._column(column)
        kind = values.type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise DataError(
                f"{self.name}, column `{column}`: expected numbers. Received: {values.type}"
            )
        numbers = np.asarray(values.to_numpy(), np.float64)
        wrong = ~np.isfinite(numbers)
        if column == WEIGHT:
            self._reject(column, wrong | (numbers < 0), "a finite weight, not below 0")
        self._reject(column, wrong, "a finite number")
        return numbers

    def labels(self) -> NDArray[np.bool_]:
        """Labels `[N]` of both classes."""
        column = self._column("label")
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
            raise DataError(
                f"{self.name}, column `label`: expected 0 or 1. Received: {column.type}"
            )
        values = column.to_numpy()
        self._reject("label", (values != 0) & (values != 1), "0 or 1")
        labels: NDArray[np.bool_] = values == 1
        if labels.all() or not labels.any():
            raise DataError(
                f"{self.name}, column `label`: expected both classes. Received: only {values[0]}"
            )
        return labels

    def users(self) -> NDArray[Any]:
        """Users `[N]`: integers or strings."""
        return self._ids("user")

    def _ids(self, column: str) -> NDArray[Any]:
        values = self._column(column)
        text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
        if not (text or pa.types.is_integer(values.type)):
            raise DataError(
                f"{self.name}, column `{column}`: expected integers or strings. "
                f"Received: {values.type}"
            )
        return np.asarray(values.to_numpy())

    def values(self, column: str) -> NDArray[Any]:
        """A column to slice by `[N]`; times and the like as text."""
        values = self._column(column)
        kind = values.type
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not (numeric or pa.types.is_boolean(kind)):
            try:
                values = values.cast(pa.string())
            except pa.ArrowException as error:
                raise DataError(
                    f"{self.name}, column `{column}`: expected values to slice by. Received: {kind}"
                ) from error
        return np.asarray(values.to_numpy())

    def reject_column(self, column: str, first: str) -> None:
        """Refuses a column that the first file does not have."""
        if column in self.columns:
            raise DataError(
                f"{self.name}: expected no column `{column}`, as in {first}. "
                f"Received: columns {self.columns}"
            )

    def order_of(self, first: "_File", key: str | None) -> NDArray[np.int64]:
        """This file's row for each row of the first file."""
        size, expected = self._table.num_rows, first._table.num_rows
        if size != expected:
            raise DataError(
                f"{self.name}: expected the {expected:,} rows that {first.name} has. "
                f"Received: {size:,}"
            )
        if key is None:
            return np.arange(size)
        ours, theirs = first.unique_ids(key), self.unique_ids(key)
        if ours.dtype.kind != theirs.dtype.kind:
            raise DataError(
                f"{self.name}, column `{key}`: expected values as in {first.name}. "
                f"Received: {_shown(theirs[0])} beside {_shown(ours[0])}"
            )
        order = np.argsort(theirs)
        place = np.searchsorted(theirs, ours, sorter=order)
        found = order[np.minimum(place, size - 1)]
        missing = np.flatnonzero(theirs[found] != ours)
        if missing.size:
            row = int(missing[0])
            raise DataError(
                f"{self.name}, column `{key}`: expected {_shown(ours[row])}, which "
                f"{first.name} has in row {row}. Received: no such row"
            )
        return found

    def unique_ids(self, column: str) -> NDArray[Any]:
        """Ids that occur once each `[N]`."""
        ids = self._ids(column)
        _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
        self._reject(column, counts[inverse] > 1, "every value once")
        return ids

    def require_same(
        self,
        column: str,
        expected: NDArray[Any],
        received: NDArray[Any],
        first: str,
        order: NDArray[np.int64],
    ) -> None:
        """Refuses another impression than the first file's in any row."""
        wrong = np.flatnonzero(np.asarray(expected != received))
        if wrong.size or expected.dtype.kind != received.dtype.kind:
            row = int(wrong[0]) if wrong.size else 0
            raise DataError(
                f"{self.name}, row {order[row]}, column `{column}`: expected the same impression "
                f"as row {row} of {first}, {_shown(expected[row])}. "
                f"Received: {_shown(received[row])}"
            )
