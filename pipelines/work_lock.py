"""A work folder that one process at a time may use, and that the next one takes up."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.job_errors import FolderInUseError
from seqdenoise.data.atomic import remove_leftovers
from seqdenoise.data.file_locks import lock


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Makes a folder and keeps other processes out of it until the block ends.

    A process that is killed keeps nobody out.

    Args:
        folder: The folder; within the block it may be removed.

    Raises:
        FolderInUseError: Another process is in it.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder) as is_ours:
            if not is_ours:
                raise FolderInUseError(
                    f"{folder}: expected no other process at work. Received: a folder that a "
                    "living process holds; wait for it, or end it"
                )
            # The one before may have removed it between its making and its locking.
            if folder.exists():
                remove_leftovers(folder)
                yield
                return


def clear(folder: Path, stamp: Path) -> None:
    """Empties a folder.

    Args:
        folder: The folder.
        stamp: The file in it that says whose the rest is. It goes first: who is killed meanwhile
            must not leave half of something that looks whole.
    """
    stamp.unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
