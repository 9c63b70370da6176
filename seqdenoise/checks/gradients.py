"""Does the side loss reach what it is to train, and nothing else?"""

import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from seqdenoise.checks.alone import Alone
from seqdenoise.checks.finding import Finding, failed, passed, skipped
from seqdenoise.checks.look import Look, ModelLook, variable_name

_NOT_FINITE = "the side loss is not finite, see above"
_NO_CONTRAST = "this batch has no rows to contrast"


def encoder_gradients(look: ModelLook) -> Iterator[Finding]:
    """Every weight of every plug-in gets a gradient, and the model trains it."""
    trained = {id(v) for v in look.model.trainable_variables}
    for call in look.calls:
        check, gradients = "encoder gradient", call.gradients
        if gradients is None:
            continue
        if not call.is_finite:
            yield skipped(check, call.name, _NOT_FINITE)
            continue
        weights = call.seen.layer.trainable_variables
        untrained = [variable_name(v) for v in weights if id(v) not in trained]
        kinds = {call.seen.layer._types[name] for name in call.contrasted}
        idle = {
            variable_name(v)
            for kind, encoder in call.seen.layer._encoders.items()
            for v in (*encoder.trainable_variables, *_temperatures(call, kind))
            if kind not in kinds
        }
        found = {name: x for name, x in gradients.encoders.items() if name not in idle}
        detached = [name for name, x in found.items() if not _reaches(x)]
        if not weights:
            yield failed(
                check, call.name, "no weight is trainable: leave `trainable` of the plug-in True"
            )
        elif untrained:
            yield failed(
                check,
                call.name,
                f"the model does not train {', '.join(untrained)}: make the plug-in an attribute "
                "of the model, or a layer of its graph, before the optimizer is built",
            )
        elif not found:
            yield skipped(check, call.name, _NO_CONTRAST)
        elif detached:
            yield failed(
                check,
                call.name,
                f"no gradient of the side loss reaches {', '.join(detached)}: look for "
                "tf.stop_gradient or a constant in the loss, and for rows that are all alike",
            )
        else:
            smallest = min(x for x in found.values() if x is not None)
            yield passed(
                check,
                call.name,
                f"reaches all {len(found)} weights, each with an entry of {smallest:.1e} or more",
            )


def host_gradients(look: Look) -> Iterator[Finding]:
    """Through every denoised sequence a trainable weight of the host gets a gradient."""
    check = "host gradient"
    for name in look.denoised if look.gradients is not None else ():
        subject = f"{look.name}/{name}"
        if not look.is_finite:
            yield skipped(check, subject, _NOT_FINITE)
            continue
        if name not in look.contrasted:
            yield skipped(check, subject, _NO_CONTRAST)
            continue
        assert look.gradients is not None
        reached = {n: x for n, x in look.gradients.host[name].items() if x is not None and x > 0}
        if reached:
            yield passed(check, subject, f"reaches {', '.join(sorted(reached))}")
        else:
            yield failed(
                check,
                subject,
                "no trainable weight of the model gets a gradient through this sequence: it comes "
                "from behind tf.stop_gradient, from frozen weights, or from the inputs, so "
                "denoising it changes nothing",
            )


def excluded_gradients(look: Look, alone: Alone) -> Iterator[Finding]:
    """Excluded sequences get none, unless the alignment compares others with them."""
    check, layer = "excluded gradient", look.seen.layer
    for name in sorted(set(alone.gradients) - set(look.denoised)):
        subject = f"{look.name}/{name}"
        found = [x for x in alone.gradients[name] if x is not None]
        largest = max((float(tf.reduce_max(tf.abs(x))) for x in found), default=0.0)
        if layer.alignment == "type" and layer._types[name] in layer._aligner.trusted_types:
            yield skipped(check, subject, "trusted: the alignment moves it too")
        elif not look.is_finite:
            yield skipped(check, subject, _NOT_FINITE)
        elif largest == 0:
            yield passed(check, subject, "the side loss does not touch it")
        else:
            yield failed(
                check,
                subject,
                f"the side loss has a gradient of {largest:.1e} on this excluded sequence: a loss "
                "or masking of your own must not read it",
            )


def _temperatures(call: Look, kind: str) -> list[Any]:
    return [v for name, v in call.seen.layer._temperatures.items() if name == kind]


def _reaches(largest: float | None) -> bool:
    return largest is not None and math.isfinite(largest) and largest > 0
