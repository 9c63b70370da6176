"""Figures of an A/B, for notebooks and reports; pure functions that need matplotlib.

They build `Figure` objects directly, without pyplot, so they neither open windows nor touch global
state. All take plain results and return a figure 10 inches wide.
"""

from collections.abc import Hashable, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from seqdenoise.evaluation.compare import Comparison, MetricComparison, Outcome

Run = tuple[str, Hashable]
"""An arm's name and a seed."""

# From the Okabe-Ito palette, which readers with any colour vision can tell apart.
_OUTCOME_COLORS: dict[Outcome, str] = {
    "better": "#0072B2",
    "worse": "#D55E00",
    "cannot tell": "#4D4D4D",
}
_ARM_COLORS = ("#7F7F7F", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_WIDTH = 10.0  # inches


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def _grid(num_panels: int, height: float, columns: int) -> tuple[Figure, list[Axes]]:
    columns = min(columns, num_panels)
    rows = -(-num_panels // columns)
    figure = Figure(figsize=(_WIDTH, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for unused in panels[num_panels:]:
        unused.remove()
    return figure, panels[:num_panels]


def _draw_differences(axes: Axes, metric: MetricComparison, names: Sequence[str]) -> None:
    color = _OUTCOME_COLORS[metric.outcome]
    reach = metric.detectable_effect
    axes.axvspan(-reach, reach, color="#000000", alpha=0.06, linewidth=0)
    axes.axvline(0, color="black", linewidth=0.8)
    for row, (seed, name) in enumerate(zip(metric.seeds, names, strict=True)):
        axes.errorbar(
            seed.difference,
            row,
            xerr=[[seed.difference - seed.low], [seed.high - seed.difference]],
            fmt="o",
            color="#7F7F7F",
            markersize=5,
            linewidth=1.2,
            label=name,
        )
    last = len(names) + 0.25
    axes.errorbar(
        metric.difference,
        last,
        xerr=[[metric.difference - metric.low], [metric.high - metric.difference]],
        fmt="D",
        color=color,
        markersize=7,
        linewidth=2.5,
        capsize=4,
        label="all seeds",
    )
    axes.set_yticks([*range(len(names)), last], [*names, "all seeds"])
    axes.set_ylim(last + 0.6, -0.6)
    axes.set_title(f"{metric.metric}: {metric.outcome}", color=color, fontsize=11, loc="left")
    axes.set_xlabel(f"difference in {metric.metric}, treatment less control", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+.4g}" if x else "0"))
    _plain(axes)


def seed_differences(comparison: Comparison, seeds: Sequence[Hashable] | None = None) -> Figure:
    """The difference of every seed and of all, with intervals; one panel a metric.

    A seed's interval covers the spread over users for its two models; that of all seeds covers
    users and seeds. Shaded: differences too small for this A/B to find with 80 % power.

    Args:
        comparison: The result to draw.
        seeds: The seeds' names in the comparison's order; 0, 1, ... where None.

    Returns:
        The figure.

    Raises:
        ValueError: Another number of names than of seeds.
    """
    names = list(range(comparison.num_seeds)) if seeds is None else list(seeds)
    if len(names) != comparison.num_seeds:
        raise ValueError(f"`seeds` must hold {comparison.num_seeds} names. Received: {len(names)}")
    labels = [f"seed {name}" for name in names]
    height = 1.6 + 0.32 * len(labels)
    figure, panels = _grid(len(comparison.metrics), height, columns=2)
    for axes, metric in zip(panels, comparison.metrics, strict=True):
        _draw_differences(axes, metric, labels)
    figure.legend(
        handles=[Patch(color="#000000", alpha=0.06, label="too small to find (80 % power)")],
        loc="outside lower right",
        frameon=False,
        fontsize=9,
    )
    return figure


def _colors(runs: Sequence[Run]) -> dict[str, str]:
    arms = list(dict.fromkeys(arm for arm, _ in runs))
    return {arm: _ARM_COLORS[i % len(_ARM_COLORS)] for i, arm in enumerate(arms)}


def _draw_curves(
    axes: Axes, histories: Mapping[Run, pd.DataFrame], column: str, *, mark_best: bool
) -> None:
    colors = _colors(list(histories))
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
            label=f"{arm}, seed {seed}",
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
    _plain(axes)


def _columns(histories: Mapping[Run, pd.DataFrame]) -> list[str]:
    return sorted({str(name) for history in histories.values() for name in history})


def _arm_legend(figure: Figure, colors: Mapping[str, str], note: str = "") -> None:
    handles = [
        Line2D([], [], color=color, marker=".", label=f"{arm} (a line a seed)")
        for arm, color in colors.items()
    ]
    if note:
        handles.append(Line2D([], [], color="#7F7F7F", marker="o", linestyle="", label=note))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9
    )


def learning_curves(
    histories: Mapping[Run, pd.DataFrame],
    columns: Sequence[str] = ("loss", "valid_auc"),
    best: str = "valid_auc",
) -> Figure:
    """Training histories of all runs, one panel a column, coloured by arm.

    Args:
        histories: (arm, seed) -> a table with `epoch` and the columns.
        columns: What to draw; a run without a column is left out of its panel.
        best: The column whose largest value is marked, where the checkpoint was taken.

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
    figure, panels = _grid(len(columns), 3.4, columns=2)
    for axes, column in zip(panels, columns, strict=True):
        _draw_curves(axes, histories, column, mark_best=column == best)
        axes.set_title(column, fontsize=11, loc="left")
    _arm_legend(figure, _colors(list(histories)), f"highest {best}" if best in columns else "")
    return figure


def denoiser_types(histories: Mapping[Run, pd.DataFrame]) -> list[str]:
    """The sequence types that have denoiser metrics in any history, sorted."""
    parts = [name.split("/") for name in _columns(histories)]
    return sorted({part[1] for part in parts if part[0] == "denoiser" and len(part) == 3})


def denoiser_curves(
    histories: Mapping[Run, pd.DataFrame],
    metrics: Sequence[str] = ("loss", "alignment", "uniformity", "effective_rank"),
) -> Figure:
    """The denoiser's own metrics by epoch: a row a sequence type, a column a metric.

    Columns `denoiser/<type>/<metric>` are drawn of the runs that have them. An effective rank that
    falls towards 1 is a collapse of the representation.

    Args:
        histories: (arm, seed) -> a table with `epoch` and the columns.
        metrics: The columns' last parts.

    Returns:
        The figure.

    Raises:
        ValueError: No history has a denoiser metric.
    """
    types = denoiser_types(histories)
    if not types:
        raise ValueError(
            f"no history has a column `denoiser/<type>/<metric>`. Received: {_columns(histories)}"
        )
    figure, panels = _grid(len(types) * len(metrics), 2.3, columns=len(metrics))
    cells = [(kind, metric) for kind in types for metric in metrics]
    for axes, (kind, metric) in zip(panels, cells, strict=True):
        _draw_curves(axes, histories, f"denoiser/{kind}/{metric}", mark_best=False)
        axes.set_title(f"{kind}: {metric.replace('_', ' ')}", fontsize=10, loc="left")
        if kind != types[-1]:
            axes.set_xlabel("")
    drawn = {arm for (arm, _), history in histories.items() if denoiser_types({(arm, 0): history})}
    colors = _colors(list(histories))
    _arm_legend(figure, {arm: color for arm, color in colors.items() if arm in drawn})
    return figure
