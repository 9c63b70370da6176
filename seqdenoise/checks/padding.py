"""Does padding stay out of the side loss, and does anything that looks like padding get in?"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from seqdenoise.checks.alone import Alone, run_alone
from seqdenoise.checks.finding import Finding, failed, passed, skipped
from seqdenoise.checks.look import Look

Array = npt.NDArray[np.float64]


def padding_is_ignored(look: Look, alone: Alone) -> Iterator[Finding]:
    """NaN in the masked slots changes neither the side loss nor a gradient, to the last bit."""
    check = "padding ignored"
    for name in look.denoised:
        subject, mask = f"{look.name}/{name}", look.seen.masks[name].numpy()
        if not look.is_finite:
            yield skipped(check, subject, "the side loss is not finite, see above")
        elif mask.all():
            yield skipped(check, subject, "the batch has no masked slot")
        elif _bits(look, run_alone(look, nan_in_padding_of=[name])) == _bits(look, alone):
            yield passed(check, subject, f"NaN in {int((~mask).sum())} masked slots changes no bit")
        else:
            yield failed(
                check,
                subject,
                "NaN in masked slots changes the side loss or its gradient: a masking or loss of "
                "your own must set them to 0 before any arithmetic (tf.where on the input)",
            )


def padding_is_masked(look: Look) -> Iterator[Finding]:
    """No vector fills the ends of many rows as padding does, and counts as real."""
    check = "padding masked"
    for name in look.denoised:
        subject, mask = f"{look.name}/{name}", look.seen.masks[name].numpy()
        events = _whole(look.seen.sequences[name], mask)
        rows = int(mask.any(axis=1).sum())
        repeated = max(_padded_rows(events, mask), _padded_rows(events[:, ::-1], mask[:, ::-1]))
        if repeated >= max(3, 0.1 * rows):
            yield failed(
                check,
                subject,
                f"{repeated} of {rows} rows begin or end with one and the same vector, as padding "
                "does, and those slots count as real events: give their mask, "
                f"mask={{{name!r}: ids != 0}} (True is a real event), or Embedding(mask_zero=True)",
            )
        else:
            yield passed(check, subject, "no real event looks like padding")


def _padded_rows(events: Array, mask: npt.NDArray[np.bool_]) -> int:
    """How many rows begin with the same vector, twice in a row or zero."""
    order = np.argsort(~mask, axis=1, kind="stable")[:, :2]  # the first two real events
    first = np.take_along_axis(events, order[:, :, np.newaxis], axis=1)
    real = np.take_along_axis(mask, order, axis=1)
    zero = real[:, 0] & (first[:, 0] == 0).all(axis=-1)
    twice = np.zeros_like(zero)
    if first.shape[1] == 2:
        twice = real.all(axis=1) & (first[:, 0] == first[:, 1]).all(axis=-1)
    same = Counter(row.tobytes() for row in first[zero | twice, 0])
    return max(same.values(), default=0)


def _bits(look: Look, alone: Alone) -> bytes:
    # Of the denoised ones: what the plug-in leaves alone has no gradient to compare.
    gradients = [x for name in look.denoised for x in alone.gradients[name] if x is not None]
    return b"".join(x.numpy().tobytes() for x in (alone.side_loss, *gradients))


def _whole(sequence: Any, mask: npt.NDArray[np.bool_]) -> Array:
    fields = sequence if isinstance(sequence, Mapping) else {"": sequence}
    return np.concatenate(
        [
            np.asarray(fields[key].numpy(), np.float64).reshape(*mask.shape, -1)
            for key in sorted(fields)
        ],
        axis=-1,
    )
