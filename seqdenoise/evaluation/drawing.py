"""What all figures of an evaluation share: sizes, colours, panels, legends, names as plain text."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from seqdenoise.evaluation.results import Outcome

Run = tuple[str, Any]
"""An arm's name and a seed."""

WIDTH = 10.0  # inches
_LONGEST_NAME = 28
# A legend's room: letters to the inch, and what its lines take, in letters.
_LETTERS, _HANDLE = 14.0, 9

# From the Okabe-Ito palette, which readers with any colour vision can tell apart.
OUTCOME_COLORS: dict[Outcome, str] = {
    "better": "#0072B2",
    "worse": "#D55E00",
    "cannot tell": "#4D4D4D",
}
ARM_COLORS = ("#7F7F7F", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")

# A decorator: a `$` in a name from the data is no formula.
plain_text = mpl.rc_context({"text.parse_math": False})


def short(name: object) -> str:
    """A name from the data on one line, cut where it is long."""
    text = " ".join(str(name).split())
    text = f" {text}" if text.startswith("_") else text  # which would keep it out of a legend
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}\u2026"


def plain(axes: Axes) -> None:
    """Takes away what carries nothing."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def grid(num_panels: int, height: float, columns: int, width: float) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, fewer beside one another where it is narrow."""
    columns = min(max(round(columns * width / WIDTH), 1), num_panels)
    rows = -(-num_panels // columns)
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for unused in panels[num_panels:]:
        unused.remove()
    return figure, panels[:num_panels]


def legend(figure: Figure, handles: Sequence[Line2D | Patch]) -> None:
    """A legend below all panels."""
    longest = max(len(str(handle.get_label())) for handle in handles) + _HANDLE
    fitting = int(figure.get_size_inches()[0] * _LETTERS / longest)
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(max(fitting, 1), len(handles)),
        frameon=False,
        fontsize=9,
    )


def arm_colors(runs: Sequence[Run]) -> dict[str, str]:
    """A colour an arm, in the order in which they first occur."""
    arms = list(dict.fromkeys(arm for arm, _ in runs))
    return {arm: ARM_COLORS[i % len(ARM_COLORS)] for i, arm in enumerate(arms)}


def arm_legend(figure: Figure, colors: Mapping[str, str], note: str = "") -> None:
    """A legend of arms whose seeds are a line each."""
    handles = [
        Line2D([], [], color=color, marker=".", label=f"{short(arm)} (a line a seed)")
        for arm, color in colors.items()
    ]
    if note:
        handles.append(Line2D([], [], color="#7F7F7F", marker="o", linestyle="", label=note))
    legend(figure, handles)
