"""The figure of `bench scaling`; a pure function."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

# From the Okabe-Ito palette, which readers with any colour vision can tell apart.
_STYLES = (("#4D4D4D", "o"), ("#0072B2", "s"), ("#D55E00", "D"))
_COSTS = {"seconds": ("time of a step, ms", 1000.0), "megabytes": ("memory of a step, MB", 1.0)}
_PANEL = (2.6, 2.6)  # inches


def _draw(axes: Axes, axis: Mapping[str, Any], cost: str) -> None:
    sizes, scale = np.array(axis["sizes"]), _COSTS[cost][1]
    texts = []
    for (name, costs), (color, marker) in zip(axis[cost].items(), _STYLES, strict=True):
        costs = np.array(costs)
        known = costs > 0
        axes.plot(sizes[known], scale * costs[known], marker, color=color, markersize=4)
        if cost == "seconds":
            low, high = scale * np.array(axis["seconds_ranges"][name])[known].T
            # What is below zero has no place on a logarithmic axis.
            low = np.where(low > 0, low, scale * costs[known])
            axes.vlines(sizes[known], low, high, color=color, linewidth=1)
        law = axis["fits"][cost][name]
        if law is None:
            continue
        ends = np.array([sizes[0], sizes[-1]], np.float64)
        line = scale * law["scale"] * ends ** law["exponent"]
        axes.plot(ends, line, color=color, linewidth=1.2, linestyle=(0, (4, 2)))
        texts.append((f"{law['exponent']:.2f}", color))
    for place, (text, color) in enumerate(texts):
        axes.text(
            0.04 + 0.17 * place, 0.97, text, color=color, fontsize=9,
            va="top", transform=axes.transAxes,
        )  # fmt: skip


def _decorate(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="x", rotation=45 if len(str(sizes[-1])) > 3 else 0)


def scaling_figure(report: Mapping[str, Any]) -> Figure:
    """Costs of a step with their power laws, on logarithmic axes; one column a size.

    The numbers in a panel are the exponents, in the colours of the points; bars are the lowest and
    highest round. A difference that is not above zero is left out.

    Args:
        report: What `pipelines.bench_scaling.bench_scaling` measured.

    Returns:
        The figure.
    """
    axes_of = report["axes"]
    costs = [cost for cost in _COSTS if all(cost in axis for axis in axes_of.values())]
    width, height = _PANEL
    figure = Figure(figsize=(width * len(axes_of), height * len(costs) + 0.5), layout="constrained")
    panels = figure.subplots(len(costs), len(axes_of), squeeze=False, sharex="col", sharey="row")
    for row, cost in zip(panels, costs, strict=True):
        for axes, axis in zip(row, axes_of.values(), strict=True):
            _decorate(axes, axis["sizes"])
            _draw(axes, axis, cost)
            # Room for the exponents.
            axes.margins(y=0.15)
        row[0].set_ylabel(_COSTS[cost][0], fontsize=9)
    for axes, axis in zip(panels[-1], axes_of.values(), strict=True):
        axes.set_xlabel(axis["label"], fontsize=9)
    names = next(iter(axes_of.values()))["seconds"]
    figure.legend(
        handles=[
            Line2D([], [], color=color, marker=marker, linestyle=(0, (4, 2)), label=name)
            for name, (color, marker) in zip(names, _STYLES, strict=True)
        ],
        loc="outside lower center",
        ncols=len(_STYLES),
        frameon=False,
        fontsize=9,
    )
    return figure
