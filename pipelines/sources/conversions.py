"""Labels of logs that show no exposures: was the item carted or bought soon after the click?"""

import datetime
import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.sources.streams import GrowingTable
from seqdenoise.data.columns import IntArray
from seqdenoise.errors import DataError

_logger = logging.getLogger(__name__)

DAY = datetime.timedelta(days=1)


def milliseconds(horizon: datetime.timedelta) -> int:
    """A horizon in milliseconds, which must be at least one."""
    value = horizon // datetime.timedelta(milliseconds=1)
    if value < 1:
        raise ValueError(f"expected a horizon of at least 1 ms. Received: {horizon}")
    return value


def followed(
    user: IntArray,
    item: IntArray,
    time: IntArray,
    outcome: npt.NDArray[np.bool_],
    horizon: int,
) -> npt.NDArray[np.int8]:
    """Whether an outcome of the same user and item comes after a row, within the horizon.

    Row i is 1 where there is a row j of the same user and item with `outcome[j]` and
    `time[i] < time[j] <= time[i] + horizon`. An outcome at the row's own moment does not count.
    Rows that are outcomes themselves are 0.

    Args:
        user: int64 `[n]`, in any order.
        item: int64 `[n]`.
        time: int64 `[n]`.
        outcome: `[n]`.
        horizon: At least 1, in the unit of `time`.

    Returns:
        int8 `[n]`, 0 or 1.

    Example:
        >>> one = np.ones(4, np.int64)
        >>> followed(one, one, np.array([10, 30, 50, 51]), np.array([0, 0, 1, 0], bool), 20)
        array([0, 1, 0, 0], dtype=int8)
    """
    # At equal times outcomes come first, so that what follows a row in this order is later.
    order = np.lexsort((~outcome, time, item, user))
    user, item, time, outcome = user[order], item[order], time[order], outcome[order]
    last = len(order) - 1
    position = np.where(outcome, np.arange(len(order)), last)
    # For each row the nearest outcome at or after it, or the last row, which may be none.
    nearest = np.minimum.accumulate(position[::-1])[::-1]
    same = (user[nearest] == user) & (item[nearest] == item)
    soon = same & outcome[nearest] & ~outcome & (time[nearest] - time <= horizon)
    result = np.empty(len(order), np.int8)
    result[order] = soon
    return result


def distinct(table: pa.Table, order: list[str]) -> pa.Table:
    """The table sorted by its columns in the given order, rows equal in all of them once.

    Args:
        table: Integers or strings; nulls sort last and equal each other.
        order: All its columns, the most important first.

    Returns:
        The same columns; the same rows always give the same table, whatever order they came in.

    Example:
        >>> distinct(pa.table({"a": [2, 1, 2, 2], "b": [5, 6, None, 5]}), ["a", "b"]).to_pydict()
        {'a': [1, 2, 2], 'b': [6, 5, None]}
    """
    table = table.sort_by([(name, "ascending") for name in order])
    changed = np.full(len(table), False)
    changed[:1] = True
    for column in table.columns:
        later, earlier = column.slice(1), column.slice(0, max(len(column) - 1, 0))
        differs = pc.not_equal(later, earlier).fill_null(False).to_numpy()
        changed[1:] |= differs | (later.is_null().to_numpy() != earlier.is_null().to_numpy())
    return table.filter(pa.array(changed))


def write_judged(uncut: Path, path: Path, *, last: int, horizon: int) -> dict[str, int]:
    """Copies the impressions whose whole horizon the log covers; the others' labels are unknown.

    Args:
        uncut: All impressions, a parquet file with a column `timestamp`.
        path: The parquet file to write.
        last: The log's last moment.
        horizon: In the same unit.

    Returns:
        `impressions` (rows written) and `impressions_cut` (rows left out).

    Raises:
        DataError: Nothing would be left.
    """
    with pq.ParquetFile(uncut) as file, GrowingTable(path, file.schema_arrow) as judged:
        total = file.metadata.num_rows
        for index in range(file.num_row_groups):
            table = file.read_row_group(index)
            judged.add(table.filter(pc.less_equal(table["timestamp"], last - horizon)))
    if not judged.num_rows:
        raise DataError(
            f"expected impressions at least {horizon} ms before the end of the log, {last}. "
            f"Received: none of {total}"
        )
    cut = total - judged.num_rows
    _logger.info("%d of %d impressions end with an unfinished horizon, left out", cut, total)
    return {"impressions": judged.num_rows, "impressions_cut": cut}


KEYS = [("user", pa.int64()), ("item", pa.int64())]
EVENTS = pa.schema([*KEYS, ("type", pa.string()), ("timestamp", pa.int64())])
