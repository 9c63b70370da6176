"""Where data lies: files, folders, globs and URLs resolved to a list of files."""

import fnmatch
import importlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyarrow import fs

from seqdenoise.errors import DataError

OneLocation: TypeAlias = str | os.PathLike[str]
Location: TypeAlias = OneLocation | Sequence[OneLocation]

# What a job or a file system leaves beside the data: `_SUCCESS`, `.part-00000.crc`.
_IGNORED = ("_", ".")


@dataclass(frozen=True)
class DataFile:
    """One file.

    Attributes:
        name: What messages call it.
        size: In bytes.
        filesystem: Where it lies.
        path: Its path there.
        location: What `find_files` finds it by.
    """

    name: str
    size: int
    filesystem: fs.FileSystem
    path: str
    location: str

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def open(self) -> pa.NativeFile:
        """A handle for reading at any place; the caller closes it."""
        return self.filesystem.open_input_file(self.path)


@dataclass(frozen=True)
class _Place:
    """A path on a file system, and what messages call it."""

    filesystem: fs.FileSystem
    path: str
    location: str

    @property
    def name(self) -> str:
        return _shown(self.location)

    def child(self, relative: str) -> "_Place":
        path = f"{self.path.rstrip('/')}/{relative}"
        # The options of a URL come after its path, and its children need them too.
        base, mark, options = (
            self.location.partition("?")
            if _is_url(self.location)
            else (
                self.location,
                "",
                "",
            )
        )
        location = f"{base.rstrip('/')}/{relative}{mark}{options}"
        return _Place(self.filesystem, path, location)

    def children(self, *, recursive: bool) -> list[tuple[str, fs.FileInfo]]:
        """Relative path and information of everything inside, in name order."""
        selector = fs.FileSelector(self.path, recursive=recursive, allow_not_found=True)
        start = len(self.path.strip("/"))
        found = [
            (info.path.strip("/")[start:].lstrip("/"), info)
            for info in self.filesystem.get_file_info(selector)
        ]
        return sorted(found, key=lambda one: one[0].split("/"))


def name_of(location: Location) -> str:
    """What messages call a location."""
    if isinstance(location, str | os.PathLike):
        return _shown(os.fspath(location))
    names = [name_of(one) for one in location]
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def find_files(location: Location) -> list[DataFile]:
    """The files of a location.

    Args:
        location: A file; a folder, whose files are taken in the order of their names, those of its
            folders included and names that start with `_` or `.` left out; a glob (`*`, `?` and
            `[...]` within the parts of a path) of files and folders; a URL of any of these that
            `pyarrow.fs` opens (`s3://`, `gs://`, `hdfs://`, `file://`) or, where it is installed,
            fsspec; or a sequence of those, taken in its order.

    Returns:
        At least one file.

    Raises:
        DataError: There is nothing, a file comes twice, or the location cannot be reached.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("part-1.parquet", "part-0.parquet", "_SUCCESS"):
        ...     _ = (folder / name).write_text("")
        >>> [pathlib.Path(file.name).name for file in find_files(folder)]
        ['part-0.parquet', 'part-1.parquet']
    """
    places = [location] if isinstance(location, str | os.PathLike) else list(location)
    if not places:
        raise DataError("expected at least one location of data. Received: none")
    files = []
    for place in places:
        text = os.fspath(place)
        try:
            files += _files_of(text)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"{_shown(text)}: expected a location that can be reached. Received: {reason}"
            ) from error
    seen: set[tuple[str, str]] = set()
    for file in files:
        key = (file.filesystem.type_name, file.path)
        if key in seen:
            raise DataError(f"{file.name}: expected every file once. Received: it twice")
        seen.add(key)
    return files


def exists(location: OneLocation) -> bool:
    """Whether there is a file or a folder at a location without wildcards.

    Raises:
        DataError: The location cannot be reached.
    """
    text = os.fspath(location)
    try:
        place = _place(text)
        return place.filesystem.get_file_info(place.path).type != fs.FileType.NotFound
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{_shown(text)}: expected a location that can be reached. Received: {reason}"
        ) from error


def _files_of(text: str) -> list[DataFile]:
    base, pattern = _split_glob(text)
    place = _place(base)
    if not pattern:
        return _inside(place)
    found = [place]
    for part in pattern.split("/"):
        found = [
            parent.child(relative)
            for parent in found
            for relative, _ in parent.children(recursive=False)
            if fnmatch.fnmatchcase(relative, part)
            and (part.startswith(_IGNORED) or not relative.startswith(_IGNORED))
        ]
    if not found:
        raise DataError(f"{_shown(text)}: expected at least one file. Received: no match")
    return [file for match in found for file in _inside(match)]


def _inside(place: _Place) -> list[DataFile]:
    info = place.filesystem.get_file_info(place.path)
    if info.type == fs.FileType.NotFound:
        raise DataError(f"{place.name}: expected a parquet file. Received: no such file")
    if info.type != fs.FileType.Directory:
        return [DataFile(place.name, info.size, place.filesystem, place.path, place.location)]
    files = []
    for relative, child in place.children(recursive=True):
        hidden = any(part.startswith(_IGNORED) for part in relative.split("/"))
        if not hidden and child.type != fs.FileType.Directory:
            inside = place.child(relative)
            files.append(
                DataFile(inside.name, child.size, place.filesystem, child.path, inside.location)
            )
    if not files:
        raise DataError(f"{place.name}: expected parquet files in the folder. Received: none")
    return files


def _is_url(text: str) -> bool:
    return re.match(r"[A-Za-z][\w+.\-]*(://|::)", text) is not None


def _shown(text: str) -> str:
    """Without what may be a secret: a URL's user and its options."""
    if not _is_url(text):
        return text
    return re.sub(r"//[^/@]*@", "//", text.split("?")[0])


def _split_glob(text: str) -> tuple[str, str]:
    """The part before the first wildcard, up to a slash, and the pattern from there on."""
    if _is_url(text):
        # In a URL the question mark starts the options, which belong to the file system.
        text, mark, options = text.partition("?")
        wild = re.search(r"[*\[]", text)
        options = mark + options
    else:
        text, options = text.replace(os.sep, "/"), ""
        wild = None if os.path.exists(text) else re.search(r"[*?\[]", text)
    if wild is None:
        return text + options, ""
    cut = text.rfind("/", 0, wild.start()) + 1
    return (text[:cut] or ".") + options, text[cut:]


def _place(text: str) -> _Place:
    if not _is_url(text):
        # Absolute, since files are opened again later, and the working folder may have changed.
        return _Place(fs.LocalFileSystem(), os.path.abspath(text).replace(os.sep, "/"), text)
    try:
        filesystem, path = fs.FileSystem.from_uri(text)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        filesystem, path = _through_fsspec(text, error)
    return _Place(filesystem, path, text)


def _through_fsspec(text: str, error: Exception) -> tuple[fs.FileSystem, str]:
    try:
        fsspec = importlib.import_module("fsspec")
    except ModuleNotFoundError as missing:
        raise DataError(
            f"{_shown(text)}: expected a URL that pyarrow opens, or the package fsspec for others. "
            f"Received: {error}, and no fsspec"
        ) from missing
    try:
        filesystem, path = fsspec.core.url_to_fs(text)
    except (ValueError, ImportError) as unknown:
        raise DataError(
            f"{_shown(text)}: expected a URL that pyarrow or fsspec opens. Received: {unknown}"
        ) from unknown
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path
