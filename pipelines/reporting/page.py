"""The page of a report: self-contained HTML in which everything from the data is text."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from pipelines.reporting import comparisons, runs
from pipelines.reporting.content import Report
from pipelines.reporting.markup import section, text
from seqdenoise.data.atomic import atomic_file
from seqdenoise.evaluation.drawing import Run
from seqdenoise.evaluation.noise_curves import NoiseCurves
from seqdenoise.evaluation.probabilities import CalibrationCurve
from seqdenoise.evaluation.results import ArmsComparison

_STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
_SECTIONS = {
    "verdict": ("Verdict", comparisons.verdicts),
    "intervals": ("Differences and intervals", comparisons.intervals),
    "metrics": ("All metrics", comparisons.metrics),
    "slices": ("Slices", comparisons.slices),
    "calibration": ("Calibration", runs.calibration),
    "noise": ("Planted noise", runs.noise),
    "learning": ("Learning curves", runs.learning),
    "health": ("Health of the representation", runs.health),
    "power": ("How many more users or seeds", comparisons.power),
    "origin": ("Data and configuration", runs.origin),
}


def to_html(report: Report) -> str:
    """The whole page.

    Args:
        report: What it shows.

    Returns:
        An HTML document that loads nothing.
    """
    found = {name: (title, make(report)) for name, (title, make) in _SECTIONS.items()}
    links = "".join(
        f'<a href="#{name}">{text(title)}</a>'
        for name, (title, content) in found.items()
        if content
    )
    body = "\n".join(section(name, title, content) for name, (title, content) in found.items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Offline A/B: {text(report.title)}</title>
<style>{_STYLE}</style>
</head>
<body class="report">
<main>
<h1>Offline A/B</h1>
<p class="muted">{text(report.title)}</p>
<nav>{links}</nav>
{body}
</main>
</body>
</html>
"""


def write_report(
    folder: Path,
    comparison: ArmsComparison,
    *,
    title: str,
    seeds: Sequence[object],
    histories: Mapping[Run, pd.DataFrame] | None = None,
    calibration: Mapping[Run, CalibrationCurve] | None = None,
    noise_curve: NoiseCurves | None = None,
    config: str = "",
    fingerprint: Mapping[str, str] | None = None,
) -> Path:
    """Writes `report.html` into a folder, whole or not at all.

    Args:
        folder: Where to; made if it is not there.
        comparison: Of all arms, with slices.
        title: Of the page, for instance the label.
        seeds: The seeds' names, in the comparison's order.
        histories: By arm and seed, a row an epoch, as `train` writes them.
        calibration: By arm and seed; see `calibrations`.
        noise_curve: Of planted events.
        config: The configuration as text.
        fingerprint: Of the data, by what it says.

    Returns:
        The page.
    """
    report = Report(
        title=title,
        comparison=comparison,
        seeds=seeds,
        calibration=calibration or {},
        noise_curve=noise_curve,
        histories=histories or {},
        config=config,
        fingerprint=fingerprint or {},
    )
    page = folder / "report.html"
    with atomic_file(page) as aside:
        aside.write_text(to_html(report), encoding="utf-8")
    return page
