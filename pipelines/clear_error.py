"""How a command of ours ends on bad input."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from pipelines.config import ConfigError
from pipelines.disk_space import is_full
from pipelines.job_errors import JobError
from seqdenoise.errors import DataError


@contextmanager
def one_clear_error() -> Iterator[None]:
    """Turns an error that a user can do something about into one line and exit code 2."""
    try:
        yield
    except (ConfigError, DataError, JobError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    except OSError as error:
        if not is_full(error):
            raise
        place = error.filename or "the disk"
        print(
            f"error: {place}: expected room to write. Received: {error.strerror}", file=sys.stderr
        )
        raise typer.Exit(2) from error
