"""What a sequence holds: which events, which columns, and how much of the past counts."""

from dataclasses import dataclass
from typing import Literal

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class SequenceRules:
    """How events before an impression become its sequences.

    Attributes:
        types: The sequence types; other types' events are ignored.
        max_length: How many entries a sequence keeps, the most recent ones.
        item_fields: Columns of the item table that become sequences too; null for unknown items.
        event_fields: Value columns of the event table that become sequences too (price, dwell);
            null for history entries. They must be known at the event's own time.
        age: Adds `T__age`, impression time minus event time; null for history entries.
        ties: Whether events at the impression's own time are left out, since they may be its
            outcome, or taken in.
        deduplicate: None keeps every entry. `exact` counts events of equal user, type, item and
            timestamp once: the first row. `consecutive` keeps of a run of the same item the
            latest entry known at the impression, `item` of all entries of the same item.
        max_age: Leaves out events with impression time minus event time above it, and with them
            history entries, whose age is unknown; in ticks of the events' timestamps. None keeps
            events of any age.
        session_gap: Adds `T__session`: 0 for the session still going on at the impression, 1 for
            the one before it and so on; null for history entries. A session ends where the gap
            between consecutive events of the user, of any of `types`, or between the last of them
            and the impression, exceeds `session_gap` ticks of the events' timestamps.

    Raises:
        ValueError: A value is out of range, or two columns would share a name.

    Example:
        >>> rules = SequenceRules(types=("click",), max_length=50, item_fields=("brand",), age=True)
        >>> rules.columns("click")
        ['click__item', 'click__brand', 'click__timestamp', 'click__age']
    """

    types: tuple[str, ...]
    max_length: int
    item_fields: tuple[str, ...] = ()
    event_fields: tuple[str, ...] = ()
    age: bool = False
    ties: Literal["exclude", "include"] = "exclude"
    deduplicate: Literal["exact", "consecutive", "item"] | None = None
    max_age: int | None = None
    session_gap: int | None = None

    def __post_init__(self) -> None:
        for name in ("types", "item_fields", "event_fields"):
            # A lone string would be read as one name a character.
            if not isinstance(getattr(self, name), tuple):
                raise ValueError(
                    f"{name}: expected a tuple of names. Received: {getattr(self, name)!r}"
                )
        if not self.types or self.max_length < 1:
            raise ValueError(
                "expected at least one type and max_length >= 1. "
                f"Received: types {self.types}, max_length {self.max_length}"
            )
        if self.ties not in ("exclude", "include"):
            raise ValueError(f"ties: expected 'exclude' or 'include'. Received: {self.ties!r}")
        if self.deduplicate not in (None, "exact", "consecutive", "item"):
            raise ValueError(
                "deduplicate: expected None, 'exact', 'consecutive' or 'item'. "
                f"Received: {self.deduplicate!r}"
            )
        for name in ("max_age", "session_gap"):
            ticks = getattr(self, name)
            if ticks is not None and not 0 <= ticks <= _INT64_MAX:
                raise ValueError(f"{name}: expected 0 to 2**63 - 1 ticks. Received: {ticks}")
        names = [name for kind in self.types for name in self.columns(kind)]
        if len(set(names)) < len(names):
            raise ValueError(
                "expected sequence columns of distinct names. Received: "
                f"{sorted({name for name in names if names.count(name) > 1})} more than once"
            )

    def columns(self, kind: str) -> list[str]:
        """The names of one type's columns, in the order they are made.

        Args:
            kind: The type.

        Returns:
            `kind__item`, the item fields, the event fields, `kind__timestamp`, and `kind__age`
            and `kind__session` where asked for.
        """
        names = ["item", *self.item_fields, *self.event_fields, "timestamp"]
        names += ["age"] if self.age else []
        names += ["session"] if self.session_gap is not None else []
        return [f"{kind}__{name}" for name in names]
