"""The page of an inspection: self-contained HTML in which everything from the data is text."""

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.inspection.before_after import BeforeAfter
from pipelines.inspection.figures import distance_figure, keep_score_histogram
from pipelines.inspection.histories import Event, History
from pipelines.inspection.keep_scores import RowCounts
from pipelines.inspection.summary import DROPPED_BELOW, Summary, TypeSummary
from pipelines.inspection.truth import NOISE, REAL
from pipelines.svg import to_svg

_STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
_GATE = {
    True: "The model multiplies every event by its score (the option gate is on).",
    False: "The model itself sees every event whole (the option gate is off).",
}
_TRUTH = {REAL: "real", NOISE: "noise"}


@dataclass(frozen=True)
class Inspection:
    """What the page shows.

    Attributes:
        run: The run's name.
        split: Which prepared rows were judged.
        trusted: What the events were judged by: types, or the candidate.
        settings: The plug-in's options by name.
        counts: Of the rows.
        summary: Of the keep scores.
        distances: Between types.
        histories: By heading.
    """

    run: str
    split: str
    trusted: Sequence[str]
    settings: Mapping[str, Any]
    counts: RowCounts
    summary: Summary
    distances: Sequence[BeforeAfter]
    histories: Mapping[str, Sequence[History]]


def _text(value: object) -> str:
    return html.escape(str(value))


