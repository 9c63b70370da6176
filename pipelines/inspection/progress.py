"""How far a long pass has come: a bar on a terminal, a few log lines elsewhere."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

logger = logging.getLogger(__name__)


@contextmanager
def progress(what: str, num_rows: int) -> Iterator[Callable[[int], None]]:
    """Shows how many of the rows are done.

    Args:
        what: What is being done, for the reader.
        num_rows: All of them.

    Yields:
        A function to call with the number of rows that were just done.
    """
    console = Console(stderr=True)
    if sys.stderr.isatty():
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task(what, total=num_rows)
            yield lambda rows: bar.advance(task, rows)
        return
    done = 0

    def advance(rows: int) -> None:
        nonlocal done
        tenths = 10 * done // max(num_rows, 1)
        done += rows
        if 10 * done // max(num_rows, 1) > tenths:
            logger.info("%s: %d of %d rows", what, done, num_rows)

    yield advance
