"""The parts of a report that say what was found: verdict, intervals, metrics, slices, power."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipelines.reporting.content import Report
from pipelines.reporting.markup import details, figure, panels, table, text
from pipelines.svg import to_svg
from seqdenoise.evaluation.figures import power_curves, seed_differences, slice_differences
from seqdenoise.evaluation.power import detectable_effects, needed, spread_of
from seqdenoise.evaluation.results import ArmsComparison, Comparison, MetricComparison
from seqdenoise.evaluation.verdict import verdict

NARROW = 4.6
"""Inches: so wide is a figure that can be read on a phone."""
# The others of a long list are there to be opened.
_SHOWN_METRICS = 2
_CLASSES = {"better": "better", "worse": "worse", "cannot tell": "unknown"}


def percent(share: float) -> str:
    """A share in percent; number and unit stay on one line."""
    return f"{100 * share:.6g}\u00a0%"


def _interval(low: float, high: float) -> str:
    return f"{low:+.5f} to {high:+.5f}"


def each_treatment(comparison: ArmsComparison, part: Callable[[str, Comparison], str]) -> str:
    """A part of the page for every treatment, under its name where there are several."""
    found = {arm: part(arm, one) for arm, one in comparison.arms.items()}
    if len(found) == 1:
        return "".join(found.values())
    return "".join(f"<h3>{text(arm)}</h3>{content}" for arm, content in found.items() if content)


def _card(metric: MetricComparison, confidence: float) -> str:
    outcome, _, more = verdict(metric).partition(": ")
    smaller = "" if metric.larger_is_better else ", smaller is better"
    more = f'<span class="more">{text(more)}</span>' if more else ""
    return (
        f'<li class="{_CLASSES[metric.outcome]}"><span>{text(metric.metric)}{smaller}</span>'
        f"<strong>{text(outcome)}</strong>"
        f'<span class="difference">{metric.difference:+.5f}</span>'
        f"<span>{percent(confidence)} interval {_interval(metric.low, metric.high)}</span>"
        f"{more}</li>"
    )


def verdicts(report: Report) -> str:
    """The verdict on every treatment and metric in words, and the notes."""
    comparison = report.comparison
    parts = []
    for arm, one in comparison.arms.items():
        cards = "".join(_card(metric, one.confidence) for metric in one.metrics)
        parts.append(
            f'<h3><span class="arm">{text(arm)}</span> against '
            f'<span class="arm">{text(comparison.control)}</span></h3>'
            f'<ul class="cards">{cards}</ul>'
        )
    any_one = next(iter(comparison.arms.values()))
    seeds = f"{any_one.num_seeds} seed" + ("s" if any_one.num_seeds > 1 else "")
    parts.append(
        f"<p>{any_one.num_rows:,} impressions of {any_one.num_users:,} users, {seeds}, "
        f"{any_one.num_resamples:,} draws of the users. Differences are treatment less control; "
        "an interval covers the spread over users, drawn with all their rows, and over seeds.</p>"
    )
    notes = "".join(f"<li>{text(note)}</li>" for note in comparison.notes)
    parts.append(f'<ul class="notes">{notes}</ul>' if notes else "")
    return "".join(parts)


def intervals(report: Report) -> str:
    """The differences of every seed and of all."""

    def of_treatment(arm: str, one: Comparison) -> str:
        return panels(
            figure(
                to_svg(
                    seed_differences(
                        replace(one, metrics=(metric,)),
                        [str(seed) for seed in report.seeds],
                        width=NARROW,
                    ),
                    f"Differences of {arm} in {metric.metric}, seed by seed and of all seeds",
                )
            )
            for metric in one.metrics
        )

    return (
        "<p>A grey bar is one pair of models trained with the same seed, with its interval over "
        "users; the diamond is the mean over seeds with the interval of the verdict. Inside the "
        "band a true difference would be too small for an A/B of this size. DeLong's interval of "
        "the AUC takes rows as independent: where users have many rows it is usually too narrow."
        f"</p>{each_treatment(report.comparison, of_treatment)}"
    )


def metrics(report: Report) -> str:
    """The table of all metrics, and one of the seeds."""

    def of_treatment(arm: str, one: Comparison) -> str:
        head = ["metric", report.comparison.control, arm, "difference"]
        head += [f"{percent(one.confidence)} interval", "p", "detectable effect", "outcome"]
        rows = [
            [
                metric.metric
                if metric.larger_is_better
                else f"{metric.metric} (smaller is better)",
                f"{metric.control:.5f}",
                f"{metric.treatment:.5f}",
                f"{metric.difference:+.5f}",
                _interval(metric.low, metric.high),
                f"{metric.p_value:.2g}",
                f"{metric.detectable_effect:.5f}",
                metric.outcome,
            ]
            for metric in one.metrics
        ]
        by_seed = [
            [
                metric.metric,
                str(name),
                f"{seed.control:.5f}",
                f"{seed.treatment:.5f}",
                f"{seed.difference:+.5f}",
                _interval(seed.low, seed.high),
                "" if seed.delong is None else _interval(seed.delong.low, seed.delong.high),
            ]
            for metric in one.metrics
            for name, seed in zip(report.seeds, metric.seeds, strict=True)
        ]
        seed_head = ["metric", "seed", report.comparison.control, arm, "difference"]
        seed_head += ["interval over users", "DeLong's interval"]
        return table(head, rows, words=(0, 7)) + details(
            "Seed by seed", table(seed_head, by_seed, words=(0, 1))
        )

    return each_treatment(report.comparison, of_treatment)


def _correction(comparison: ArmsComparison, num_values: int) -> str:
    level = percent(1 - next(iter(comparison.arms.values())).confidence)
    if comparison.multiplicity == "holm":
        how = f"Holm's method: the chance of any wrong verdict among them is at most {level}"
    else:
        how = (
            "the method of Benjamini and Hochberg: of the verdicts better and worse, at most "
            f"{level} are wrong on average"
        )
    return (
        f"<p>Each of the {num_values} values is compared on its own rows. p values and verdicts "
        f"are corrected for their number, for each treatment and metric on its own, by {how}. "
        "The intervals are each slice's own and not corrected, so one may lie beside 0 where the "
        "verdict is cannot tell.</p>"
    )


def slices(report: Report) -> str:
    """The differences in every slice, corrected for their number; empty without slices."""
    comparison = report.comparison
    parts = [part for values in comparison.slices.values() for part in values]
    if not parts:
        return ""

    def rows(arm: str, metric: str) -> list[list[object]]:
        return [
            [
                part.slice,
                part.value,
                f"{part.num_rows:,}",
                f"{part.num_users:,}",
                f"{entry.comparison.control:.5f}",
                f"{entry.comparison.difference:+.5f}",
                _interval(entry.comparison.low, entry.comparison.high),
                f"{entry.adjusted_p_value:.2g}",
                entry.outcome,
            ]
            for part in parts
            for entry in part.arms[arm]
            if entry.comparison.metric == metric
        ]

    def of_treatment(arm: str, one: Comparison) -> str:
        head = ["slice", "value", "impressions", "users", comparison.control]
        head += ["difference", "interval", "corrected p", "verdict"]
        found = {metric.metric: rows(arm, metric.metric) for metric in one.metrics}
        known = [metric for metric, of_metric in found.items() if of_metric]
        drawings = [
            figure(
                to_svg(
                    slice_differences(comparison, arm, metric, width=NARROW),
                    f"Differences of {arm} in {metric} by slice",
                ),
                metric,
            )
            for metric in known
        ]
        tables = [
            details(f"Slices by {metric} as a table", table(head, found[metric], words=(0, 1, 8)))
            for metric in known
        ]
        return _first_and_others(drawings, "Slices by other metrics") + "".join(tables)

    return _correction(comparison, len(parts)) + each_treatment(comparison, of_treatment)


def _first_and_others(figures: Sequence[str], title: str) -> str:
    first, others = figures[:_SHOWN_METRICS], figures[_SHOWN_METRICS:]
    return panels(first) + (details(title, panels(others)) if others else "")


def power(report: Report) -> str:
    """What this A/B and larger ones find, and how many more users or seeds it would take."""

    def row(one: Comparison, metric: MetricComparison) -> list[object]:
        spread = spread_of(metric, one.num_users)
        seeds = one.num_seeds
        (larger,) = detectable_effects(spread, [4.0], [seeds], one.confidence).ravel()
        cells: list[object] = [metric.metric, f"{abs(metric.difference):.5f}"]
        cells += [f"{metric.detectable_effect:.5f}", f"{larger:.5f}"]
        if metric.difference == 0:
            return [*cells, "", "", ""]
        more = needed(spread, metric.difference, one.confidence)
        users = "more than a million" if more.users is None else f"{more.users:,.1f}"
        both = "" if more.both is None else f"{more.both[0]:,.1f} x users, {more.both[1]} seeds"
        if more.seeds is not None:
            number = f"{more.seeds:,}"
        else:
            number = "cannot be told from one" if seeds == 1 else "no number"
        return [*cells, users, number, both]

    def of_treatment(arm: str, one: Comparison) -> str:
        drawings = [
            figure(
                to_svg(
                    power_curves(replace(one, metrics=(metric,)), width=NARROW),
                    f"Power of the comparison of {arm} by {metric.metric}",
                )
            )
            for metric in one.metrics
        ]
        head = ["metric", "measured difference", "detectable now", "with 4 x the users"]
        head += ["times the users needed", "or seeds needed", "or both"]
        rows = [row(one, metric) for metric in one.metrics]
        return _first_and_others(drawings, "Power by other metrics") + table(head, rows, words=(0,))

    return (
        "<p>How likely an interval lies beside 0 for a true difference of a given size, by this "
        "A/B and by larger ones. Dotted: 80\u00a0% power, and the measured difference; needed is "
        "what finds a true difference of that size with this power.</p>"
        + each_treatment(report.comparison, of_treatment)
    )