def _percent(share: float) -> str:
    # A number and its unit stay on one line.
    return "none" if math.isnan(share) else f"{100 * share:.1f}\u00a0%"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _words(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def headline(inspection: Inspection) -> str:
    """The findings in plain words.

    Args:
        inspection: What was found.

    Returns:
        One to three sentences, plain text.
    """
    types, auc = inspection.summary.types, inspection.summary.auc
    shares = [
        f"{_percent(of_type.dropped_share)} of {kind} events"
        for kind, of_type in types.items()
        if of_type.judged
    ]
    if not shares:
        return f"No event could be judged by {_words(inspection.trusted)}."
    sentence = (
        f"Judged by {_words(inspection.trusted)}, {_words(shares)} have a keep score below "
        f"{DROPPED_BELOW} and count as dropped."
    )
    if not math.isnan(auc):
        sentence += (
            " Against the truth of this simulated log the keep score has an AUC of "
            f"{auc:.3f}: the chance that it is higher for a real event than for a noise event."
        )
    return sentence


def _tile(value: str, label: str) -> str:
    return f"<li><strong>{_text(value)}</strong><span>{_text(label)}</span></li>"


def _tiles(inspection: Inspection) -> str:
    counts, types = inspection.counts, inspection.summary.types
    tiles = [
        _tile(
            _percent(of_type.dropped_share), f"of {of_type.judged:,} judged {kind} events dropped"
        )
        for kind, of_type in types.items()
    ]
    share = counts.rows_without_trusted / counts.rows if counts.rows else math.nan
    tiles.append(_tile(_percent(share), f"of {counts.rows:,} rows have no trusted event"))
    tiles += [
        _tile(f"{of_type.auc:.3f}", f"AUC of the {kind} events' keep score against the truth")
        for kind, of_type in types.items()
        if not math.isnan(of_type.auc)
    ]
    return f'<ul class="tiles">{"".join(tiles)}</ul>'


def _histogram(kind: str, of_type: TypeSummary) -> str:
    unjudged = of_type.events - of_type.judged
    note = f"{of_type.judged:,} judged"
    note += f", {unjudged:,} more without a trusted event" if unjudged else ""
    label = f"How the keep scores of {kind} events are spread"
    drawing = to_svg(keep_score_histogram(of_type), label) if of_type.judged else ""
    return (
        f"<figure><figcaption>{_text(kind)}</figcaption>"
        f'<div class="muted">{_text(note)}</div>{drawing}</figure>'
    )


def _distance_rows(pair: BeforeAfter) -> str:
    before, after = pair.before, pair.after
    one, other = after.num_events
    kinds = {
        f"own, mean of {after.num_rows:,} users": (before.own, after.own),
        "another user's": (before.others, after.others),
        f"all users' together, {one:,} and {other:,} events": (before.pooled, after.pooled),
    }
    title = f"{after.noisy} to {after.trusted}"
    lines = [f'<tr class="group"><th colspan="3">{_text(title)}</th></tr>']
    lines += [
        f"<tr><td>{_text(name)}</td>"
        f'<td class="number">{_number(start)}</td><td class="number">{_number(end)}</td></tr>'
        for name, (start, end) in kinds.items()
    ]
    return "".join(lines)


def _distances(distances: Sequence[BeforeAfter]) -> str:
    known = [pair for pair in distances if not math.isnan(pair.after.pooled)]
    if not known:
        return "<p>No user drawn has events of both types.</p>"
    rows = "".join(map(_distance_rows, known))
    drawing = to_svg(distance_figure(known), "The distances that the table lists")
    return (
        f'<div class="panels"><figure>{drawing}</figure>'
        '<table><thead><tr><th></th><th class="number">before</th><th class="number">after</th>'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _event(event: Event) -> str:
    fields = "".join(
        f'<span class="field">{_text(name)} {_text(value)}</span>'
        for name, value in event.fields.items()
    )
    title = f' title="{_text(event.moment)} UTC"' if event.moment else ""
    tag = _TRUTH.get(event.truth, "")
    tag = f'<em class="tag {tag}">{tag}</em>' if tag else ""
    score, kind = "", ""
    if event.keep_score is not None:
        kind = " dropped" if event.keep_score < DROPPED_BELOW else " kept"
        width = 100 * min(max(event.keep_score, 0.0), 1.0)
        score = (
            f'<span class="score">{event.keep_score:.2f}</span>'
            f'<span class="bar" style="width:{width:.0f}%"></span>'
        )
    return f'<li class="event{kind}"{title}><b>{_text(event.item)}</b>{fields}{tag}{score}</li>'


def _events(title: str, events: Sequence[Event]) -> str:
    days = [event.moment[:10] for event in events if event.moment]
    span = f"{days[0]} to {days[-1]}" if days else ""
    listed = "".join(map(_event, events))
    return (
        f'<h4>{_text(title)} <span class="muted days">{_text(span)}</span></h4>'
        f'<ul class="events">{listed}</ul>'
    )


def _judged_title(kind: str, events: Sequence[Event]) -> str:
    scores = [event.keep_score for event in events if event.keep_score is not None]
    dropped = sum(score < DROPPED_BELOW for score in scores)
    if len(scores) < len(events):
        found = f"{len(events)}, not judged"
    else:
        found = f"{len(events) - dropped} kept, {dropped} dropped"
    return f"{kind}: {found}"


def _history(history: History) -> str:
    left = _events("candidate", [history.candidate]) + "".join(
        _events(f"{kind} (trusted): {len(events)}", events)
        for kind, events in history.trusted.items()
    )
    right = "".join(
        _events(_judged_title(kind, events), events) for kind, events in history.judged.items()
    )
    shown = f"{history.moment} UTC" if history.moment else ""
    return (
        f'<article class="history"><h3>user {_text(history.user)} '
        f'<span class="muted days">{_text(shown)}</span></h3>'
        f'<div class="sides"><div>{left}</div><div>{right}</div></div></article>'
    )


def _legend(histories: Mapping[str, Sequence[History]]) -> str:
    known = any(
        event.truth in _TRUTH
        for group in histories.values()
        for history in group
        for events in history.judged.values()
        for event in events
    )
    truth = (
        ' <em class="tag real" style="float:none">real</em> and '
        '<em class="tag noise" style="float:none">noise</em> are the truth of this simulated log.'
        if known
        else ""
    )
    kept = _event(Event("item", {}, keep_score=0.9))
    dropped = _event(Event("item", {}, keep_score=0.1))
    return (
        f'<p class="muted">Oldest first. The number and the bar are the keep score.{truth}</p>'
        f'<ul class="legend events">{kept.replace(">item<", ">kept<")}'
        f"{dropped.replace('>item<', '>dropped<')}</ul>"
    )


def _histories(histories: Mapping[str, Sequence[History]]) -> str:
    parts = [_legend(histories)]
    for title, group in histories.items():
        shown = "".join(map(_history, group)) or '<p class="muted">No such user.</p>'
        parts.append(f"<h3>{_text(title)}</h3>{shown}")
    return "".join(parts)


def histories_fragment(histories: Mapping[str, Sequence[History]]) -> str:
    """Histories as a piece of HTML with its style, for a notebook.

    Args:
        histories: By heading.

    Returns:
        HTML.
    """
    return f'<style>{_STYLE}</style><div class="inspection">{_histories(histories)}</div>'


def _settings(settings: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{_text(name)}</td><td>{_text(json.dumps(value))}</td></tr>"
        for name, value in settings.items()
    )
    return f"<details><summary>The plug-in's options</summary><table>{rows}</table></details>"


def to_html(inspection: Inspection) -> str:
    """The whole page.

    Args:
        inspection: What was found.

    Returns:
        An HTML document that loads nothing.
    """
    counts, types = inspection.counts, inspection.summary.types
    histograms = "".join(_histogram(kind, of_type) for kind, of_type in types.items())
    where = f"{inspection.run}, {inspection.split} rows"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What was denoised: {_text(where)}</title>
<style>{_STYLE}</style>
</head>
<body class="inspection">
<main>
<h1>What was denoised</h1>
<p class="muted">{_text(where)}</p>
<p class="verdict">{_text(headline(inspection))}</p>
{_tiles(inspection)}
<p class="muted">An event counts once for every row whose history it is in: {counts.events:,} in
all. In a row without a trusted event nothing can be judged, and every event has the score 1.
{_text(_GATE[bool(inspection.settings.get("gate"))])}</p>
<h2>Keep scores</h2>
<p>How much of an event's mass optimal transport moves to the trusted events of its row, or to
events that those match. What resembles neither sheds its mass and scores low.</p>
<div class="panels">{histograms}</div>
<h2>Distances between types</h2>
<p>Exact optimal transport between the embedded events of two types, cost one less the cosine;
before the first training step and at the best epoch. Where events lie nearer to the trusted
events of their own user than to those of another, the embeddings tell the users apart.</p>
{_distances(inspection.distances)}
<h2>Histories</h2>
{_histories(inspection.histories)}
{_settings(inspection.settings)}
</main>
</body>
</html>
"""
