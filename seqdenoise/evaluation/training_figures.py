"""Figures of training: learning curves and the plug-in's health; pure functions.

Like `seqdenoise.evaluation.figures`, which says how.
"""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from seqdenoise.evaluation.drawing import (
    WIDTH,
    Run,
    arm_colors,
    arm_legend,
    grid,
    plain,
    plain_text,
    short,
)


def _draw_curves(
    axes: Axes, histories: Mapping[Run, pd.DataFrame], column: str, *, mark_best: bool
) -> None:
    colors = arm_colors(list(histories))
    for (arm, seed), history in histories.items():
        if column not in history:
            continue
        axes.plot(
            history["epoch"],
            history[column],
            color=colors[arm],
            linewidth=1.4,
            alpha=0.85,
            marker=".",
            markersize=4,
            label=short(f"{arm}, seed {seed}"),
        )
        if mark_best and history[column].notna().any():
            best = int(history[column].argmax())
            axes.plot(
                history["epoch"].iloc[best],
                history[column].iloc[best],
                "o",
                color=colors[arm],
                markersize=8,
                markeredgecolor="white",  # dots of several runs often fall on one another
            )
    axes.set_xlabel("epoch", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain(axes)


def _columns(histories: Mapping[Run, pd.DataFrame]) -> list[str]:
    return sorted({str(name) for history in histories.values() for name in history})


@plain_text
def learning_curves(
    histories: Mapping[Run, pd.DataFrame],
    columns: Sequence[str] = ("loss", "valid_auc"),
    best: str = "valid_auc",
    *,
    width: float = WIDTH,
) -> Figure:
    """Training histories of all runs, one panel a column, coloured by arm.

    Args:
        histories: (arm, seed) -> a table with `epoch` and the columns.
        columns: What to draw; a run without a column is left out of its panel.
        best: The column whose largest value is marked, where the checkpoint was taken.
        width: In inches.

    Returns:
        The figure.

    Raises:
        ValueError: No history has one of the columns.
    """
    for column in columns:
        if not any(column in history for history in histories.values()):
            raise ValueError(
                f"no history has the column {column!r}. Received: {len(histories)} histories with "
                f"{_columns(histories)}"
            )
    figure, panels = grid(len(columns), 3.0, 2, width)
    for axes, column in zip(panels, columns, strict=True):
        _draw_curves(axes, histories, column, mark_best=column == best)
        axes.set_title(short(column), fontsize=11, loc="left")
    drawn = {
        arm for (arm, _), history in histories.items() if any(name in history for name in columns)
    }
    colors = {arm: color for arm, color in arm_colors(list(histories)).items() if arm in drawn}
    arm_legend(figure, colors, f"highest {best}" if best in columns else "")
    return figure


def denoiser_types(histories: Mapping[Run, pd.DataFrame]) -> list[str]:
    """The sequence types that have denoiser metrics in any history, sorted."""
    # A type's own name may have slashes.
    parts = [name.partition("/") for name in _columns(histories)]
    types = {rest.rpartition("/")[0] for first, _, rest in parts if first == "denoiser"}
    return sorted(types - {""})


@plain_text
def denoiser_curves(
    histories: Mapping[Run, pd.DataFrame],
    metrics: Sequence[str] = ("loss", "alignment", "uniformity", "effective_rank"),
    types: Sequence[str] | None = None,
    *,
    width: float = WIDTH,
) -> Figure:
    """The denoiser's own metrics by epoch: a row a sequence type, a column a metric.

    Columns `denoiser/<type>/<metric>` are drawn of the runs that have them. An effective rank that
    falls towards 1 is a collapse of the representation.

    Args:
        histories: (arm, seed) -> a table with `epoch` and the columns.
        metrics: The columns' last parts.
        types: Sequence types; all that have denoiser metrics where None.
        width: In inches.

    Returns:
        The figure.

    Raises:
        ValueError: No history has a denoiser metric.
    """
    types = denoiser_types(histories) if types is None else types
    if not types:
        raise ValueError(
            f"no history has a column `denoiser/<type>/<metric>`. Received: {_columns(histories)}"
        )
    figure, panels = grid(len(types) * len(metrics), 2.3, len(metrics), width)
    cells = [(kind, metric) for kind in types for metric in metrics]
    for axes, (kind, metric) in zip(panels, cells, strict=True):
        _draw_curves(axes, histories, f"denoiser/{kind}/{metric}", mark_best=False)
        title = metric.replace("_", " ")
        axes.set_title(f"{short(kind)}: {title}", fontsize=10, loc="left")
        if kind != types[-1]:
            axes.set_xlabel("")
    drawn = {arm for (arm, _), history in histories.items() if denoiser_types({(arm, 0): history})}
    colors = arm_colors(list(histories))
    arm_legend(figure, {arm: color for arm, color in colors.items() if arm in drawn})
    return figure
