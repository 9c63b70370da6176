"""A comparison in words, as a Markdown table, and as plain data for JSON."""

import math
from dataclasses import asdict
from typing import Any

from seqdenoise.evaluation.results import (
    ArmsComparison,
    Comparison,
    MetricComparison,
    SliceComparison,
    SliceMetric,
)


def _times(factor: float) -> str:
    """A factor of at least 1 rounded up to two figures: 1.23 -> "1.3", 1201 -> "1,300"."""
    step = 10.0 ** (math.floor(math.log10(factor)) - 1)
    # The subtraction keeps 1.3 itself from being rounded up to 1.4 by its binary error.
    rounded = math.ceil(factor / step - 1e-9) * step
    return f"{rounded:.1f}" if rounded < 9.95 else f"{rounded:,.0f}"


def verdict(metric: MetricComparison) -> str:
    """The outcome in words: "better", "worse", or "cannot tell" and what it would take.

    Args:
        metric: One metric of a comparison.

    Returns:
        A phrase without a full stop, for instance "cannot tell: about 3.3 times this many users, or
        7 seeds, would be needed to settle a difference this size". "Settle" means: to find a true
        difference as large as the measured one with 80 % power.
    """
    if metric.outcome != "cannot tell":
        return metric.outcome
    if metric.difference == 0:
        return "cannot tell: no difference was measured"
    needed = "would be needed to settle a difference this size"
    one_seed = len(metric.seeds) == 1
    if metric.users_needed is not None:
        users = f"about {_times(metric.users_needed)} times this many users"
        if metric.seeds_needed is not None:
            return f"cannot tell: {users}, or {metric.seeds_needed:,} seeds, {needed}"
        also = "and more than one seed" if one_seed else "(more seeds alone would not do)"
        return f"cannot tell: {users} {also} {needed}"
    if metric.seeds_needed is not None:
        return (
            f"cannot tell: {metric.seeds_needed:,} seeds {needed} (more users alone would not do)"
        )
    if metric.both_needed is not None:
        factor, num_seeds = metric.both_needed
        return (
            f"cannot tell: about {_times(factor)} times this many users with {num_seeds} seeds "
            f"{needed} (neither alone would do)"
        )
    return "cannot tell: no practical number of users and seeds would settle a difference this size"


def _percent(confidence: float) -> str:
    return f"{100 * confidence:.6g} %"


def headline(comparison: Comparison) -> str:
    """One line a metric: its name, the verdict, the difference and its interval.

    Returns:
        For instance "AUC: better, +0.00213 (95 % interval +0.00080 to +0.00346)", joined by line
        breaks; then the notes, one a line.
    """
    lines = [
        f"{m.metric}: {verdict(m)}; {m.difference:+.5f} "
        f"({_percent(comparison.confidence)} interval {m.low:+.5f} to {m.high:+.5f})"
        for m in comparison.metrics
    ]
    return "\n".join([*lines, *(f"Note: {note}" for note in comparison.notes)])


def to_markdown(comparison: Comparison) -> str:
    """The table of a comparison: a row a metric, then a line on what it covers, then the notes.

    Returns:
        Markdown that ends with a line break. Differences are treatment less control, so those of
        losses and errors are better below 0; the detectable effect is the true difference found
        with 80 % power.
    """
    interval = f"{_percent(comparison.confidence)} interval"
    header = [
        "metric",
        "control",
        "treatment",
        "difference",
        interval,
        "detectable effect",
        "verdict",
    ]
    rows = [
        [
            m.metric if m.larger_is_better else f"{m.metric} (smaller is better)",
            f"{m.control:.5f}",
            f"{m.treatment:.5f}",
            f"{m.difference:+.5f}",
            f"{m.low:+.5f} to {m.high:+.5f}",
            f"{m.detectable_effect:.5f}",
            verdict(m),
        ]
        for m in comparison.metrics
    ]
    align = [":---", "---:", "---:", "---:", ":---:", "---:", ":---"]
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, align, *rows)]
    seeds = f"{comparison.num_seeds} seed" + ("s" if comparison.num_seeds > 1 else "")
    lines += [
        "",
        f"{comparison.num_rows:,} impressions of {comparison.num_users:,} users, {seeds}, "
        f"{comparison.num_resamples:,} draws of the users.",
    ]
    for note in comparison.notes:
        lines += ["", f"Note: {note}"]
    return "\n".join(lines) + "\n"


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """Everything in a comparison, and each verdict in words, as plain data.

    Returns:
        Dicts, lists, strings, ints, finite floats and None only: `json.dumps` with
        `allow_nan=False` takes it, and reading it back gives an equal object.
    """
    plain = asdict(comparison)
    plain["notes"] = list(comparison.notes)
    plain["metrics"] = [_metric_dict(metric) for metric in comparison.metrics]
    return plain


