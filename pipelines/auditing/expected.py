"""Which raw entries each prepared row should hold, by plain enumeration."""

from bisect import bisect_left

import numpy as np
import pandas as pd

from pipelines.auditing.raw_log import RawType
from seqdenoise.data.columns import IntArray, ranges
from seqdenoise.data.sequence_rules import SequenceRules

# Bounds the memory of one enumeration.
_ENTRIES_AT_A_TIME = 2**21


def expected_entries(
    raw: RawType, position: IntArray, first_times: IntArray, rules: SequenceRules
) -> tuple[IntArray, IntArray]:
    """The positions in the raw log of what each row should hold.

    Args:
        raw: The type's raw log.
        position: int64 `[rows]`, the rows' numbers among all impressions audited.
        first_times: int64 `[rows]`, the time of the oldest of `max_length` entries that the row
            holds; the smallest int64 where it holds fewer or that one has no time. What is older
            cannot matter then, and is not enumerated.
        rules: The run's rules.

    Returns:
        The positions, oldest to newest, one row after another, and how many each row has.
    """
    low, high = raw.low[position], raw.high[position]
    if rules.deduplicate not in ("consecutive", "item"):
        lengths = np.minimum(high - low, rules.max_length)
        return ranges(high - lengths, lengths), lengths
    times = raw.columns["time"]
    for row in np.flatnonzero(first_times > np.iinfo(np.int64).min):
        events_from = max(low[row], raw.events_from[position[row]])
        low[row] = bisect_left(times, first_times[row], int(events_from), int(high[row]))
    found, lengths = [], np.zeros(len(position), np.int64)
    parts = np.cumsum(high - low) // _ENTRIES_AT_A_TIME
    for rows in np.split(np.arange(len(position)), np.flatnonzero(np.diff(parts)) + 1):
        sizes = high[rows] - low[rows]
        places = ranges(low[rows], sizes)
        window = pd.DataFrame(
            {
                "row": np.repeat(rows, sizes),
                "item": raw.columns["item"][places],
                "place": places,
            }
        )
        if rules.deduplicate == "item":
            kept = window.drop_duplicates(["row", "item"], keep="last")
        else:
            following = window.shift(-1, fill_value=-1)
            last = (window["row"] != following["row"]) | (window["item"] != following["item"])
            kept = window[last]
        kept = kept.groupby("row").tail(rules.max_length)
        found.append(kept["place"].to_numpy())
        lengths += np.bincount(kept["row"], minlength=len(lengths))
    return np.concatenate(found), lengths
