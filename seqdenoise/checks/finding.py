"""What a check found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One answer.

    Attributes:
        check: Name of the check.
        subject: What was checked: `"model"`, a plug-in, or a sequence as `"{plug-in}/{sequence}"`.
        outcome: `"passed"`, `"failed"` or `"skipped"`.
        message: What was seen; of a failed check also what to do; of a skipped one why.
    """

    check: str
    subject: str
    outcome: str
    message: str


def passed(check: str, subject: str, message: str) -> Finding:
    """A finding that all is well."""
    return Finding(check, subject, "passed", message)


def failed(check: str, subject: str, message: str) -> Finding:
    """A finding that something is wrong."""
    return Finding(check, subject, "failed", message)


def skipped(check: str, subject: str, message: str) -> Finding:
    """A finding that the question does not arise, or cannot be answered."""
    return Finding(check, subject, "skipped", message)
