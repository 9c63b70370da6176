"""The code blocks of docs/plugging_in.md, and running them."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "plugging_in.md"

_BLOCK = re.compile(
    r"<!-- block: (?P<name>\w+)"
    r"(?: \| needs: (?P<needs>[^|>]*?))?"
    r"(?: \| runs in: (?P<runs_in>[^|>]*?))? -->\n"
    r"```python\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A code block; one that runs in no generation is a part of others."""

    name: str
    needs: tuple[str, ...]
    runs_in: tuple[str, ...]
    code: str


def _names(listed: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",")) if listed else ()


def read_blocks() -> dict[str, Block]:
    """The blocks by name, in the order of the page."""
    page = PAGE.read_text(encoding="utf-8")
    blocks = [
        Block(
            match["name"],
            _names(match["needs"]),
            _names(match["runs_in"]),
            # Blank lines in front, so that a traceback names the line of the page.
            "\n" * page.count("\n", 0, match.start("code")) + match["code"],
        )
        for match in _BLOCK.finditer(page)
    ]
    if len(blocks) != page.count("```python"):
        raise ValueError(
            f"expected a marker above each of {page.count('```python')} python blocks of {PAGE}. "
            f"Received: {[block.name for block in blocks]}"
        )
    return {block.name: block for block in blocks}


def run_block(name: str) -> dict[str, object]:
    """Runs what a block needs and the block itself; returns the names it leaves."""
    blocks = read_blocks()
    namespace: dict[str, object] = {"__name__": "__main__"}
    for part in (*blocks[name].needs, name):
        exec(compile(blocks[part].code, str(PAGE), "exec"), namespace)
    return namespace
