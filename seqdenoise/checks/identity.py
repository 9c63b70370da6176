"""Was the plug-in called as a plug-in is meant to be?"""

from collections.abc import Iterator

import tensorflow as tf

from seqdenoise.checks.alone import Alone
from seqdenoise.checks.finding import Finding, failed, passed, skipped
from seqdenoise.checks.look import Look, ModelLook
from seqdenoise.side_weight import is_on

# What a user types or asks for is an intent, not a noisy trace of one.
_INTENTS = ("search", "query", "queries")


def called(look: ModelLook) -> Iterator[Finding]:
    """Every plug-in is run in training, adds its loss, and the model collects it."""
    check = "called in training"
    for layer in look.not_called:
        yield failed(
            check,
            layer.name,
            "the model holds it and does not call it: call it on the embedded sequences",
        )
    for call in look.calls:
        if not is_on(call.seen.layer.weight):
            yield skipped(check, call.name, "weight=0: the plug-in is off")
        elif not call.seen.adds_loss:
            yield failed(
                check,
                call.name,
                "it was called with training=False and adds no loss: pass `training=training` on "
                "from the model's own call",
            )
        elif not call.is_tracked:
            yield failed(
                check,
                call.name,
                "it is no layer of the model, so its loss is not in `model.losses`: make it an "
                "attribute of the model",
            )
        else:
            yield passed(check, call.name, f"adds a side loss of {float(call.seen.added):.4g}")


def returned_unchanged(look: Look, alone: Alone) -> Iterator[Finding]:
    """Every sequence comes out as it went in, unless it is gated."""
    check, layer = "returned unchanged", look.seen.layer
    for name, given in alone.given.items():
        subject = f"{look.name}/{name}"
        if layer.gate and name in layer._noisy:
            yield skipped(check, subject, "gated: its events are weighted by their keep scores")
            continue
        pairs = zip(tf.nest.flatten(given), tf.nest.flatten(alone.returned[name]), strict=True)
        if all(one.numpy().tobytes() == other.numpy().tobytes() for one, other in pairs):
            yield passed(check, subject, "to the last bit")
        else:
            yield failed(
                check, subject, "it came out changed: a `call` of your own must return what it got"
            )


def no_intent_denoised(look: Look) -> Iterator[Finding]:
    """Searches are left alone."""
    kinds = look.seen.layer._types
    named = [
        name
        for name in look.denoised
        if any(word in part.lower() for word in _INTENTS for part in (name, kinds[name]))
    ]
    for name in named:
        yield failed(
            "searches left alone",
            f"{look.name}/{name}",
            "it looks like a search, which states an intent and is no noise, and is denoised: "
            f"exclude=({', '.join(repr(one) for one in (*look.seen.layer.exclude, kinds[name]))},)",
        )
    if not named:
        yield passed("searches left alone", look.name, f"denoised: {', '.join(look.denoised)}")
