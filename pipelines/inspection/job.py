"""The `inspect` job: keep scores of every event of a split, and a page that shows them."""

import logging
from pathlib import Path

from pipelines.config import ConfigError
from pipelines.inspection.before_after import distances_before_and_after
from pipelines.inspection.finished_run import load_finished_run
from pipelines.inspection.histories import judged_histories
from pipelines.inspection.keep_scores import write_keep_scores
from pipelines.inspection.page import Inspection, to_html
from pipelines.inspection.samples import draw_rows
from pipelines.inspection.summary import summarise
from pipelines.inspection.truth import read_truth
from pipelines.splits import SPLITS
from seqdenoise.data.atomic import atomic_folder

logger = logging.getLogger(__name__)


def inspect(
    run_folder: Path, folder: Path, *, split: str = "test", num_users: int = 3
) -> Inspection:
    """Judges every event of a split by the trusted ones of its row.

    Writes `folder`, whole or not at all: `keep_scores.parquet` (see `write_keep_scores`) and
    `report.html`, a page that loads nothing.

    Args:
        run_folder: What `train` wrote, of a run with `denoiser.trusted`.
        folder: The output folder; replaced where it exists.
        split: `train`, `valid` or `test`.
        num_users: How many users of each kind the page shows.

    Returns:
        What the page shows.

    Raises:
        ConfigError: There is no such split, or the run does not say which events to trust.
        DataError: The folder is not that of a finished run, or its prepared file is missing or
            damaged.
    """
    if split not in SPLITS:
        raise ConfigError(f"split: expected one of {list(SPLITS)}. Received: {split!r}")
    run = load_finished_run(run_folder)
    prepared = run.config.prepared_folder / f"{split}.parquet"
    truth = read_truth(run.config.log_folder, run.noisy_types)
    with atomic_folder(folder) as aside:
        scores = aside / "keep_scores.parquet"
        counts = write_keep_scores(run, prepared, scores)
        summary = summarise(scores, run.noisy_types, num_users=num_users, truth=truth)
        chosen = {
            "Most events dropped": summary.most_dropped,
            "Most events kept": summary.most_kept,
            "Drawn at random": draw_rows(prepared, num_users, seed=0),
        }
        inspection = Inspection(
            run=run_folder.resolve().name,
            split=split,
            trusted=run.trusted,
            settings=run.config.denoiser.model_dump(mode="json"),
            counts=counts,
            summary=summary,
            distances=distances_before_and_after(run, prepared),
            histories={
                title: judged_histories(run, prepared, scores, rows, truth)
                for title, rows in chosen.items()
            },
        )
        (aside / "report.html").write_text(to_html(inspection), encoding="utf-8")
    logger.info("inspected %s, %d events of %d rows", run_folder, counts.events, counts.rows)
    return inspection
