"""Outputs that appear whole or not at all: written aside, then renamed."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _aside(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Same folder, hence same file system: only there is a rename atomic.
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path that replaces `path` when the block ends, and vanishes if it raises.

    Args:
        path: The file to write; its parent folders are created.

    Yields:
        The path to write to.

    Example:
        >>> import tempfile, pathlib
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "out" / "a.txt"
        >>> with atomic_file(target) as aside:
        ...     _ = aside.write_text("whole")
        >>> target.read_text(), [p.name for p in target.parent.iterdir()]
        ('whole', ['a.txt'])
    """
    target = Path(path)
    aside = _aside(target)
    try:
        yield aside
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary folder that replaces `path` when the block ends, vanishing if it raises.

    An existing `path` is moved away first and removed last, so a reader sees the old folder, for an
    instant none, then the new one; never a mixture.

    Args:
        path: The folder to write; its parent folders are created.

    Yields:
        The folder to write into.

    Example:
        >>> import tempfile, pathlib
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "log"
        >>> with atomic_folder(target) as aside:
        ...     _ = (aside / "a.txt").write_text("whole")
        >>> sorted(p.name for p in target.iterdir())
        ['a.txt']
    """
    target = Path(path)
    aside = _aside(target)
    aside.mkdir()
    try:
        yield aside
        old = _aside(target)
        if target.exists():
            os.replace(target, old)
        os.replace(aside, target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
