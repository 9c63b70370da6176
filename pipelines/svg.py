"""Figures as SVG: pieces of a page, in the page's own colours, or files that stand alone."""

import html
import io
import re
import warnings
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from seqdenoise.data.atomic import atomic_file

_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
# Colours that a dark page has to change, as variables of the page's style.
_COLORS = {
    "#000000": "currentColor",
    "#ffffff": "var(--paper)",
    "#0072b2": "var(--blue)",
    "#d55e00": "var(--red)",
    "#4d4d4d": "var(--neutral)",
    "#7f7f7f": "var(--grey)",
    "#009e73": "var(--green)",
    "#cc79a7": "var(--pink)",
    "#e69f00": "var(--yellow)",
}


def _settings() -> AbstractContextManager[None]:
    """Letters stay letters, and the same figure gives the same bytes."""
    return mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "seqdenoise", "text.parse_math": False}
    )


def _in_page_colors(tag: re.Match[str]) -> str:
    text = tag[0]
    for color, variable in _COLORS.items():
        text = text.replace(color, variable)
    return text


def to_svg(figure: Figure, label: str) -> str:
    """A figure as an `svg` element for a page, in the page's own colours and width.

    The page's style has to define the colours that `_COLORS` names and the figure uses.

    Args:
        figure: The figure.
        label: What it shows, for those who cannot see it.

    Returns:
        The element.
    """
    buffer = io.StringIO()
    with _settings(), warnings.catch_warnings():
        # Names may be of any script; the reader's own fonts draw them.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    # The groups of every figure have the same names, and a page may have a name once.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    # Only within tags: what is written stays as it is.
    svg = re.sub(r"<[^>]*>", _in_page_colors, svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)


def write_svg(figure: Figure, output: Path) -> None:
    """Writes a figure as a file that stands alone, on white, whole or not at all.

    Args:
        figure: The figure.
        output: The file; its folder is made where missing.
    """
    with atomic_file(output) as aside, _settings():
        figure.savefig(aside, format="svg", facecolor="white", metadata=_NO_METADATA)
