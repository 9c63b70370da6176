"""The distances between types in a run's embeddings, before its first step and after training."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from pipelines.inspection.distances import Cloud, TypeDistance, type_distances
from pipelines.inspection.finished_run import CANDIDATE, FinishedRun
from pipelines.inspection.samples import draw_rows, take_rows
from pipelines.ranker import Ranker


@dataclass(frozen=True)
class BeforeAfter:
    """The distance of one pair of types before and after training."""

    before: TypeDistance
    after: TypeDistance


def _clouds(run: FinishedRun, ranker: Ranker, batch: Any) -> dict[str, Cloud]:
    candidate, sequences, masks = ranker.embed(batch)
    # The candidate is one event in every row.
    embedded = {**sequences, CANDIDATE: {name: x[:, None] for name, x in candidate.items()}}
    real = {**masks, CANDIDATE: np.ones([len(batch["user"]), 1], np.bool_)}
    return {
        kind: Cloud(
            np.concatenate([by_field[name] for name in run.features.event_fields], axis=-1),
            np.asarray(real[kind]),
        )
        for kind, by_field in embedded.items()
    }


def distances_before_and_after(
    run: FinishedRun, prepared: Path, *, num_users: int = 200, seed: int = 0
) -> list[BeforeAfter]:
    """Distances of every noisy type to every trusted one (or the candidate).

    Measured on the last row of each of some users, drawn by a seed.

    Args:
        run: The run.
        prepared: A prepared file.
        num_users: How many users, at most.
        seed: Seed of the draw.

    Returns:
        One entry a pair, in the run file's order of types.

    Raises:
        DataError: The prepared file is missing, damaged, or lacks a column.
    """
    rows = take_rows(prepared, draw_rows(prepared, num_users, seed=seed))
    with tempfile.TemporaryDirectory() as folder:
        # Some rows of a prepared file are a prepared file, and are read as one.
        path = Path(folder) / "drawn.parquet"
        pq.write_table(rows, path)
        batch = next(iter(run.dataset(path, max(len(rows), 1))))
    pairs = [(one, other) for one in run.noisy_types for other in run.trusted]
    before, after = (
        type_distances(_clouds(run, ranker, batch), pairs, seed=seed)
        for ranker in (run.untrained_ranker(), run.ranker)
    )
    return [BeforeAfter(*pair) for pair in zip(before, after, strict=True)]
