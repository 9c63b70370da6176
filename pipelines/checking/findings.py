"""What the validator found: gathered by file, column and kind of defect, as text and as JSON."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from rich.table import Table

from seqdenoise.data.atomic import atomic_file
from seqdenoise.data.columns import IntArray

Severity = Literal["error", "warning"]

CODES: dict[str, Severity] = {
    # Whole files.
    "unreadable": "error",
    "no_rows": "error",
    "empty_file": "warning",
    "unknown_table": "error",
    "missing_column": "error",
    "repeated_column": "error",
    "wrong_type": "error",
    "unused_type": "warning",
    "schema_drift": "error",
    "widened_type": "warning",
    # Rows.
    "null": "error",
    "null_feature": "warning",
    "null_list": "warning",
    "null_in_list": "error",
    "null_feature_in_list": "warning",
    "length_mismatch": "error",
    "too_long": "error",
    "future": "error",
    "order": "error",
    "beyond_int64": "error",
    "beyond_size": "error",
    "negative_id": "warning",
    "pad_id": "warning",
    "not_finite": "error",
    "label": "error",
    "maybe_label": "warning",
    "weight": "error",
    "duplicate": "error",
    "duplicate_event": "warning",
}
"""Every kind of finding. An error is what `prepare` or the reader refuses, or what makes the rows
say something wrong; a warning is what they have a defined reading for."""


@dataclass(frozen=True)
class Finding:
    """One kind of defect in one column of one file.

    Attributes:
        severity: `error` or `warning`.
        code: A key of `CODES`.
        what: The defect in words.
        file: Its name.
        column: Empty where the file as a whole is meant.
        row_group: Of the first defect; None where the file as a whole is meant.
        row: Of the first defect, counted in the row group from 0.
        file_row: The same row, counted in the file.
        count: Rows of the file with this defect; 1 for a file as a whole.
    """

    severity: Severity
    code: str
    what: str
    file: str
    column: str = ""
    row_group: int | None = None
    row: int | None = None
    file_row: int | None = None
    count: int = 1

    @property
    def place(self) -> str:
        """Where the first defect is, without the file."""
        parts = [] if self.row_group is None else [f"row group {self.row_group}"]
        parts += [f"column `{self.column}`"] if self.column else []
        if self.row is not None:
            parts.append(f"row {self.row} (row {self.file_row} of the file)")
        return ", ".join(parts)

    def __str__(self) -> str:
        place = ", ".join(filter(None, [self.file, self.place]))
        rows = "" if self.row is None else f"{self.count} row{'s' * (self.count != 1)}, "
        return f"{self.severity}: {place}: {rows}{self.code}: {self.what}"


@dataclass(frozen=True)
class Place:
    """A row group: its file, its number and its first row there."""

    file: str
    row_group: int
    first_row: int


class Findings:
    """Gathers findings: one for each file, column and code, with the first place and the count.

    Args:
        as_warnings: Codes of errors to take as warnings.
    """

    def __init__(self, as_warnings: Iterable[str] = ()):
        self._as_warnings = frozenset(as_warnings)
        self._found: dict[tuple[str, str, str], Finding] = {}

    def _severity(self, code: str) -> Severity:
        return "warning" if code in self._as_warnings else CODES[code]

    def file(self, code: str, file: str, what: str, *, column: str = "") -> None:
        """Adds a defect of a file as a whole."""
        finding = Finding(self._severity(code), code, what, file, column)
        self._found.setdefault((file, column, code), finding)

    def row_group(self, code: str, place: Place, what: str, *, column: str = "") -> None:
        """Adds a defect of a row group as a whole."""
        key = (place.file, column, code)
        if key in self._found:
            self._found[key] = replace(self._found[key], count=self._found[key].count + 1)
            return
        self._found[key] = Finding(
            self._severity(code), code, what, place.file, column, place.row_group
        )

    def rows(self, code: str, place: Place, column: str, rows: IntArray, what: str) -> None:
        """Adds rows with a defect.

        Args:
            code: A key of `CODES`.
            place: Their row group.
            column: The column.
            rows: int64 `[n]`, increasing, counted in the row group; may be empty.
            what: The defect of the first of them.
        """
        if not len(rows):
            return
        key = (place.file, column, code)
        if key in self._found:
            self._found[key] = replace(self._found[key], count=self._found[key].count + len(rows))
            return
        row = int(rows[0])
        self._found[key] = Finding(
            self._severity(code),
            code,
            what,
            place.file,
            column,
            place.row_group,
            row,
            place.first_row + row,
            len(rows),
        )

    def sorted(self) -> list[Finding]:
        """Errors first; within a severity in the order of the files."""
        return sorted(self._found.values(), key=lambda finding: finding.severity != "error")


@dataclass(frozen=True)
class CheckReport:
    """What was checked and what was found.

    Attributes:
        files: Files, unreadable ones included.
        rows: Rows of the readable ones.
        findings: Errors first.
    """

    files: int
    rows: int
    findings: list[Finding]

    def count(self, severity: Severity) -> int:
        """How many findings are of this severity."""
        return Counter(finding.severity for finding in self.findings)[severity]

    @property
    def passed(self) -> bool:
        """Whether there is no error; warnings may be."""
        return self.count("error") == 0

    @property
    def headline(self) -> str:
        """One line."""
        return (
            f"{self.files} files, {self.rows} rows checked: {self.count('error') or 'no'} errors, "
            f"{self.count('warning') or 'no'} warnings"
        )

    def lines(self, limit: int) -> list[str]:
        """The first findings, one a line, and the headline."""
        shown = [str(finding) for finding in self.findings[:limit]]
        return [*shown, *self._rest(limit), self.headline]

    def table(self, limit: int) -> Table:
        """The first findings for a terminal."""
        table = Table("", "file", "where", "rows", "what", caption="\n".join(self._rest(limit)))
        for finding in self.findings[:limit]:
            style = "red" if finding.severity == "error" else "yellow"
            rows = "" if finding.row is None else str(finding.count)
            what = f"{finding.code}: {finding.what}"
            table.add_row(finding.severity, finding.file, finding.place, rows, what, style=style)
        return table

    def _rest(self, limit: int) -> list[str]:
        more = len(self.findings) - limit
        return [f"and {more} more findings"] if more > 0 else []

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Writes all findings, for machines."""
        content = {
            "files": self.files,
            "rows": self.rows,
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "findings": [asdict(finding) for finding in self.findings],
        }
        with atomic_file(path) as aside:
            aside.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
