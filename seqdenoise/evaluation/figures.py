"""Figures of an A/B, for notebooks and reports; pure functions that need matplotlib.

They build `Figure` objects directly, without pyplot, so they open no windows. All take plain
results and return a figure 10 inches wide, or of another width; a narrow one has fewer panels
beside one another. Names come from the data: they are drawn as they are, no formula, and shortened.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from seqdenoise.evaluation.drawing import (
    ARM_COLORS,
    OUTCOME_COLORS,
    WIDTH,
    Run,
    arm_colors,
    arm_legend,
    grid,
    legend,
    plain,
    plain_text,
    short,
)
from seqdenoise.evaluation.noise_curves import NoiseCurves
from seqdenoise.evaluation.power import power_curve, spread_of
from seqdenoise.evaluation.probabilities import CalibrationCurve
from seqdenoise.evaluation.results import (
    ArmsComparison,
    Comparison,
    MetricComparison,
    Outcome,
    SliceMetric,
)
from seqdenoise.evaluation.spread import POWER

_DELONG_COLOR = "#CC79A7"


def _label_differences(axes: Axes, metric: str, *, larger_is_better: bool) -> None:
    which = "" if larger_is_better else "\n(smaller is better)"
    axes.set_xlabel(f"difference in {metric}, treatment less control{which}", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+.4g}" if x else "0"))


def _draw_differences(axes: Axes, metric: MetricComparison, names: Sequence[str]) -> None:
    color = OUTCOME_COLORS[metric.outcome]
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
        if seed.delong is not None:
            axes.hlines(
                row + 0.22,
                seed.delong.low,
                seed.delong.high,
                color=_DELONG_COLOR,
                linewidth=1.6,
                linestyle=(0, (2, 1)),
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
    _label_differences(axes, metric.metric, larger_is_better=metric.larger_is_better)
    plain(axes)


@plain_text
def seed_differences(
    comparison: Comparison, seeds: Sequence[Hashable] | None = None, *, width: float = WIDTH
) -> Figure:
    """The difference of every seed and of all, with intervals; one panel a metric.

    A seed's interval covers the spread over users for its two models; that of all seeds covers
    users and seeds. Under it, dashed, is DeLong's interval of that seed's AUC, where there is one.
    Shaded: differences too small for this A/B to find with 80 % power.

    Args:
        comparison: The result to draw.
        seeds: The seeds' names in the comparison's order; 0, 1, ... where None.
        width: In inches.

    Returns:
        The figure.

    Raises:
        ValueError: Another number of names than of seeds.
    """
    names = list(range(comparison.num_seeds)) if seeds is None else list(seeds)
    if len(names) != comparison.num_seeds:
        raise ValueError(f"`seeds` must hold {comparison.num_seeds} names. Received: {len(names)}")
    labels = [short(f"seed {name}") for name in names]
    height = 1.6 + 0.32 * len(labels)
    figure, panels = grid(len(comparison.metrics), height, 2, width)
    for axes, metric in zip(panels, comparison.metrics, strict=True):
        _draw_differences(axes, metric, labels)
    handles: list[Line2D | Patch] = [
        Patch(color="#000000", alpha=0.06, label="too small to find (80 % power)")
    ]
    if any(seed.delong for metric in comparison.metrics for seed in metric.seeds):
        label = "DeLong, rows as independent"
        handles.append(
            Line2D([], [], color=_DELONG_COLOR, linewidth=1.6, linestyle=(0, (2, 1)), label=label)
        )
    legend(figure, handles)
    return figure


@plain_text
def slice_differences(
    comparison: ArmsComparison, treatment: str, metric: str, *, width: float = WIDTH
) -> Figure:
    """A forest plot: one treatment's difference in one metric for all rows and in every slice.

    The intervals are each slice's own; colours are the verdicts after the correction over slices.

    Args:
        comparison: With slices.
        treatment: One of its treatments.
        metric: The metric's name.
        width: In inches.

    Returns:
        The figure.

    Raises:
        KeyError: No such metric or treatment.
        ValueError: No slice has the metric.
    """
    whole = comparison.arms[treatment][metric]
    rows: list[tuple[str, MetricComparison | None, Outcome]] = [("all rows", whole, whole.outcome)]
    for name, parts in comparison.slices.items():
        found: list[tuple[str, SliceMetric]] = [
            (str(part.value), entry)
            for part in parts
            for entry in part.arms[treatment]
            if entry.comparison.metric == metric
        ]
        if found:
            rows.append((name, None, "cannot tell"))
            rows += [(value, entry.comparison, entry.outcome) for value, entry in found]
    if len(rows) == 1:
        raise ValueError(f"no slice has the {metric}. Received: slices {list(comparison.slices)}")
    figure = Figure(figsize=(width, 1.3 + 0.24 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.axvline(whole.difference, color="#7F7F7F", linewidth=0.8, linestyle="--")
    for row, (_, one, outcome) in enumerate(rows):
        if one is None:
            continue
        axes.errorbar(
            one.difference,
            row,
            xerr=[[one.difference - one.low], [one.high - one.difference]],
            fmt="D" if row == 0 else "o",
            color=OUTCOME_COLORS[outcome],
            markersize=6 if row == 0 else 4.5,
            linewidth=2.2 if row == 0 else 1.4,
        )
    axes.set_yticks(range(len(rows)), [short(name) for name, _, _ in rows])
    for label, (_, one, _) in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if one is None else "normal")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    _label_differences(axes, metric, larger_is_better=whole.larger_is_better)
    plain(axes)
    axes.tick_params(axis="y", length=0)
    legend(
        figure,
        [
            Line2D([], [], color=color, marker="o", linewidth=1.4, label=outcome)
            for outcome, color in OUTCOME_COLORS.items()
        ],
    )
    return figure


@plain_text
def power_curves(comparison: Comparison, *, width: float = WIDTH) -> Figure:
    """How likely true differences are found, by this A/B and by larger ones; a panel a metric.

    Dotted: 80 % power, and the difference measured here.

    Args:
        comparison: The A/B that has been run.
        width: In inches.

    Returns:
        The figure.
    """
    seeds = comparison.num_seeds
    sizes = [(1.0, seeds), (4.0, seeds)]
    # One seed tells nothing of what several would do.
    sizes += [(1.0, 3 * seeds), (4.0, 3 * seeds)] if seeds > 1 else []
    colors = dict(zip(sizes, ARM_COLORS, strict=False))
    figure, panels = grid(len(comparison.metrics), 2.9, 2, width)
    for axes, metric in zip(panels, comparison.metrics, strict=True):
        spread = spread_of(metric, comparison.num_users)
        most = max(1.3 * metric.detectable_effect, 1.1 * abs(metric.difference))
        differences = np.linspace(0, most, 25)
        for size, color in colors.items():
            larger = spread.with_more(*size)
            found = power_curve(larger, differences, comparison.confidence)
            axes.plot(differences, 100 * found, color=color, linewidth=1.8)
        axes.axhline(100 * POWER, color="black", linewidth=0.8, linestyle=":")
        axes.axvline(abs(metric.difference), color="black", linewidth=0.8, linestyle=":")
        axes.set_title(metric.metric, fontsize=11, loc="left")
        axes.set_xlabel(f"true difference in {metric.metric}", fontsize=9)
        axes.set_ylabel("power, %", fontsize=9)
        axes.set_ylim(0, 103)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        plain(axes)
    handles = [
        Line2D(
            [],
            [],
            color=color,
            linewidth=1.8,
            label=f"{users:g} x the users, {number} seed{'s' if number > 1 else ''}",
        )
        for (users, number), color in colors.items()
    ]
    legend(figure, handles)
    return figure


@plain_text
def calibration_curves(
    curves: Mapping[Run, CalibrationCurve], *, width: float = WIDTH / 2
) -> Figure:
    """The share of positives against the mean probability, a point a bin, a line a run.

    On the diagonal probabilities are what they say; below it they are too high.

    Args:
        curves: (arm, seed) -> its bins.
        width: In inches.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(width, 0.85 * min(width, 6.0)), layout="constrained")
    axes = figure.subplots()
    colors = arm_colors(list(curves))
    most = max(max(curve.probability.max(), curve.rate.max()) for curve in curves.values())
    axes.plot([0, most], [0, most], color="black", linewidth=0.8, linestyle="--")
    for (arm, seed), curve in curves.items():
        axes.plot(
            curve.probability,
            curve.rate,
            color=colors[arm],
            linewidth=1.2,
            alpha=0.85,
            marker=".",
            markersize=5,
            label=short(f"{arm}, seed {seed}"),
        )
    axes.set_xlabel("mean probability in the bin", fontsize=9)
    axes.set_ylabel("share of positives", fontsize=9)
    axes.set_xlim(0, None)
    axes.set_ylim(0, None)
    plain(axes)
    arm_legend(figure, colors)
    return figure


@plain_text
def metric_under_noise(curves: NoiseCurves, *, width: float = WIDTH / 2) -> Figure:
    """A metric of every arm against the share of planted events, with intervals.

    Args:
        curves: What to draw.
        width: In inches.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(width, 0.7 * min(width, 6.0)), layout="constrained")
    axes = figure.subplots()
    percent = 100 * np.asarray(curves.levels)
    colors = arm_colors([(arm, 0) for arm in curves.curves])
    for arm, points in curves.curves.items():
        low, high = [point.low for point in points], [point.high for point in points]
        middle = [point.value for point in points]
        axes.fill_between(percent, low, high, color=colors[arm], alpha=0.15, linewidth=0)
        axes.plot(percent, middle, color=colors[arm], marker="o", markersize=4, label=short(arm))
    axes.set_xlabel("noise, % of the events of a history", fontsize=9)
    axes.set_ylabel(curves.metric, fontsize=9)
    plain(axes)
    handles = [
        Line2D([], [], color=color, marker="o", label=short(arm)) for arm, color in colors.items()
    ]
    legend(figure, handles)
    return figure
