"""Which arguments of the plug-in go together."""

from collections.abc import Mapping
from typing import Any

from seqdenoise.objective import Objective

_ATTACK_OPTIONS = ("num_steps", "step_size", "random_start")


def check_options(
    objective: Objective,
    *,
    num_positives: int,
    temperature: float | None,
    learn_temperature: bool,
    momentum: float | None,
    queue_size: int | None,
    attack: Mapping[str, Any] | None,
    alignment_weight: float | None,
    trusted: Any,
    gate: bool,
    negatives: str,
    gradient_budget: float | None,
    warmup_steps: int,
) -> None:
    """Checks arguments of `SequenceDenoiser`, which says what they mean.

    Args:
        objective: The loss and its options.
        num_positives: See `SequenceDenoiser`, as of all others.
        temperature: As above.
        learn_temperature: As above.
        momentum: As above.
        queue_size: As above.
        attack: As above.
        alignment_weight: As above.
        trusted: As above.
        gate: As above.
        negatives: As above.
        gradient_budget: As above.
        warmup_steps: As above.

    Raises:
        ValueError: One is out of range, or of no use with the loss.
    """
    takes, declares, name = objective.takes, objective.declares, objective.name
    checks: list[tuple[bool, str, Any]] = [
        (num_positives >= 1, "`num_positives` must be at least 1", num_positives),
        (
            num_positives == 1 or takes("more_positives"),
            f"`num_positives` must be 1 with loss {name!r}, which takes one",
            num_positives,
        ),
        (
            temperature is None or temperature > 0,
            "`temperature` must be above 0",
            temperature,
        ),
        (
            takes("temperature") or (temperature is None and not learn_temperature),
            f"Loss {name!r} has no temperature, so there is none to set or learn",
            f"temperature={temperature}, learn_temperature={learn_temperature}",
        ),
        (
            declares("queue") or (momentum is None and queue_size is None),
            "`momentum` and `queue_size` must be None with a loss that takes no queue",
            f"momentum={momentum}, queue_size={queue_size}",
        ),
        (momentum is None or 0 <= momentum <= 1, "`momentum` must be in [0, 1]", momentum),
        (queue_size is None or queue_size >= 1, "`queue_size` must be at least 1", queue_size),
        (
            declares("adversarial") or attack is None,
            "`attack` must be None with a loss that takes no adversarial view",
            attack,
        ),
        (
            attack is None or {"epsilon"} <= set(attack) <= {"epsilon", *_ATTACK_OPTIONS},
            f"`attack` must have `epsilon`, and may have {list(_ATTACK_OPTIONS)}",
            attack,
        ),
        (
            alignment_weight is None or alignment_weight >= 0,
            "`alignment_weight` must be at least 0",
            alignment_weight,
        ),
        (
            trusted is not None or not gate,
            "`gate` needs `trusted`, the types whose events are taken for signal",
            f"gate={gate}, trusted={trusted}",
        ),
        (negatives in ("global", "local"), "`negatives` must be 'global' or 'local'", negatives),
        (
            gradient_budget is None or gradient_budget > 0,
            "`gradient_budget` must be above 0, or None",
            gradient_budget,
        ),
        (warmup_steps >= 0, "`warmup_steps` must be at least 0", warmup_steps),
    ]
    for holds, expected, received in checks:
        if not holds:
            raise ValueError(f"{expected}. Received: {received}")
