"""Do the two views of a row share nothing, and together see everything?"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from seqdenoise.checks.finding import Finding, failed, passed, skipped
from seqdenoise.checks.look import Look

Array = npt.NDArray[np.float64]
# Of float32 sums over at most some hundreds of events.
_TOLERANCE = 1e-5


def views_share_nothing(look: Look) -> Iterator[Finding]:
    """Views disjoint and complete, as far as the masking promises that."""
    check, layer = "views", look.seen.layer
    for name, (view_a, view_b, valid) in look.seen.views.items():
        subject, masking = f"{look.name}/{name}", layer.masking_of(name)
        mask, keep = look.seen.masks[name].numpy(), valid.numpy()
        parts = _parts(look.seen.sequences[name], mask)
        events = np.concatenate(list(parts.values()), axis=-1)[keep]
        count = mask.sum(axis=1)[keep][:, np.newaxis]
        a, b = (view.numpy().astype(np.float64)[keep] for view in (view_a, view_b))
        whole = np.where(mask[keep][:, :, np.newaxis], events, 0).sum(axis=1) / np.maximum(count, 1)
        if masking == "dropout":
            yield skipped(check, subject, "views by dropout share features by design")
        elif masking == "crop_mask_reorder":
            yield skipped(check, subject, "views by edits share events by design")
        elif not np.isfinite(whole).all():
            yield skipped(check, subject, "the sequence is not finite, see above")
        elif masking in ("event", "event_dimension") and layer.dropout:
            yield skipped(check, subject, "after dropout one cannot tell which events a view saw")
        else:
            yield _finding(subject, masking, layer.dropout, a, b, whole, count, _sizes(parts))


def _finding(
    subject: str,
    masking: str,
    dropout: float | None,
    a: Array,
    b: Array,
    whole: Array,
    count: Array,
    sizes: dict[str, int],
) -> Finding:
    check, together = "views", a + b
    if masking == "event":
        # View A is the mean of half of the events, rounded down, and view B of the others.
        together = (a * (count // 2) + b * (count - count // 2)) / count
    overlap = (a != 0) & (b != 0)
    if masking not in ("event", "event_dimension") and overlap.any():
        return failed(
            check,
            subject,
            f"the views overlap: {overlap.mean():.0%} of the features are in both, so one can be "
            "read off the other; a masking must give each feature to one view",
        )
    expected = whole
    if dropout:
        expected = np.where(together != 0, whole / (1 - dropout), 0)
    error = np.abs(together - expected) > _TOLERANCE * max(np.abs(whole).max(initial=0), 1e-30)
    if error.any():
        return failed(
            check,
            subject,
            f"the views together are not the whole sequence in {error.any(axis=1).mean():.0%} of "
            "the rows: each feature must be in exactly one view",
        )
    copies = _copies(whole, sizes, by_field=masking in ("field", "correlated_field"))
    if copies and masking != "event":
        return failed(
            check,
            subject,
            f"{copies} hold the same numbers in every row, so one view can be read off the other: "
            "give the plug-in each feature once",
        )
    return passed(check, subject, "disjoint, and together the whole sequence")


def _copies(whole: Array, sizes: Mapping[str, int], *, by_field: bool) -> str:
    """The first two features that are equal in all rows, of those that differ from row to row."""
    fields = np.repeat(list(sizes), list(sizes.values()))
    first: dict[bytes, int] = {}
    for column in range(whole.shape[1]):
        if len(np.unique(whole[:, column])) < 3:
            continue  # a flag, say, which may be that of another feature by chance
        earlier = first.setdefault(whole[:, column].tobytes(), column)
        if earlier == column or (by_field and fields[earlier] == fields[column]):
            continue
        if by_field:
            return f"fields `{fields[earlier]}` and `{fields[column]}`"
        return f"dimensions {earlier} and {column}"
    return ""


def _parts(sequence: Any, mask: npt.NDArray[np.bool_]) -> dict[str, Array]:
    fields = sequence if isinstance(sequence, Mapping) else {"": sequence}
    return {
        key: np.asarray(fields[key].numpy(), np.float64).reshape(*mask.shape, -1)
        for key in sorted(fields)
    }


def _sizes(parts: Mapping[str, Array]) -> dict[str, int]:
    return {key: part.shape[-1] for key, part in parts.items()}
