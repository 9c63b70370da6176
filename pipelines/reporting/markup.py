"""Pieces of HTML in which every string is text."""

import html
from collections.abc import Iterable, Sequence


def text(value: object) -> str:
    """A value as text of a page."""
    return html.escape(str(value))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, words: Sequence[int]) -> str:
    """A table that scrolls on a narrow page.

    Args:
        head: The columns' names.
        rows: Cells, all text.
        words: The columns that hold words; the others hold numbers.

    Returns:
        HTML.
    """

    def line(tag: str, cells: Sequence[object]) -> str:
        parts = [
            f"<{tag}>{text(cell)}</{tag}>"
            if column in words
            else f'<{tag} class="number">{text(cell)}</{tag}>'
            for column, cell in enumerate(cells)
        ]
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f'<div class="wide"><table><thead>{line("th", head)}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def figure(drawing: str, caption: str = "") -> str:
    """A drawing with an optional caption."""
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return f"<figure>{below}{drawing}</figure>"


def panels(figures: Iterable[str]) -> str:
    """Figures beside one another where there is room."""
    return f'<div class="panels">{"".join(figures)}</div>'


def details(summary: str, content: str) -> str:
    """What a reader opens if it is wanted."""
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


def section(name: str, title: str, content: str) -> str:
    """A part of the page; an empty one where there is no content."""
    return f'<section id="{name}"><h2>{text(title)}</h2>{content}</section>' if content else ""
