"""What each benchmark found, in a line: from its report."""

from collections.abc import Mapping
from typing import Any

Report = Mapping[str, Any]

_OURS = "seqdenoise"


def _with_range(ratio: float, ends: tuple[float, float] | list[float], digits: int = 2) -> str:
    low, high = ends
    return f"{ratio:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def of_step(report: Report) -> str:
    """Plugged over bare, by batch size."""
    found = []
    for rows, result in report["results"].items():
        capped = ""
        if (few := result["few_negatives_ratio"]) is not None:
            ends = result["few_negatives_ratio_range"]
            capped = f", with few negatives {_with_range(few, ends)}"
        ratio = _with_range(result["ratio"], result["ratio_range"])
        found.append(f"{int(rows):,} rows {ratio}{capped}")
    return f"a training step with the plug-in, ratio to one without: {'; '.join(found)}"


def of_losses(report: Report) -> str:
    """Each of our own over the matrix products alone, and what memory the largest batch takes."""
    results = report["results"]
    names = [name for name in next(iter(results.values())) if name.startswith(_OURS)]
    parts = []
    for name in names:
        ratios = [
            f"{size} rows {rows[name]['ratio']:.2f}"
            for size, rows in results.items()
            if name in rows
        ]
        parts.append(f"{name}: {', '.join(ratios)}")
    largest, rows = list(results.items())[-1]
    peak = rows[names[0]]["peak_megabytes"] if names[0] in rows else None
    memory = "" if peak is None else f"; {peak:.0f} MB at {largest} rows"
    baseline = report["baseline"]
    return f"loss and gradient, ratio to {baseline}: {'; '.join(parts)}{memory}"


def of_transport(report: Report) -> str:
    """How far behind the fastest of the others is, by size."""
    parts = []
    for size, rows in report["results"].items():
        others = {
            name: row["ratio"]
            for name, row in rows.items()
            if not name.startswith(_OURS) and "ratio" in row
        }
        own = rows[report["baseline"]]["seconds"]
        next_one = ""
        if others:
            name = min(others, key=lambda one: others[one])
            next_one = f", the fastest other ({name}) {others[name]:.1f} times that"
        parts.append(f"{size}: {1000 * own:.3g} ms{next_one}")
    return f"Sinkhorn, loss and gradient: {'; '.join(parts)}"


def of_serving(report: Report) -> str:
    """Stripped over bare: operations, and latency by batch size."""
    parts = []
    for name, result in report["results"].items():
        counts = result["operations"]
        bare, stripped = counts["bare"], counts["stripped"]
        latencies = [
            f"{int(rows):,} rows {_with_range(of['stripped']['ratio'], of['stripped']['interval'])}"
            for rows, of in result["latency"].items()
        ]
        parts.append(
            f"{name}: {stripped:,} operations, bare {bare:,}; latency {', '.join(latencies)}"
        )
    return f"stripped, ratio to bare: {'; '.join(parts)}"


def of_scaling(report: Report) -> str:
    """The exponents of the step, and of what the plug-in adds to it."""
    parts = []
    for axis in report["axes"].values():
        fits = axis["fits"]["seconds"]
        exponents = [
            "none" if fits[name] is None else f"{fits[name]['exponent']:.2f}"
            for name in ("with the plug-in", "added by the plug-in")
        ]
        parts.append(f"{axis['label']} {exponents[0]} (added {exponents[1]})")
    return f"a step's time grows with the power: {'; '.join(parts)}"


def of_metrics(report: Report) -> str:
    """Seconds of AUC and GAUC, and how many times longer scikit-learn takes."""
    parts = []
    for name in ("AUC", "GAUC"):
        row = report["results"][name]
        theirs = f", scikit-learn {row['cpu_ratio']:.3g} times that" if "cpu_ratio" in row else ""
        parts.append(f"{name} {row['cpu_seconds']:.3g} s{theirs}")
    return f"{report['rows']:,} rows: {'; '.join(parts)}"


def of_sequences(report: Report) -> str:
    """Processor seconds and memory of our own, and of the fastest of the others."""
    measured = {name: row for name, row in report["results"].items() if "error" not in row}
    others = {name: row for name, row in measured.items() if not name.startswith(_OURS)}
    shown = [name for name in measured if name.startswith(_OURS)]
    if others:
        shown.append(min(others, key=lambda one: others[one]["cpu_seconds"]))
    parts = [
        f"{name} {measured[name]['cpu_seconds']:.1f} s, {measured[name]['peak_megabytes']:.0f} MB"
        for name in shown
    ]
    return f"{report['events']:,} events to sequences, processor time: {'; '.join(parts)}"


def of_reader(report: Report) -> str:
    """Processor time over decoding alone: ours shuffled, and the fastest of the others."""
    rows = report["results"]
    ours = "seqdenoise, shuffled"
    parts = [f"{ours} {_with_range(rows[ours]['cpu_ratio'], rows[ours]['cpu_ratio_range'])}"]
    others = {
        name: row["cpu_ratio"]
        for name, row in rows.items()
        if not name.startswith((_OURS, "pyarrow")) and "cpu_ratio" in row
    }
    if others:
        name = min(others, key=lambda one: others[one])
        parts.append(f"{name} {others[name]:.2f}")
    return f"reading prepared rows, processor time over decoding alone: {'; '.join(parts)}"
