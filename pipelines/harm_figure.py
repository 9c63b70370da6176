"""The figure of the harm check."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from seqdenoise.evaluation.drawing import (
    OUTCOME_COLORS,
    WIDTH,
    grid,
    legend,
    plain,
    plain_text,
    short,
)


@plain_text
def harm_figure(table: pd.DataFrame, metrics: list[str], *, width: float = WIDTH) -> Figure:
    """Treatment less control in every setting, with its interval; one panel a metric.

    Args:
        table: As `harm_check` returns it.
        metrics: Those to draw; a setting without one has an empty line in its panel.
        width: In inches.

    Returns:
        The figure, coloured by the uncorrected outcomes.
    """
    figure, panels = grid(len(metrics), 1.2 + 0.28 * len(table), 2, width)
    for axes, metric in zip(panels, metrics, strict=True):
        axes.axvline(0, color="black", linewidth=0.8)
        parts = [f"{metric} {part}" for part in ("difference", "low", "high", "outcome")]
        for row, values in enumerate(table[parts].itertuples(index=False, name=None)):
            middle, low, high, outcome = values
            if pd.isna(middle):
                continue
            axes.errorbar(
                middle,
                row,
                xerr=[[middle - low], [high - middle]],
                fmt="o",
                color=OUTCOME_COLORS[outcome],
                markersize=5,
                linewidth=1.6,
            )
        axes.set_yticks(range(len(table)), [short(name) for name in table.index])
        axes.set_ylim(len(table) - 0.4, -0.6)
        axes.set_xlabel(f"difference in {metric}", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        plain(axes)
    handles = [
        Line2D([], [], color=color, marker="o", linewidth=1.6, label=outcome)
        for outcome, color in OUTCOME_COLORS.items()
    ]
    legend(figure, handles)
    return figure
