"""Outputs that appear whole or not at all: written aside, then renamed.

What a killed process has left aside is removed by the next one that writes the same output.
"""

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from seqdenoise.data.file_locks import is_locked, lock


def _aside(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Same folder, hence same file system: only there is a rename atomic.
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


@contextmanager
def _made_aside(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Makes a temporary file or folder, locked so that `remove_leftovers` knows it is in use."""
    remove_leftovers(path)
    while True:
        aside = _aside(path)
        make(aside)
        with lock(aside) as is_ours:
            # It is not if somebody took it for a leftover before it was locked.
            if is_ours and aside.exists():
                yield aside
                return


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
    with _made_aside(target, Path.touch) as aside:
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
    with _made_aside(target, Path.mkdir) as aside:
        try:
            yield aside
            replace_folder(aside, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def replace_folder(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Renames a folder to `path`, in the place of what is there.

    Args:
        source: The folder, on the same file system.
        path: Its new name.
    """
    target = Path(path)
    old = _aside(target)
    if target.exists():
        os.replace(target, old)
    os.replace(source, target)
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Removes a folder at once: whoever is killed meanwhile does not leave a half of it.

    Args:
        path: The folder; none may be there.
    """
    target = Path(path)
    if target.exists():
        gone = _aside(target)
        os.replace(target, gone)
        shutil.rmtree(gone, ignore_errors=True)


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Removes what processes that were killed have left aside of `path`.

    What a living process is writing stays, also one of another machine if the file system knows
    its locks.

    Args:
        path: The file or folder that they wanted to write.

    Example:
        >>> import tempfile, pathlib
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "log"
        >>> target.with_name(".log.0badcafe.tmp").mkdir()
        >>> with atomic_folder(target):
        ...     remove_leftovers(target)
        >>> [p.name for p in target.parent.iterdir()]
        ['log']
    """
    target = Path(path)
    if not target.parent.is_dir():
        return
    form = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.tmp")
    with os.scandir(target.parent) as entries:
        asides = [Path(entry.path) for entry in entries if form.fullmatch(entry.name)]
    for aside in asides:
        if is_locked(aside):
            continue
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink(missing_ok=True)
