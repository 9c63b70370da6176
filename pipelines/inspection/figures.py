"""Figures of an inspection, each small enough for a phone's width; pure functions.

They build `Figure` objects directly, without pyplot, like `seqdenoise.evaluation.figures`.
"""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pipelines.inspection.before_after import BeforeAfter
from pipelines.inspection.summary import DROPPED_BELOW, NUM_BINS, TypeSummary
from pipelines.inspection.truth import NOISE, REAL, UNKNOWN

# From the Okabe-Ito palette, which readers with any colour vision can tell apart.
KEPT, DROPPED, NEUTRAL = "#0072B2", "#D55E00", "#7F7F7F"
_DISTANCES = (
    ("own", "own", KEPT),
    ("others", "another user's", DROPPED),
    ("pooled", "all users' together", NEUTRAL),
)
_WIDTH = 4.2  # inches


def _axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    return figure, axes


def keep_score_histogram(summary: TypeSummary) -> Figure:
    """How the keep scores of one type are spread, real events against noise where that is known.

    Args:
        summary: Of the type.

    Returns:
        The figure.
    """
    figure, axes = _axes(2.6)
    edges = np.linspace(0, 1, NUM_BINS + 1)
    real, noise, unknown = (summary.histogram[truth] for truth in (REAL, NOISE, UNKNOWN))
    dropped = edges[:-1] < DROPPED_BELOW
    if real.any() or noise.any():
        parts = {"real": (real, KEPT), "noise": (noise, DROPPED)}
        shares = {name: counts / max(counts.sum(), 1) for name, (counts, _) in parts.items()}
        axes.set_ylabel("share of real, of noise", fontsize=9)
    else:
        total = max(unknown.sum(), 1)
        parts = {"dropped": (unknown * dropped, DROPPED), "kept": (unknown * ~dropped, KEPT)}
        shares = {name: counts / total for name, (counts, _) in parts.items()}
        axes.set_ylabel("share of events", fontsize=9)
    for name, (_, color) in parts.items():
        axes.stairs(shares[name], edges, fill=True, color=color, alpha=0.25)
        axes.stairs(shares[name], edges, color=color, linewidth=1.6, label=name)
    axes.axvline(DROPPED_BELOW, color=NEUTRAL, linewidth=1, linestyle="--")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, None)
    axes.set_xlabel("keep score", fontsize=9)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.3g}%"))
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure


def distance_figure(distances: Sequence[BeforeAfter]) -> Figure:
    """Exact distances of pairs of types, before training (open) and after (filled).

    Args:
        distances: One entry a pair.

    Returns:
        The figure.
    """
    # Names come from the data, and a `$` in them is no formula.
    with mpl.rc_context({"text.parse_math": False}):
        figure, axes = _axes(1.3 + 0.75 * len(distances))
        for place, (name, label, color) in zip((-0.22, 0, 0.22), _DISTANCES, strict=True):
            rows = np.arange(len(distances)) + place
            before = [getattr(pair.before, name) for pair in distances]
            after = [getattr(pair.after, name) for pair in distances]
            axes.hlines(rows, before, after, color=color, linewidth=1.4)
            axes.plot(before, rows, "o", color=color, markerfacecolor="none")
            axes.plot(after, rows, "o", color=color, label=label)
        names = [f"{pair.after.noisy} to\n{pair.after.trusted}" for pair in distances]
        axes.set_yticks(range(len(distances)), names)
        axes.set_ylim(len(distances) - 0.5, -0.5)
        axes.set_xlim(0, None)
        axes.set_xlabel("exact distance, before (open) and after training", fontsize=9)
        figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return figure
