"""The `bench scaling` job: how time and memory of a training step grow with what is in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.bench_machine import described
from pipelines.config import ConfigError
from pipelines.contest import Contest, run_contest
from pipelines.json_report import write_json_report
from pipelines.power_law import fit_power_law
from pipelines.scaling_figure import scaling_figure
from pipelines.step_contenders import BARE, CONTENDERS, PLUGGED
from pipelines.svg import write_svg

ADDED = "added by the plug-in"
AXES = {
    "num_rows": "rows of the batch, B",
    "length": "slots of a sequence, L",
    "num_types": "sequence types",
    "num_fields": "fields of an event",
}
BASE = {"num_rows": 1024, "length": 50, "num_types": 3, "num_fields": 2}
SIZES: dict[str, tuple[int, ...]] = {
    "num_rows": (256, 512, 1024, 2048, 4096, 8192),
    "length": (10, 25, 50, 100, 200),
    "num_types": (1, 2, 3, 4, 6, 8),
    "num_fields": (1, 2, 4, 8),
}
_SMALLEST = {"num_rows": 2, "length": 1, "num_types": 1, "num_fields": 1}
_COSTS = ("seconds", "megabytes")
_DISTRIBUTIONS = ("seqdenoise", "tensorflow", "tensorflow-recommenders", "numpy")


def bench_scaling(
    sizes: Mapping[str, Sequence[int]] = SIZES,
    *,
    base: Mapping[str, int] = BASE,
    rounds: int = 7,
    memory: bool = True,
    output: Path | None = None,
    figure: Path | None = None,
) -> dict[str, Any]:
    """Measures training steps with and without the plug-in while one size at a time is changed.

    The ranker and the batches are those of `bench step`. The two run in processes of their own, in
    turns; memory is how far a step raises its process's resident memory, each in a fresh process.
    What the plug-in adds is the difference between the two: where it is small beside the ranker's
    own cost it is noisy, and may be below zero.

    Args:
        sizes: By axis (a key of `AXES`) the sizes to measure, beside that of `base`; an axis that
            is left out, or empty, is not varied.
        base: The size of every axis while another one is varied.
        rounds: Turns of each at each size, at least 1.
        memory: Whether to measure memory.
        output: The JSON file of everything measured.
        figure: The SVG file of the figure.

    Returns:
        `machine`, `versions`, `rounds`, `base`; `results`, by size what
        `pipelines.contest.run_contest` says of both; and `axes`, by axis: `label`, `sizes`,
        `seconds` and `megabytes` (by `BARE`, `PLUGGED` and `ADDED` a number a size),
        `seconds_ranges` (lowest and highest of a round), and `fits`: by cost and contender the
        power law, a `pipelines.power_law.PowerLaw` as a dict, with `exponent_range`, the lowest and
        highest exponent of a round; None where fewer than two costs are above zero. Without memory
        there are no `megabytes`.

    Raises:
        ConfigError: An axis is unknown, or a number is out of range.
        RuntimeError: A step failed.
    """
    unknown = sorted(set(sizes) - set(AXES))
    if unknown:
        raise ConfigError(f"sizes: expected axes of {list(AXES)}. Received: {unknown}")
    axes = {axis: sorted({*sizes[axis], base[axis]}) for axis in AXES if sizes.get(axis)}
    small = {axis: list(sizes[axis]) for axis in axes if min(sizes[axis]) < _SMALLEST[axis]}
    if small or not axes:
        raise ConfigError(
            f"sizes: expected at least one axis, and numbers of at least {_SMALLEST}. "
            f"Received: {small}"
        )
    problems = {
        _key(problem): problem for axis in axes for problem in _problems(axis, axes[axis], base)
    }
    contest = Contest(
        "pipelines.step_contenders", CONTENDERS, BARE, None, _DISTRIBUTIONS, memory_calls=5
    )
    measured = run_contest(contest, problems, rounds=rounds, memory=memory, output=None)
    results = measured["results"]
    failed = {
        f"{name} at {key}": row["error"]
        for key, rows in results.items()
        for name, row in rows.items()
        if "error" in row
    }
    if failed:
        raise RuntimeError(f"expected every step to run. Received: {failed}")
    report = {
        **{name: measured[name] for name in ("machine", "versions", "rounds")},
        "base": dict(base),
        "axes": {
            axis: {
                "label": AXES[axis],
                **_axis(values, [results[_key(one)] for one in _problems(axis, values, base)]),
            }
            for axis, values in axes.items()
        },
        "results": results,
    }
    write_json_report(report, output)
    if figure is not None:
        write_svg(scaling_figure(report), figure)
    return report


def _problems(
    axis: str, values: Sequence[int], base: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    for value in values:
        yield {**base, axis: value}


def _key(problem: Mapping[str, int]) -> str:
    return ", ".join(f"{problem[axis]:,} {axis.removeprefix('num_')}" for axis in AXES)


def _axis(values: Sequence[int], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Costs and fits of one axis, from what the contest says of its sizes in order."""
    turns = {
        name: np.array([row[name]["turns"] for row in rows]) for name in (BARE, PLUGGED)
    }  # [sizes, rounds]
    # Differences within a round, which both met under the same load of the machine.
    turns[ADDED] = turns[PLUGGED] - turns[BARE]
    report: dict[str, Any] = {
        "sizes": list(values),
        "seconds": {name: np.median(of_one, axis=1).tolist() for name, of_one in turns.items()},
        "seconds_ranges": {
            name: np.stack([of_one.min(axis=1), of_one.max(axis=1)], axis=1).tolist()
            for name, of_one in turns.items()
        },
    }
    peaks = {name: [row[name]["peak_megabytes"] for row in rows] for name in (BARE, PLUGGED)}
    if None not in (*peaks[BARE], *peaks[PLUGGED]):
        pairs = zip(peaks[PLUGGED], peaks[BARE], strict=True)
        report["megabytes"] = {**peaks, ADDED: [plugged - bare for plugged, bare in pairs]}
    by_round = {name: of_one.T.tolist() for name, of_one in turns.items()}
    report["fits"] = {
        cost: {
            name: _fit(values, costs, by_round[name] if cost == "seconds" else [])
            for name, costs in report[cost].items()
        }
        for cost in _COSTS
        if cost in report
    }
    return report


