"""What a job says when a disk is full."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.job_errors import DiskFullError

# The last one: the process may write no larger file (`ulimit -f`).
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_full(error: OSError) -> bool:
    """Whether an error says that there was no room to write."""
    return error.errno in _NO_ROOM


@contextmanager
def needs_room(what: str, place: Path, then: str) -> Iterator[None]:
    """Put around what writes: a full disk ends it in one sentence.

    Args:
        what: What is written.
        place: Into which file or folder.
        then: What is kept, and what running again will do.

    Raises:
        DiskFullError: There was no room.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or not is_full(error):
            raise
        there = next(path for path in [place, *place.resolve().parents] if path.exists())
        received = f"{os.strerror(error.errno)}, {shutil.disk_usage(there).free:,} bytes free"
        raise DiskFullError(
            f"{place}: expected room for {what}. Received: {received}. {then}"
        ) from error
