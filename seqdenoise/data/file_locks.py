"""Locks that a killed process cannot keep: the system drops them with the process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def _try_lock(path: Path) -> int | None:
    """An open file descriptor that holds the lock; None where another process has it.

    Raises:
        OSError: The path cannot be opened, or its file system knows no locks.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Holds a lock on a file or folder.

    Args:
        path: The file or folder, which is there.

    Yields:
        Whether it is ours alone: False where another process holds it. True where the system, or
        the file system, knows no locks.
    """
    try:
        descriptor = -1 if fcntl is None else _try_lock(path)
    except OSError:
        descriptor = -1
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None and descriptor >= 0:
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock on a path; also if that cannot be known."""
    if fcntl is None:
        return True
    try:
        descriptor = _try_lock(path)
    except OSError:
        return True
    if descriptor is None:
        return True
    os.close(descriptor)
    return False
