"""Training steps of the reference ranker, bare and with the plug-in, as contenders of a contest."""

from collections.abc import Callable
from typing import Any, NamedTuple

from pipelines.contest import Contender, Results

BARE, PLUGGED = "bare", "with the plug-in"


class StepProblem(NamedTuple):
    """A batch, and the shape of what is in it.

    Attributes:
        batch: Encoded features.
        shape: `length`, `num_types` and `num_fields`.
    """

    batch: dict[str, Any]
    shape: dict[str, int]


def make_problem(num_rows: int, length: int, num_types: int, num_fields: int) -> StepProblem:
    """Draws a batch; see `pipelines.bench_step.step_batch`."""
    from pipelines.bench_step import step_batch

    shape = {"length": length, "num_types": num_types, "num_fields": num_fields}
    return StepProblem(step_batch(num_rows, **shape), shape)


def _step_of(problem: StepProblem, *, plugged: bool) -> Callable[[], Results]:
    from pipelines.bench_step import training_step

    step = training_step(problem.batch, plugged=plugged, **problem.shape)
    step()  # which makes the optimizer's slots; the one after it is traced anew, without that

    def call() -> Results:
        losses = step()
        names = ("loss", "regularization_loss", "total_loss")
        value, side, total = (losses[name].numpy() for name in names)
        return value, side, total

    return call


CONTENDERS = (
    Contender(BARE, lambda problem: _step_of(problem, plugged=False), is_comparable=False),
    Contender(PLUGGED, lambda problem: _step_of(problem, plugged=True), is_comparable=False),
)
