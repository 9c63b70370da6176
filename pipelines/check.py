"""The validator: prepared files and raw tables, checked by themselves, a row group at a time.

`audit` compares prepared rows with the log they came from; this finds what is wrong with files
whose log is not at hand, and goes on after a file that cannot be read.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.checking.duplicates import RepeatedKeys, key_hashes
from pipelines.checking.findings import CODES, CheckReport, Findings, Place
from pipelines.checking.layout import KEYS, Kind, Layout, kind_of, layout_of
from pipelines.checking.rules import check_lists, check_scalars
from pipelines.config import ConfigError, RunConfig
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.locations import OneLocation, find_files, name_of
from seqdenoise.data.schemas import common_schema
from seqdenoise.errors import DataError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _File:
    """A file whose footer could be read."""

    name: str
    location: str
    schema: pa.Schema
    row_group_rows: list[int]
    kind: Kind
    layout: Layout

    @property
    def places(self) -> list[Place]:
        starts = np.cumsum([0, *self.row_group_rows])
        return [Place(self.name, i, int(starts[i])) for i in range(len(self.row_group_rows))]


def sizes_of(options: Sequence[str]) -> dict[str, int]:
    """The sizes that the command line gives, each as `COLUMN=SIZE`.

    Raises:
        ConfigError: An option is not of this form.

    Example:
        >>> sizes_of(["click__item=100"])
        {'click__item': 100}
    """
    sizes = {}
    for option in options:
        name, _, size = option.rpartition("=")
        if not name or not size.isdigit() or not int(size):
            raise ConfigError(f"expected COLUMN=SIZE, like click__item=1000. Received: {option}")
        sizes[name] = int(size)
    return sizes


def check(
    locations: Sequence[OneLocation],
    *,
    config: RunConfig | None = None,
    sizes: Mapping[str, int] | None = None,
    as_warnings: Sequence[str] = (),
) -> CheckReport:
    """Checks parquet files: prepared rows, or the tables of a log folder, all of one data set.

    Which table a file is, its name in a log folder or its columns say. Of a folder all files are
    checked but `.json` files, which `prepare` leaves beside its rows. A file that cannot be read is
    a finding, and the others are checked nevertheless. Files of the same table are compared: their
    schemas, and their keys (an impression's user, item and timestamp; an event's with its type; the
    user or item of a side table). Memory is that of a row group's columns of one sequence type, and
    8 bytes a row for the hashes of the keys; see `RepeatedKeys`.

    Args:
        locations: Files, folders, globs or URLs.
        config: The run: which columns are needed, which are labels, how long lists may be and
            whether events at the impression's own moment may be in them.
        sizes: For columns whose ids go into tables of this size as they are, without a vocabulary.
        as_warnings: Codes of findings that shall not count as errors; keys of `CODES`.

    Returns:
        What was checked and what is wrong.

    Raises:
        ConfigError: No location, an unknown code, or a size for a column that no file has.

    Example:
        >>> import tempfile, pathlib, pyarrow.parquet as pq
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "impressions.parquet"
        >>> pq.write_table(pa.table({"user": [1, 1], "item": [5, 5], "timestamp": [9, 9]}), path)
        >>> report = check([path])
        >>> report.passed, report.findings[0].code, report.findings[0].row
        (False, 'duplicate', 1)
    """
    if not locations:
        raise ConfigError("expected at least one file to check. Received: none")
    unknown = sorted(set(as_warnings) - set(CODES))
    if unknown:
        raise ConfigError(f"expected codes of findings, {sorted(CODES)}. Received: {unknown}")
    findings = Findings(as_warnings)
    names = _find(locations, findings)
    files = []
    for name, location in names.items():
        file = _open(name, location, findings, config, sizes or {})
        if file is not None:
            files.append(file)
    odd = sorted(set(sizes or {}) - {name for file in files for name in file.schema.names})
    if odd and files:
        raise ConfigError(f"expected sizes of columns that a file has. Received: {odd}")
    for kind in dict.fromkeys(file.kind for file in files):
        of_kind = [file for file in files if file.kind == kind]
        _check_drift(of_kind, findings)
        if not any(sum(file.row_group_rows) for file in of_kind):
            findings.file("no_rows", of_kind[0].name, f"expected rows in the {kind} table")
        repeated = _check_rows(of_kind, kind, findings)
        if repeated is not None and repeated.found():
            _report_repeats(of_kind, kind, repeated, findings)
    rows = sum(sum(file.row_group_rows) for file in files)
    report = CheckReport(len(names) or len(locations), rows, findings.sorted())
    _logger.info("%s", report.headline)
    return report


def _find(locations: Sequence[OneLocation], findings: Findings) -> dict[str, str]:
    """The name and location of every file, each once."""
    found: dict[str, str] = {}
    for location in locations:
        try:
            files = find_files(location)
        except DataError as error:
            findings.file("unreadable", name_of(location), str(error))
            continue
        for file in files:
            if len(files) == 1 or not file.path.endswith(".json"):
                found[file.name] = file.location
    return found


def _open(
    name: str,
    location: str,
    findings: Findings,
    config: RunConfig | None,
    sizes: Mapping[str, int],
) -> _File | None:
    try:
        with ParquetSource(location) as source:
            schema, rows = source.schema, list(source.row_group_rows)
    except DataError as error:
        findings.file("unreadable", name, _without(name, error))
        return None
    kind = kind_of(schema, name, config)
    if kind is None:
        what = "expected a prepared file or a table of a log folder"
        findings.file("unknown_table", name, f"{what}. Received: {', '.join(schema.names)}")
        return None
    if not sum(rows):
        findings.file("empty_file", name, "a file without rows")
    layout = layout_of(schema, name, kind, findings, config=config, sizes=sizes)
    return _File(name, location, schema, rows, kind, layout)


def _without(name: str, error: DataError) -> str:
    return str(error).removeprefix(name).lstrip(":, ")


def _check_drift(files: list[_File], findings: Findings) -> None:
    first = files[0]
    for file in files[1:]:
        try:
            common = common_schema([first.schema, file.schema], [first.name, file.name])
        except DataError as error:
            findings.file("schema_drift", file.name, _without(file.name, error))
            continue
        for name in dict.fromkeys(common.names):
            theirs, ours = (
                [s.field(i).type for i in s.get_all_field_indices(name)]
                for s in (first.schema, file.schema)
            )
            if theirs != ours:
                what = f"expected {theirs[0]} as in {first.name}, a wider type. Received: {ours[0]}"
                findings.file("widened_type", file.name, what, column=name)


def _check_rows(files: list[_File], kind: Kind, findings: Findings) -> RepeatedKeys | None:
    """Checks all row groups; returns the hashes of the keys where every file has all keys."""
    comparable = all(file.layout.keys == KEYS[kind] for file in files)
    repeated = RepeatedKeys()
    for file in files:
        with ParquetSource(file.location) as source:
            for place in file.places:
                scalars = _read(source, place, file.layout.scalars, findings)
                if scalars is not None:
                    check_scalars(scalars, file.layout, place, findings)
                    if comparable:
                        hashes, whole = key_hashes(scalars, KEYS[kind])
                        repeated.add(hashes[whole])
                for each, names in file.layout.lists.items():
                    beside = [name for name in ["timestamp"] if name in file.layout.scalars]
                    lists = _read(source, place, [*names, *beside], findings)
                    if lists is not None:
                        check_lists(lists, each, file.layout, place, findings)
    return repeated if comparable else None


def _read(
    source: ParquetSource, place: Place, columns: list[str], findings: Findings
) -> pa.Table | None:
    try:
        return source.read_row_group(place.row_group, columns)
    except DataError as error:
        findings.row_group("unreadable", place, _without(source.place(place.row_group), error))
        return None


def _report_repeats(
    files: list[_File], kind: Kind, repeated: RepeatedKeys, findings: Findings
) -> None:
    keys = KEYS[kind]
    code = "duplicate_event" if kind == "events" else "duplicate"
    silent = Findings()  # what cannot be read has been reported
    for file in files:
        with ParquetSource(file.location) as source:
            for place in file.places:
                scalars = _read(source, place, file.layout.scalars, silent)
                if scalars is None:
                    continue
                hashes, whole = key_hashes(scalars, keys)
                candidates = np.flatnonzero(whole)
                rows = candidates[repeated.repeats(hashes[whole])]
                if len(rows):
                    again = scalars.select(keys).slice(int(rows[0]), 1).to_pylist()[0]
                    what = f"expected every key once. Received: {again} again"
                    findings.rows(code, place, ", ".join(keys), rows, what)
