"""What `prepare.json` says: the counts of all parts and buckets, added up."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.config import RunConfig
from pipelines.log_folder import check_selected, check_types
from pipelines.preparation.work_folder import Counts, WorkFolder
from pipelines.splits import SPLITS
from seqdenoise.errors import DataError


def check_counts(config: RunConfig, counts: Counts) -> None:
    """Checks what only the whole log can tell, before the sequences are built.

    Args:
        config: The run.
        counts: Of all parts.

    Raises:
        DataError: A sequence type is nowhere in the log, `prepare.where` selects nothing, or a
            split has no rows.
    """
    shown = counts["impressions"]
    selected = sum(part["selected"] for part in shown)
    check_types(config, {*_types(counts["events"]), *_types(counts.get("histories", []))})
    check_selected(config, selected, sum(part["read"] for part in shown))
    in_splits = np.sum([part["splits"] for part in shown], axis=0)
    for name, rows in zip(SPLITS, in_splits.tolist(), strict=True):
        if not rows:
            first = min(part["first"] for part in shown if "first" in part)
            last = max(part["last"] for part in shown if "last" in part)
            raise DataError(
                f"{config.log_table('impressions')}, column `timestamp`: expected "
                f"impressions for the {name} split. Received: none; all {selected} selected lie "
                f"between {first} and {last} {config.log.time_unit}"
            )


def _types(parts: Sequence[dict[str, Any]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part["types"])
    return total


def summarise(config: RunConfig, work: WorkFolder) -> dict[str, Any]:
    """The contents of `prepare.json`.

    Args:
        config: The run.
        work: With all buckets built.

    Returns:
        Time unit, maximal length, buckets, events of each type, impressions outside the splits,
        and for each split rows, users, first and last time, rates of the labels, and the lengths
        of each type's sequences.
    """
    buckets, counts = work.summaries(), work.counts()
    return {
        "time_unit": config.log.time_unit,
        "max_length": config.prepare.max_length,
        "buckets": work.plan.num_buckets,
        "events": dict(sorted(_types(counts["events"]).items())),
        "impressions_outside_splits": sum(part["outside"] for part in counts["impressions"]),
        "splits": {
            split: _split([b["splits"][split] for b in buckets if split in b["splits"]])
            for split in SPLITS
        },
    }


def _split(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rows = sum(part["rows"] for part in parts)
    return {
        "rows": rows,
        # No user is in two buckets.
        "users": sum(part["users"] for part in parts),
        "first_timestamp": min(part["first_timestamp"] for part in parts),
        "last_timestamp": max(part["last_timestamp"] for part in parts),
        "label_rates": {
            name: sum(part["label_sums"][name] for part in parts) / rows
            for name in parts[0]["label_sums"]
        },
        "sequences": {
            kind: length_statistics(np.sum([part["lengths"][kind] for part in parts], axis=0))
            for kind in parts[0]["lengths"]
        },
    }


def length_statistics(counts: npt.NDArray[np.int64]) -> dict[str, float]:
    """Mean and median length of a type's sequences, and the shares of empty and of full ones.

    Args:
        counts: int64 `[max_length + 1]`, how many sequences are of each length.

    Example:
        >>> length_statistics(np.array([1, 1, 2]))["median_length"]
        1
    """
    rows = int(counts.sum())
    return {
        "mean_length": float(counts @ np.arange(len(counts)) / rows),
        "median_length": int(np.searchsorted(np.cumsum(counts), (rows + 1) // 2)),
        "empty_rate": float(counts[0] / rows),
        "full_rate": float(counts[-1] / rows),
    }
