"""A comparison in words, as a Markdown table, and as plain data for JSON."""

import math
from dataclasses import asdict
from typing import Any

from seqdenoise.evaluation.compare import Comparison, MetricComparison


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
        Markdown that ends with a line break. Differences are treatment less control; the detectable
        effect is the true difference found with 80 % power.
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
            m.metric,
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
    for key in ("metrics", "notes"):
        plain[key] = list(plain[key])
    for entry, metric in zip(plain["metrics"], comparison.metrics, strict=True):
        entry["seeds"] = list(entry["seeds"])
        entry["both_needed"] = entry["both_needed"] and list(entry["both_needed"])
        entry["verdict"] = verdict(metric)
    return plain
