"""What an audit counts and reports."""

from dataclasses import dataclass, field

from seqdenoise.data.columns import IntArray

# A broken preparation breaks every row; a report needs the first ones and the count.
MAX_RECORDED = 1000
NUM_SHOWN = 20


@dataclass(frozen=True)
class Violation:
    """One thing wrong with one prepared row.

    Attributes:
        split: `train`, `valid` or `test`.
        row: The row of that split, over its files in the order of their names; -1 where the split
            as a whole is meant.
        type: The sequence type; empty where none is meant.
        what: What is wrong.
    """

    split: str
    row: int
    type: str
    what: str


@dataclass(frozen=True)
class AuditReport:
    """What was checked and what was found.

    Attributes:
        sample: The share of the users that was audited, at most 1.
        rows: Their prepared impressions.
        events_checked: Sequence entries with a timestamp.
        history_entries_checked: Sequence entries without.
        num_violations: All of them.
        violations: The first `MAX_RECORDED`.
    """

    sample: float
    rows: int
    events_checked: int
    history_entries_checked: int
    num_violations: int
    violations: list[Violation]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return self.num_violations == 0

    def __str__(self) -> str:
        users = "all users" if self.sample == 1 else f"{100 * self.sample:.3g} % of the users"
        lines = [
            f"{self.rows} impressions, {self.events_checked} events and "
            f"{self.history_entries_checked} history entries of {users} checked: "
            f"{self.num_violations or 'no'} violations"
        ]
        shown = self.violations[:NUM_SHOWN]
        lines += [f"  {v.split} row {v.row}{v.type and f', {v.type}'}: {v.what}" for v in shown]
        if self.num_violations > len(shown):
            lines.append(f"  and {self.num_violations - len(shown)} more")
        return "\n".join(lines)


@dataclass
class Findings:
    """What has been counted and found so far."""

    events: int = 0
    histories: int = 0
    count: int = 0
    violations: list[Violation] = field(default_factory=list)

    def add(self, split: str, rows: IntArray, kind: str, what: str) -> None:
        """Counts a violation of each row, and keeps it while there is room."""
        self.count += len(rows)
        room = MAX_RECORDED - len(self.violations)
        self.violations += [Violation(split, int(row), kind, what) for row in rows[:room]]
