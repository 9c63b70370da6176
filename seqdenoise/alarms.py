"""When the health of a plug-in calls for attention, and what to do about it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Alarm:
    """Something that should be looked at; as a string, a sentence.

    Attributes:
        kind: `"collapse"`, `"domination"`, `"few valid rows"`, `"false negatives"`,
            `"no decrease"`, `"not finite"` or `"not measured"`.
        subject: A sequence as `"{plug-in}/{sequence}"`; `"model"` for domination.
        step: Number of training steps made since training began.
        value: What was measured.
        limit: What it should not have passed.
        advice: What it means and what to do.
    """

    kind: str
    subject: str
    step: int
    value: float
    limit: float
    advice: str

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.subject} after {self.step} steps: {self.advice} "
            f"(measured {self.value:.3g}, limit {self.limit:.3g})"
        )


@dataclass(frozen=True)
class _Rule:
    kind: str
    limit: float
    is_upper: bool
    advice: str


# By the name of what is measured; the last part of a metric's name.
_RULES = {
    "effective_rank": _Rule(
        "collapse", 2.0, False,
        "the vectors of all rows lie in almost one direction, so the views agree and say nothing. "
        "Lower `weight` or `alignment_weight`, raise `temperature`, or use a loss with negatives",
    ),
    "uniformity": _Rule(
        "collapse", -0.1, True,
        "the vectors of all rows are nearly the same. Lower `weight` or `alignment_weight`, or use "
        "a loss with negatives and larger batches",
    ),
    "valid_rate": _Rule(
        "few valid rows", 0.1, False,
        "few rows have real events in both views, so few are contrasted. Check the mask (True is a "
        "real event); a sequence this rare may go without, exclude=(...)",
    ),
    "false_negative_rate": _Rule(
        "false negatives", 0.5, True,
        "most pairs of rows are dropped, for their ids or their likeness, so few negatives are "
        "left. Shuffle the rows, check `sample_ids`, or raise `max_similarity`",
    ),
    "side_gradient_ratio": _Rule(
        "domination", 1.0, True,
        "the side loss pulls the shared weights harder than the model's own loss does. Divide "
        "`weight` by what was measured, or let it fall with a schedule",
    ),
    "side_loss_share": _Rule(
        "domination", 0.5, True,
        "the side loss is most of the loss. Lower `weight`",
    ),
}  # fmt: skip
LIMITS = {name: rule.limit for name, rule in _RULES.items()}


def check_limits(limits: Mapping[str, float | None]) -> dict[str, float | None]:
    """The default limits with those of a user in their place.

    Args:
        limits: By the name of what is measured; None for no limit.

    Returns:
        A limit, or None, for each name of `LIMITS`.

    Raises:
        ValueError: A name is unknown.
    """
    unknown = sorted(set(limits) - set(LIMITS))
    if unknown:
        raise ValueError(f"`limits` may have {sorted(LIMITS)}. Received: {unknown}")
    return {**LIMITS, **limits}


def passed_limits(
    subject: str, step: int, measured: Mapping[str, float], limits: Mapping[str, float | None]
) -> Iterator[Alarm]:
    """An alarm for each measurement that passed its limit.

    Args:
        subject: What was measured.
        step: Number of training steps made.
        measured: By the name of what is measured. NaN, which is nothing, passes no limit; names
            without a rule are left out.
        limits: From `check_limits`.

    Yields:
        The alarms.

    Example:
        >>> measured = {"effective_rank": 1.1, "loss": 3.0, "uniformity": float("nan")}
        >>> [(one.kind, one.value) for one in passed_limits("d/click", 10, measured, LIMITS)]
        [('collapse', 1.1)]
    """
    for name, value in measured.items():
        rule, limit = _RULES.get(name), limits.get(name)
        if rule is None or limit is None or math.isnan(value):
            continue
        if value > limit if rule.is_upper else value < limit:
            yield Alarm(rule.kind, subject, step, value, limit, rule.advice)


def not_measured_alarms(subject: str, step: int, measured: Mapping[str, float]) -> Iterator[Alarm]:
    """An alarm if the plug-in did not run since the metrics were reset, or its loss is broken.

    Args:
        subject: A sequence.
        step: Number of training steps made.
        measured: Its health, `loss` and `valid_rate` among it.

    Yields:
        At most one alarm.
    """
    if math.isnan(measured["valid_rate"]):
        advice = "the plug-in was not run in training. Run seqdenoise.self_check on a batch"
        yield Alarm("not measured", subject, step, math.nan, math.nan, advice)
    elif not math.isfinite(measured["loss"]):
        advice = "the side loss is NaN or infinite. Run seqdenoise.self_check on the last batches"
        yield Alarm("not finite", subject, step, measured["loss"], math.inf, advice)


def no_decrease_alarms(
    subject: str, step: int, losses: list[float], patience: int
) -> Iterator[Alarm]:
    """An alarm if the loss of none of the last epochs is below that of the first.

    Args:
        subject: A sequence.
        step: Number of training steps made.
        losses: Of each epoch so far.
        patience: Number of epochs after the first that may pass without.

    Yields:
        At most one alarm.
    """
    if len(losses) > patience and min(losses[1:]) >= 0.999 * losses[0]:
        advice = (
            "the side loss does not fall. Raise `weight` or the learning rate, check with "
            "seqdenoise.self_check that its gradient reaches what it is to train, or try more "
            "`warm_start`"
        )
        yield Alarm("no decrease", subject, step, min(losses[1:]), losses[0], advice)
