"""Is everything a finite number, and if not, where does it begin?"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from seqdenoise.checks.finding import Finding, failed, passed, skipped
from seqdenoise.checks.look import Look, ModelLook, variable_name


def finite_sequences(look: Look) -> Iterator[Finding]:
    """The real events of each denoised sequence."""
    for name in look.denoised:
        mask = look.seen.masks[name].numpy()
        parts = tf.nest.flatten(look.seen.sequences[name])
        broken = np.zeros(mask.shape, bool)
        for part in parts:
            events = tf.cast(part, tf.float64).numpy().reshape(*mask.shape, -1)
            broken |= ~np.isfinite(events).all(axis=-1) & mask
        rows = int(broken.any(axis=1).sum())
        subject = f"{look.name}/{name}"
        if rows:
            yield failed(
                "finite sequences",
                subject,
                f"{rows} of {len(mask)} rows hold NaN or infinity in real events, which makes the "
                "side loss NaN: mend what the sequence is made of, or mask those events",
            )
        else:
            yield passed("finite sequences", subject, "all real events are finite")


def finite_model(look: ModelLook) -> Iterator[Finding]:
    """The model's weights, outputs and losses."""
    broken = [
        variable_name(v)
        for v in look.model.trainable_variables
        if not _is_finite(tf.convert_to_tensor(v))
    ]
    if broken:
        yield failed(
            "finite weights",
            "model",
            f"NaN or infinity in {_listed(broken)}: begin from weights without",
        )
    else:
        yield passed("finite weights", "model", "all trainable weights are finite")
    causes = f" (as is {_listed(broken)})" if broken else _broken_inputs(look.batch)
    outputs = [x for x in tf.nest.flatten(look.outputs) if x is not None and x.dtype.is_floating]
    if not outputs:
        yield skipped("finite outputs", "model", "the model is run by its own `compute_loss`")
    elif all(_is_finite(x) for x in outputs):
        yield passed("finite outputs", "model", "all outputs are finite")
    else:
        yield failed("finite outputs", "model", f"an output is NaN or infinite{causes}")
    losses = {f"the side loss of `{one.name}`": one.seen.added for one in look.calls}
    losses["the model's own loss"] = look.main_loss
    named = [name for name, loss in losses.items() if loss is not None and not _is_finite(loss)]
    if named:
        yield failed("finite losses", "model", f"NaN or infinite{causes}: {_listed(named)}")
    else:
        yield passed("finite losses", "model", "all losses are finite")


def _broken_inputs(batch: Any) -> str:
    broken = []
    for path, x in _leaves("", batch):
        if tf.is_tensor(x) and x.dtype.is_floating and not _is_finite(x):
            broken.append(path)
    return f" (as is the input {_listed(broken)})" if broken else ""


def _leaves(path: str, tree: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(f"{path}/{key}" if path else str(key), value)
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from _leaves(path if number == 0 else f"{path}[{number}]", value)
    elif not isinstance(tree, tf.SparseTensor):
        yield path, getattr(tree, "flat_values", tree)


def _is_finite(x: Any) -> bool:
    x = getattr(x, "flat_values", x)
    return bool(tf.reduce_all(tf.math.is_finite(x))) if x.dtype.is_floating else True


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" if " " not in name else name for name in names)
