"""Anybody's score files, compared: models trained elsewhere get the same verdict and report."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.reporting.content import Report, calibrations
from pipelines.reporting.page import to_html
from pipelines.reporting.score_files import Scores, find_arms, read_scores
from seqdenoise.data.atomic import atomic_file
from seqdenoise.errors import DataError
from seqdenoise.evaluation.compare import compare_arms
from seqdenoise.evaluation.metrics import find_metrics
from seqdenoise.evaluation.results import ArmsComparison, Multiplicity
from seqdenoise.evaluation.verdict import (
    arms_to_dict,
    headline,
    slices_to_markdown,
    to_markdown,
)

_logger = logging.getLogger(__name__)

METRICS = ("AUC", "GAUC", "log loss", "normalised entropy", "NDCG@10", "ECE")
# Of so many metrics the slices are printed; the report and the JSON file have them of all.
_PRINTED_METRICS = 2


@dataclass(frozen=True)
class FilesComparison:
    """The comparison of score files.

    Attributes:
        scores: What the files hold.
        comparison: What came of it.
    """

    scores: Scores
    comparison: ArmsComparison

    @property
    def seeds(self) -> list[str]:
        """The seeds' names: the order of the files."""
        return [str(seed) for seed in range(len(self.scores.files[self.comparison.control]))]

    def to_markdown(self) -> str:
        """Verdict, table and slices of every treatment, then the notes."""
        comparison = self.comparison
        parts = []
        for arm, one in comparison.arms.items():
            parts.append(f"# {_line(arm)} against {_line(comparison.control)}\n")
            parts.append(to_markdown(one))
            if any(comparison.slices.values()):
                parts += [
                    slices_to_markdown(comparison, arm, metric.metric)
                    for metric in one.metrics[:_PRINTED_METRICS]
                ]
        printed = {note for one in comparison.arms.values() for note in one.notes}
        parts += [f"Note: {_line(note)}\n" for note in comparison.notes if note not in printed]
        return "\n".join(parts)

    def headline(self) -> str:
        """One line a treatment and metric."""
        arms = self.comparison.arms
        if len(arms) == 1:
            return headline(next(iter(arms.values())))
        return "\n".join(f"{_line(arm)}:\n{headline(one)}" for arm, one in arms.items())

    def to_html(self) -> str:
        """The report's page."""
        scores = self.scores
        names = [f"{arm}: {', '.join(files)}" for arm, files in scores.files.items()]
        report = Report(
            title="; ".join(names),
            comparison=self.comparison,
            seeds=self.seeds,
            calibration=calibrations(scores.labels, scores.scores, self.seeds, scores.weights),
            fingerprint=scores.fingerprint(),
        )
        return to_html(report)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data for JSON, with the files it came from."""
        return {"files": self.scores.files, **arms_to_dict(self.comparison)}


def _line(name: str) -> str:
    return " ".join(name.split())


def compare_files(
    files: Sequence[str],
    *,
    slices: Sequence[str] = (),
    metrics: Sequence[str] = METRICS,
    key: str | None = None,
    multiplicity: Multiplicity = "holm",
    num_resamples: int = 2000,
    confidence: float = 0.95,
    report: Path | None = None,
    json_file: Path | None = None,
) -> FilesComparison:
    """Compares score files: columns `user`, `label`, `score` and optionally `weight`.

    Args:
        files: An arm each, the control first; see `find_arms` for several seeds.
        slices: Columns of the first file to slice by.
        metrics: Names as `find_metrics` takes them.
        key: The column that joins rows; see `read_scores`.
        multiplicity: How p values of slices are corrected.
        num_resamples: Draws of the users.
        confidence: Of the intervals.
        report: HTML file to write.
        json_file: JSON file to write.

    Returns:
        The comparison.

    Raises:
        DataError: A file cannot be used or is not of the same impressions, or an option does not
            fit.

    Example:
        >>> import tempfile, pandas as pd
        >>> folder = Path(tempfile.mkdtemp())
        >>> users, labels = [n // 4 for n in range(200)], [n % 2 for n in range(200)]
        >>> rows = pd.DataFrame({"user": users, "label": labels})
        >>> rows.assign(score=[n % 7 for n in range(200)]).to_parquet(folder / "old.parquet")
        >>> rows.assign(score=labels).to_parquet(folder / "new.parquet")
        >>> found = compare_files([f"{folder}/old.parquet", f"{folder}/new.parquet"],
        ...                       metrics=["AUC"], num_resamples=100)
        >>> found.comparison.arms["new"]["AUC"].outcome
        'better'
    """
    try:
        find_metrics(metrics)
    except ValueError as error:
        raise DataError(str(error)) from error
    arms = find_arms(files)
    scores = read_scores(arms, slices, key)
    _logger.info("%s impressions of %d arms", f"{scores.labels.size:,}", len(arms))
    try:
        comparison = compare_arms(
            scores.labels,
            scores.users,
            scores.scores,
            control=next(iter(arms)),
            metrics=metrics,
            weights=scores.weights,
            num_resamples=num_resamples,
            confidence=confidence,
            slices=scores.slices,
            multiplicity=multiplicity,
        )
    except ValueError as error:
        raise DataError(f"{scores.files[next(iter(arms))][0]} and others: {error}") from error
    found = FilesComparison(scores, comparison)
    if report is not None:
        with atomic_file(report) as aside:
            aside.write_text(found.to_html(), encoding="utf-8")
    if json_file is not None:
        with atomic_file(json_file) as aside:
            text = json.dumps(found.to_dict(), indent=2, allow_nan=False)
            aside.write_text(text, encoding="utf-8")
    return found
