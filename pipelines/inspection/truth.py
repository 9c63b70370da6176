"""Which events of a simulated log are noise."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from seqdenoise.data.columns import decoded
from seqdenoise.data.files import ParquetSource
from seqdenoise.errors import DataError

_KEY = ["user", "type", "item", "timestamp"]

REAL, NOISE, UNKNOWN = 0, 1, -1


class Truth:
    """Says of events whether they are noise.

    Args:
        events: `user`, `type`, `item`, `timestamp`, a row an event.
        is_noise: bool, of the same rows. Of equal events, of which one is real, all count as real.
    """

    def __init__(self, events: pd.DataFrame, is_noise: pd.Series) -> None:
        noise = is_noise.groupby([events[name] for name in _KEY], observed=True).all()
        self._index = pd.MultiIndex.from_frame(noise.index.to_frame(index=False))
        self._noise = noise.to_numpy(np.int8)

    def of(self, events: pd.DataFrame) -> npt.NDArray[np.int8]:
        """`NOISE`, `REAL` or `UNKNOWN` of each row of a table with the same four columns."""
        if not len(events):
            return np.empty(0, np.int8)
        found = self._index.get_indexer(pd.MultiIndex.from_frame(events[_KEY]))
        return np.where(found < 0, np.int8(UNKNOWN), self._noise[found])


def read_truth(log_folder: Path, types: Sequence[str]) -> Truth | None:
    """Reads what `simulate` says of a log's events, whole: only simulated logs have it.

    Args:
        log_folder: The log.
        types: Which types of events to keep.

    Returns:
        The truth, or None where the log has no `truth.parquet`.

    Raises:
        DataError: The file is damaged, or does not go with `events.parquet`.
    """
    path = log_folder / "truth.parquet"
    if not path.exists():
        return None
    with ParquetSource(log_folder / "events.parquet") as source, ParquetSource(path) as truth:
        source.require(_KEY)
        truth.require(["is_noise"])
        if truth.num_rows != source.num_rows:
            raise DataError(
                f"{path}: expected a row for each of the {source.num_rows} events. "
                f"Received: {truth.num_rows} rows"
            )
        events = source.read(_KEY)
        frame = events.set_column(1, "type", decoded(events["type"])).to_pandas()
        is_noise = truth.read(["is_noise"])["is_noise"].to_pandas()
    wanted = frame["type"].isin(list(types))
    return Truth(frame[wanted], is_noise[wanted])
