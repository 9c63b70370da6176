"""Sessions: a user's events up to a gap, of all types together."""

import numpy as np
import numpy.typing as npt

from seqdenoise.data.columns import IntArray


class Sessions:
    """Numbers the sessions of all users.

    Args:
        keys: int64 `[events]`, ascending, as the builder sorts: by user, then by time.
        times: int64 `[events]`, ticks, in that order.
        gap: Ticks; a session goes on up to this gap.

    Attributes:
        numbers: int64 `[events]`, ascending; a user's consecutive sessions differ by 1. Only
            differences within a user mean something.

    Example:
        >>> sessions = Sessions(np.array([1, 2, 9]), np.array([5, 6, 13]), 3)
        >>> sessions.numbers
        array([0, 0, 1])
        >>> sessions.current(np.array([10, 10]), np.array([16, 17]))  # 13 is 3 or 4 ticks ago
        array([1, 2])
    """

    def __init__(self, keys: IntArray, times: IntArray, gap: int):
        self._keys = keys
        self._times = times
        self._gap = np.uint64(gap)
        self.numbers = np.zeros(len(keys), np.int64)
        np.cumsum(self._exceeds(times[:-1], times[1:]), out=self.numbers[1:])

    def _exceeds(self, earlier: IntArray, later: IntArray) -> npt.NDArray[np.bool_]:
        # Modulo 2**64 the difference of two int64 in order is exact, however far apart they are.
        return (later - earlier).view(np.uint64) > self._gap

    def current(self, end_keys: IntArray, times: IntArray) -> IntArray:
        """The session that goes on at each impression: the last event's, or the one after it.

        Args:
            end_keys: int64 `[impressions]`, above the keys of the events before the impression.
            times: int64 `[impressions]`, ticks, rounded up.

        Returns:
            int64 `[impressions]`; of no meaning where the user has no event before.
        """
        if not len(self._keys):
            return np.zeros(len(end_keys), np.int64)
        last = np.searchsorted(self._keys, end_keys) - 1
        return self.numbers[last] + self._exceeds(self._times[last], times)