def _fit(
    values: Sequence[int], costs: Sequence[float], rounds: Sequence[Sequence[float]]
) -> dict[str, Any] | None:
    law = fit_power_law(values, costs)
    if law is None:
        return None
    fits = [fit_power_law(values, of_round) for of_round in rounds]
    exponents = [fit.exponent for fit in fits if fit is not None]
    return {
        **asdict(law),
        "exponent_range": [min(exponents), max(exponents)] if exponents else None,
    }


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report as Markdown: the exponents, then the costs behind them."""
    costs = [cost for cost in _COSTS if all(cost in axis for axis in report["axes"].values())]
    names = (BARE, PLUGGED, ADDED)
    titles = {"seconds": "time", "megabytes": "memory"}
    lines = [
        "| exponent of | " + " | ".join(f"{titles[cost]}, {n}" for cost in costs for n in names),
        "| :--- |" + " ---: |" * (len(costs) * len(names)),
    ]
    lines[0] += " |"
    for axis in report["axes"].values():
        cells = [_exponent(axis["fits"][cost][name]) for cost in costs for name in names]
        lines.append("| " + " | ".join([axis["label"], *cells]) + " |")
    lines += [
        "",
        "Least squares on logarithms, with the standard error that the points' distance from the "
        "line gives; in parentheses the exponent between the two largest sizes.",
    ]
    for axis in report["axes"].values():
        heads = {"seconds": "ms", "megabytes": "MB"}
        columns = [f"{name}, {heads[cost]}" for cost in costs for name in names]
        lines += [
            "",
            f"| {axis['label']} | " + " | ".join(columns) + " |",
            "| ---: |" + " ---: |" * len(columns),
        ]
        for index, size in enumerate(axis["sizes"]):
            cells = [_cell(axis, cost, name, index) for cost in costs for name in names]
            lines.append(f"| {size:,} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Unless varied: {_key(report['base'])}. Medians of {report['rounds']} turns, with the "
        "lowest and highest difference of a round; memory is what a step takes beside weights and "
        f"batch. {described(report['machine'], report['versions'])}.",
    ]
    return "\n".join(lines) + "\n"


def _exponent(law: Mapping[str, Any] | None) -> str:
    if law is None:
        return ""
    error = law["standard_error"]
    spread = "" if error is None else f" \u00b1 {error:.2f}"
    return f"{law['exponent']:.2f}{spread} ({law['last_exponent']:.2f})"


def _cell(axis: Mapping[str, Any], cost: str, name: str, index: int) -> str:
    value = axis[cost][name][index]
    if cost == "megabytes":
        return f"{value:.0f}"
    if name != ADDED:
        return f"{1000 * value:.1f}"
    low, high = (1000 * end for end in axis["seconds_ranges"][name][index])
    return f"{1000 * value:.1f} ({low:.1f} to {high:.1f})"
