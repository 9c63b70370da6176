"""Train, validation and test rows, by the time of the impression."""

from datetime import datetime, timedelta, timezone
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pipelines.config import ConfigError
from pipelines.run_sections import SplitConfig, TimeUnit
from seqdenoise.data.columns import IntArray

SPLITS = ("train", "valid", "test")
OUTSIDE = -1

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def to_ticks(moment: datetime | int, unit: TimeUnit) -> int:
    """The first tick at or after a moment, by integer arithmetic only.

    Args:
        moment: A time stamp with a zone, or ticks already.
        unit: What a tick is.

    Returns:
        Ticks since 1970-01-01 UTC.

    Example:
        >>> to_ticks(datetime.fromisoformat("2022-05-01T00:00:00+08:00"), "ms")
        1651334400000
    """
    if isinstance(moment, int):
        return moment
    nanoseconds = (moment - _EPOCH) // timedelta(microseconds=1) * 1000
    return -(-nanoseconds // _NANOSECONDS[unit])


def split_bounds(split: SplitConfig, unit: TimeUnit) -> dict[str, int]:
    """The bounds that a run file gives, in ticks.

    Args:
        split: The half-open ranges.
        unit: What a tick is.

    Returns:
        By the names of `SplitConfig`; those it leaves out are missing. Besides `train_until` and
        `valid_until`, which lie `gap` before the next split.

    Raises:
        ConfigError: The bounds are not in increasing order.
    """
    named = {
        name: to_ticks(value, unit)
        for name in ("train_from", "valid_from", "test_from", "test_until")
        if (value := getattr(split, name)) is not None
    }
    if any(later <= earlier for earlier, later in pairwise(named.values())):
        raise ConfigError(f"prepare.split: expected increasing times. Received: {named} in {unit}")
    named["train_until"] = named["valid_from"] - split.gap
    named["valid_until"] = named["test_from"] - split.gap
    return named


def split_codes(times: IntArray, bounds: dict[str, int]) -> npt.NDArray[np.int8]:
    """The split of each row, as its position in `SPLITS`.

    Args:
        times: int64 `[rows]`, ticks.
        bounds: As `split_bounds` gives them.

    Returns:
        int8 `[rows]`, `OUTSIDE` before `train_from`, from `test_until` on, and in the gaps.

    Example:
        >>> bounds = split_bounds(SplitConfig(valid_from=5, test_from=8, test_until=9, gap=1), "s")
        >>> split_codes(np.array([3, 4, 5, 7, 8, 9]), bounds)
        array([ 0, -1,  1, -1,  2, -1], dtype=int8)
    """
    codes = np.zeros(len(times), np.int8)
    codes[times >= bounds["train_until"]] = OUTSIDE
    codes[times >= bounds["valid_from"]] = 1
    codes[times >= bounds["valid_until"]] = OUTSIDE
    codes[times >= bounds["test_from"]] = 2
    if "train_from" in bounds:
        codes[times < bounds["train_from"]] = OUTSIDE
    if "test_until" in bounds:
        codes[times >= bounds["test_until"]] = OUTSIDE
    return codes
