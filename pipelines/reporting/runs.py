"""The parts of a report about models and data: calibration, noise, training, what it was run on."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pipelines.reporting.comparisons import NARROW, percent
from pipelines.reporting.content import Report
from pipelines.reporting.markup import details, figure, panels, table, text
from pipelines.svg import to_svg
from seqdenoise.evaluation.drawing import Run
from seqdenoise.evaluation.figures import calibration_curves, metric_under_noise
from seqdenoise.evaluation.training_figures import (
    denoiser_curves,
    denoiser_types,
    learning_curves,
)

_HEALTH = ("loss", "alignment", "uniformity", "effective_rank")
_RATIO = "side_gradient_ratio"
_BEST = "valid_auc"


def calibration(report: Report) -> str:
    """Probabilities beside rates; empty where scores are no probabilities."""
    if not report.calibration:
        return ""
    drawing = to_svg(
        calibration_curves(report.calibration, width=NARROW), "Rates against probabilities"
    )
    rows = [
        [
            arm,
            seed,
            f"{np.average(curve.probability, weights=curve.weight):.5f}",
            f"{np.average(curve.rate, weights=curve.weight):.5f}",
            f"{np.average(abs(curve.rate - curve.probability), weights=curve.weight):.5f}",
        ]
        for (arm, seed), curve in report.calibration.items()
    ]
    head = ["arm", "seed", "mean probability", "share of positives", "ECE"]
    return (
        "<p>A point is a bin of rows with about the same probability; all bins have about the "
        "same weight. Below the diagonal probabilities are too high.</p>"
        + panels([figure(drawing), table(head, rows, words=(0, 1))])
    )


def noise(report: Report) -> str:
    """The metric against planted events; empty where none were planted."""
    curves = report.noise_curve
    if curves is None:
        return ""
    drawing = to_svg(
        metric_under_noise(curves, width=NARROW), f"{curves.metric} with planted events"
    )
    rows = [
        [arm, *(f"{one.value:.5f} ({one.low:.5f} to {one.high:.5f})" for one in points)]
        for arm, points in curves.curves.items()
    ]
    compared = [
        [
            arm,
            what,
            f"{one.control:.5f}",
            f"{one.difference:+.5f}",
            f"{one.low:+.5f} to {one.high:+.5f}",
            f"{one.p_value:.2g}",
            one.outcome,
        ]
        for arm in curves.falls
        for what, one in (("fall", curves.falls[arm]), ("area", curves.areas[arm]))
    ]
    interval = f"{percent(curves.confidence)} interval"
    notes = "".join(f"<li>{text(note)}</li>" for note in curves.notes)
    return (
        "<p>Events that nobody did, planted into the histories of the test rows. A curve that "
        "falls more slowly belongs to a model that minds them less. The fall is how much worse "
        "the metric is at the last level than at the first: smaller is better. The area under a "
        "curve is the mean times the range of the noise, and counts a lead without noise too.</p>"
        + panels(
            [
                figure(drawing),
                table(
                    ["arm", "what", curves.control, "difference", interval, "p", "outcome"],
                    compared,
                    words=(0, 1, 6),
                ),
            ]
        )
        + table(["arm", *map(percent, curves.levels)], rows, words=(0,))
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
    )


def _is_in(histories: Mapping[Run, pd.DataFrame], column: str) -> bool:
    return any(column in table for table in histories.values())


def learning(report: Report) -> str:
    """Loss and validation AUC by epoch; empty without histories."""
    drawings = []
    for column in ("loss", _BEST):
        if _is_in(report.histories, column):
            drawing = learning_curves(report.histories, [column], best=_BEST, width=NARROW)
            drawings.append(figure(to_svg(drawing, f"{column} by epoch")))
    if not drawings:
        return ""
    return (
        "<p>The large dot is the epoch with the highest validation AUC, whose weights were kept."
        f"</p>{panels(drawings)}"
    )


def health(report: Report) -> str:
    """The state of the plug-in's representation; empty where no run logged it."""
    types = denoiser_types(report.histories)
    if not types:
        return ""
    drawings = [
        figure(
            to_svg(
                denoiser_curves(report.histories, _HEALTH, [kind], width=NARROW),
                f"The plug-in's metrics for {kind} by epoch",
            ),
            kind,
        )
        for kind in types
    ]
    if _is_in(report.histories, _RATIO):
        drawing = learning_curves(report.histories, [_RATIO], best=_BEST, width=NARROW)
        drawings.append(figure(to_svg(drawing, "Gradient ratio by epoch"), "gradient ratio"))
    head = ["arm", "seed", "type", "alignment", "uniformity", "effective rank", "gradient ratio"]
    rows = [
        [
            arm,
            seed,
            kind,
            *(_at_best(table_, f"denoiser/{kind}/{name}") for name in _HEALTH[1:]),
            _at_best(table_, _RATIO),
        ]
        for (arm, seed), table_ in report.histories.items()
        for kind in denoiser_types({(arm, seed): table_})
    ]
    return (
        "<p>By sequence type. Alignment is the squared distance between two views of a sequence: "
        "small is good. Uniformity is the spread of all vectors over the sphere: more negative is "
        "better. Effective rank is the number of dimensions in use: a fall towards 1 is a "
        "collapse. The gradient ratio is the size of the side loss's gradient on the embeddings, "
        "over that of the ranking loss's.</p>"
        + panels(drawings)
        + details("At the best epoch", table(head, rows, words=(0, 1, 2)))
    )


def _at_best(history: pd.DataFrame, column: str) -> str:
    if column not in history:
        return ""
    row = int(history[_BEST].argmax()) if _BEST in history else len(history) - 1
    return f"{history[column].iloc[row]:.3f}"


def origin(report: Report) -> str:
    """Data and configuration; empty where nothing is known of them."""
    rows = list(report.fingerprint.items())
    parts = [table(["data", ""], rows, words=(0, 1))] if rows else []
    if report.config:
        parts.append(details("Configuration", f"<pre>{text(report.config)}</pre>"))
    return "".join(parts)
