"""How far a study is: a bar on a terminal, lines of the log elsewhere."""

import logging
import os
import sys
import threading
import time
from contextlib import ExitStack, redirect_stdout
from types import TracebackType

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

logger = logging.getLogger(__name__)


class StudyProgress:
    """Counts the runs of a study, and says how long the others will take.

    A context manager. On a terminal it is a bar, and what else would be printed meanwhile, such as
    Keras' bar of every epoch, is not.

    Args:
        total: Number of runs.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._kept = 0
        self._trained = 0
        self._started = time.monotonic()
        # Runs in processes are told of by another thread than those that are kept.
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._bar: Progress | None = None

    def __enter__(self) -> "StudyProgress":
        if sys.stderr.isatty():
            silence = self._stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            self._stack.enter_context(redirect_stdout(silence))
            columns = [BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")]
            self._bar = self._stack.enter_context(
                Progress(*columns, console=_console_of_the_log(), redirect_stdout=False)
            )
            self._task = self._bar.add_task("runs", total=self._total)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def done(self, *, kept: bool) -> None:
        """Counts a run.

        Args:
            kept: Whether it was there already: it says nothing about the time that others take.
        """
        with self._lock:
            self._kept += kept
            self._trained += not kept
            words = self.in_words()
            if self._bar is not None:
                self._bar.update(self._task, advance=1, description=words)
            elif not kept or self._kept + self._trained == self._total:
                logger.info("%s", words)

    def in_words(self) -> str:
        """For instance "12 of 50 runs done, about 40 minutes left"."""
        done = self._kept + self._trained
        words = f"{done} of {self._total} runs done"
        if not self._trained or done == self._total:
            return words
        seconds = (time.monotonic() - self._started) / self._trained * (self._total - done)
        if seconds < 90:
            return f"{words}, about {seconds:.0f} seconds left"
        if seconds < 90 * 60:
            return f"{words}, about {seconds / 60:.0f} minutes left"
        return f"{words}, about {seconds / 3600:.1f} hours left"


def _console_of_the_log() -> Console:
    """That of the log's handler, if it has one: on another its lines would break the bar."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, RichHandler):
            return handler.console
    return Console(stderr=True)