def _metric_dict(metric: MetricComparison) -> dict[str, Any]:
    entry = asdict(metric)
    entry["seeds"] = list(entry["seeds"])
    entry["both_needed"] = entry["both_needed"] and list(entry["both_needed"])
    entry["verdict"] = verdict(metric)
    return entry


def arms_to_dict(comparison: ArmsComparison) -> dict[str, Any]:
    """`to_dict` of every treatment by its name, and the slices, as plain data.

    Returns:
        What `json.dumps` with `allow_nan=False` takes; reading it back gives an equal object.
    """

    def of_slice(part: SliceComparison) -> dict[str, Any]:
        plain: dict[str, Any] = {
            name: getattr(part, name) for name in ("value", "num_rows", "num_users")
        }
        plain["arms"] = {
            arm: [
                _metric_dict(entry.comparison)
                | {"adjusted_p_value": entry.adjusted_p_value, "corrected_outcome": entry.outcome}
                for entry in entries
            ]
            for arm, entries in part.arms.items()
        }
        return plain

    return {
        "control": comparison.control,
        "arms": {arm: to_dict(one) for arm, one in comparison.arms.items()},
        "multiplicity": comparison.multiplicity,
        "slices": {name: [*map(of_slice, parts)] for name, parts in comparison.slices.items()},
        "notes": list(comparison.notes),
    }


_CORRECTION = {"holm": "Holm", "benjamini-hochberg": "Benjamini-Hochberg"}


def slices_to_markdown(comparison: ArmsComparison, treatment: str, metric: str) -> str:
    """The table of one treatment's metric in all slices that define it, a row a value.

    Args:
        comparison: With slices.
        treatment: One of its treatments.
        metric: The metric's name.

    Returns:
        Markdown that ends with a line break, the correction stated below the table.
    """
    rows: list[tuple[SliceComparison, SliceMetric]] = [
        (part, entry)
        for parts in comparison.slices.values()
        for part in parts
        for entry in part.arms[treatment]
        if entry.comparison.metric == metric
    ]
    interval = f"{_percent(comparison.arms[treatment].confidence)} interval"
    lines = [
        f"| slice | value | impressions | users | control | difference in {metric} | {interval} "
        "| corrected p | verdict |",
        "| :--- | :--- | ---: | ---: | ---: | ---: | :---: | ---: | :--- |",
    ]
    for part, entry in rows:
        one = entry.comparison
        lines.append(
            f"| {_cell(part.slice)} | {_cell(part.value)} | {part.num_rows:,} "
            f"| {part.num_users:,} | {one.control:.5f} | {one.difference:+.5f} "
            f"| {one.low:+.5f} to {one.high:+.5f} | {entry.adjusted_p_value:.2g} "
            f"| {entry.outcome} |"
        )
    lines += [
        "",
        f"p values and verdicts are corrected over these {len(rows)} slices by "
        f"{_CORRECTION[comparison.multiplicity]}; the intervals are each slice's own.",
    ]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    """A value from the data that stays inside its cell of a Markdown table."""
    return " ".join(str(value).replace("\\", "\\\\").replace("|", "\\|").split())
