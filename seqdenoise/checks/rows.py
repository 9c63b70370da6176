"""Are there rows to learn from, with weights and ids that make sense?"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from seqdenoise.checks.finding import Finding, failed, passed, skipped
from seqdenoise.checks.look import Look


def enough_rows(look: Look) -> Iterator[Finding]:
    """Some rows, of more than one id, have events to see in both views."""
    for name, (_, _, valid) in look.seen.views.items():
        subject, distinct = f"{look.name}/{name}", look.distinct_rows(name)
        message = f"{int(valid.numpy().sum())} of {len(valid)} rows have events in both views"
        if "sample_ids" in look.seen.rows:
            message += f", of {distinct} different ids"
        if distinct >= 2:
            yield passed("valid rows", subject, message)
        else:
            yield failed(
                "valid rows",
                subject,
                f"{message}, and a contrast needs two: take a larger batch, of shuffled rows, or "
                "check the mask (True is a real event)",
            )


def sensible_weights(look: Look) -> Iterator[Finding]:
    """Weights are finite, not negative, and not all zero."""
    check = "sample weights"
    weights = look.seen.rows.get("sample_weight")
    if weights is None:
        yield skipped(check, look.name, "none were given: every row counts the same")
        return
    values = np.asarray(weights.numpy(), np.float64)
    if not (np.isfinite(values).all() and (values >= 0).all()):
        yield failed(
            check,
            look.name,
            f"they must be finite and not negative; the smallest is {values.min():g}",
        )
    elif not (values > 0).any():
        yield failed(check, look.name, "all are 0, so no row is an anchor and nothing is learnt")
    else:
        yield passed(check, look.name, f"{(values > 0).mean():.0%} of the rows count")


def telling_ids(look: Look) -> Iterator[Finding]:
    """Rows of one user are known as such, and others are left to be told from."""
    check = "sample ids"
    ids = look.seen.rows.get("sample_ids")
    if ids is None:
        yield skipped(
            check,
            look.name,
            "none were given: rows of one user are each other's negatives; pass sample_ids=",
        )
        return
    counts = Counter(ids.numpy().tolist())
    rows, shared = len(ids), sum(count for count in counts.values() if count > 1)
    if rows > 1 and len(counts) == 1:
        yield failed(
            check,
            look.name,
            f"all {rows} rows have the same id, so none is another's negative: pass the users' "
            "ids, and shuffle",
        )
    elif max(counts.values()) > rows / 2:
        yield failed(
            check,
            look.name,
            f"{max(counts.values())} of {rows} rows have the same id, so they have few negatives: "
            "unknown users must not share an id, and rows must be shuffled",
        )
    else:
        yield passed(
            check, look.name, f"{shared} of {rows} rows share theirs and are not told apart"
        )
