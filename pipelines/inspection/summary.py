"""One pass over the keep scores of a file: how they are spread, and whose history shows it best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipelines.inspection.truth import REAL, UNKNOWN, Truth
from seqdenoise.data.files import ParquetSource
from seqdenoise.evaluation.ranking import auc

DROPPED_BELOW = 0.5
"""An event with a lower keep score counts as dropped."""

NUM_BINS = 20

_COLUMNS = ["row", "user", "type", "item", "event_timestamp", "keep_score", "has_trusted"]


@dataclass
class TypeSummary:
    """The keep scores of one type; each event counts once for every row it is in.

    Attributes:
        events: All of them.
        judged: Those of rows with a trusted event to judge by.
        dropped: The judged ones that score below `DROPPED_BELOW`.
        histogram: int64 `[3, NUM_BINS]`, judged events by truth (`REAL`, `NOISE`, and `UNKNOWN`
            last) and score: equal bins over [0, 1], each with its lower edge.
        auc: How well the score ranks real above noise, over the judged events whose truth is known;
            NaN where there are none of one kind.
    """

    events: int = 0
    judged: int = 0
    dropped: int = 0
    histogram: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((3, NUM_BINS), np.int64)
    )
    auc: float = np.nan

    @property
    def dropped_share(self) -> float:
        """`dropped` of `judged`; NaN where nothing was judged."""
        return self.dropped / self.judged if self.judged else np.nan

    def _add(self, scores: npt.NDArray[np.float32], truth: npt.NDArray[np.int8]) -> None:
        self.judged += len(scores)
        self.dropped += int((scores < DROPPED_BELOW).sum())
        place = np.minimum((scores * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        # `UNKNOWN` is -1: the last row.
        np.add.at(self.histogram, (truth.astype(np.int64), place), 1)


@dataclass
class Summary:
    """What `summarise` found.

    Attributes:
        types: By noisy type.
        auc: As `TypeSummary.auc`, over all types together.
        most_dropped: Rows with the most dropped events, one a user, the most first.
        most_kept: Rows with the most kept events, one a user, the most first.
    """

    types: dict[str, TypeSummary]
    auc: float
    most_dropped: list[int]
    most_kept: list[int]


class _TopRows:
    """The rows with the largest counts so far, at most one a user."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._best = pd.DataFrame({"user": [], "row": [], "count": []})

    def add(self, rows: pd.DataFrame) -> None:
        """Takes a table with `user`, `row` and `count`."""
        known = [self._best, rows[rows["count"] > 0]]
        table = pd.concat([part for part in known if len(part)] or [self._best])
        table = table.sort_values(["count", "row"], ascending=[False, True])
        self._best = table.drop_duplicates("user").head(self._size)

    @property
    def rows(self) -> list[int]:
        """Their numbers, the largest count first."""
        return [int(row) for row in self._best["row"]]


def _frames(path: Path) -> Iterator[pd.DataFrame]:
    with ParquetSource(path) as source:
        source.require(_COLUMNS)
        for index in range(source.num_row_groups):
            yield source.read_row_group(index, _COLUMNS).to_pandas()


def _auc(parts: Sequence[tuple[npt.NDArray[np.float32], npt.NDArray[np.int8]]]) -> float:
    scores = np.concatenate([np.empty(0, np.float32), *(scores for scores, _ in parts)])
    truth = np.concatenate([np.empty(0, np.int8), *(truth for _, truth in parts)])
    known = truth != UNKNOWN
    if len(np.unique(truth[known])) < 2:
        return np.nan
    return float(auc(truth[known] == REAL, scores[known]))


def summarise(
    path: Path, types: Sequence[str], *, num_users: int, truth: Truth | None = None
) -> Summary:
    """Reads a file of keep scores a row group at a time.

    Args:
        path: What `write_keep_scores` wrote.
        types: The noisy types.
        num_users: How many rows to choose of either kind.
        truth: Which events are noise, where that is known; then the scores of all events are held
            in memory, to be ranked.

    Returns:
        The summary.

    Raises:
        DataError: The file is missing, damaged, or lacks a column.
    """
    of_type = {kind: TypeSummary() for kind in types}
    known: dict[str, list[tuple[npt.NDArray[np.float32], npt.NDArray[np.int8]]]] = {
        kind: [] for kind in types
    }
    most_dropped, most_kept = _TopRows(num_users), _TopRows(num_users)
    for frame in _frames(path):
        for kind, count in frame["type"].value_counts().items():
            of_type[str(kind)].events += int(count)
        frame = frame[frame["has_trusted"]]
        if not len(frame):
            continue
        is_noise = np.full(len(frame), np.int8(UNKNOWN))
        if truth is not None:
            is_noise = truth.of(frame.rename(columns={"event_timestamp": "timestamp"}))
        for kind in types:
            chosen = (frame["type"] == kind).to_numpy()
            scores = frame["keep_score"].to_numpy(np.float32)[chosen]
            of_type[kind]._add(scores, is_noise[chosen])
            if truth is not None:
                known[kind].append((scores, is_noise[chosen]))
        dropped = frame["keep_score"] < DROPPED_BELOW
        for top, counted in ((most_dropped, dropped), (most_kept, ~dropped)):
            rows = counted.groupby(frame["row"]).sum().rename("count").reset_index()
            top.add(rows.merge(frame[["row", "user"]].drop_duplicates("row"), on="row"))
    for kind in types:
        of_type[kind].auc = _auc(known[kind])
    return Summary(
        types=of_type,
        auc=_auc([part for parts in known.values() for part in parts]),
        most_dropped=most_dropped.rows,
        most_kept=most_kept.rows,
    )
