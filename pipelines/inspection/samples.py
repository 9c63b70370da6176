"""A few rows of a prepared file: of users drawn by a seed, or by number."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from seqdenoise.data.columns import decoded
from seqdenoise.data.files import ParquetSource


def draw_rows(path: Path, num_users: int, *, seed: int) -> list[int]:
    """The last row of each of some users, in one pass over the users' column.

    Who is drawn depends on the seed and the users alone, not on the number or the order of rows;
    more users are the same ones and others.

    Args:
        path: A prepared file.
        num_users: How many users, at most.
        seed: Seed of the draw.

    Returns:
        Numbers of rows, in the order drawn.

    Raises:
        DataError: The file is missing, damaged, or has no `user`.
    """
    salt = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    drawn = pd.DataFrame({"draw": np.empty(0, np.uint64), "row": np.empty(0, np.int64)})
    first = 0
    with ParquetSource(path) as source:
        source.require(["user"])
        for index in range(source.num_row_groups):
            users = decoded(source.read_row_group(index, ["user"])["user"]).to_pandas().to_numpy()
            # The smallest hashes are a uniform draw, and need no list of all users.
            draw = pd.util.hash_array(pd.util.hash_array(users) ^ salt)
            rows = pd.DataFrame({"draw": draw, "row": np.arange(first, first + len(users))})
            drawn = pd.concat([drawn, rows]).drop_duplicates("draw", keep="last")
            drawn = drawn.nsmallest(num_users, "draw")
            first += len(users)
    return [int(row) for row in drawn["row"]]


def take_rows(path: Path, rows: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of these numbers.

    Args:
        path: A prepared file.
        rows: Their numbers, in any order.
        columns: Which columns; None for all.

    Returns:
        A table with a row for each number, in their order.

    Raises:
        DataError: The file is missing or damaged, or lacks a column.
    """
    wanted = np.unique(np.asarray(rows, np.int64))
    first = 0
    with ParquetSource(path) as source:
        names = source.schema.names if columns is None else list(columns)
        source.require(names)
        parts = [source.schema.empty_table().select(names)]
        for index, size in enumerate(source.row_group_rows):
            inside = wanted[(wanted >= first) & (wanted < first + size)]
            if len(inside):
                parts.append(source.read_row_group(index, names).take(pa.array(inside - first)))
            first += size
    return pa.concat_tables(parts).take(pa.array(np.searchsorted(wanted, np.asarray(rows))))
