"""The `bench losses` job: our InfoNCE beside others and the matrix products it is made of."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.config import ConfigError
from pipelines.contest import Contender, Contest, run_contest
from pipelines.loss_contenders import CONTENDERS

ROWS = (1024, 4096, 16_384, 32_768)
BASELINE = "matrix products alone"
REFERENCE = "seqdenoise"

_PROBLEM = {"dim": 32, "temperature": 0.1}
_DISTRIBUTIONS = ("seqdenoise", "tensorflow", "tensorflow-recommenders", "numpy", "torch")


def bench_losses(
    rows: Sequence[int] = ROWS,
    *,
    rounds: int = 5,
    memory: bool = True,
    output: Path | None = None,
    contenders: Sequence[Contender] = CONTENDERS,
) -> dict[str, Any]:
    """Times the loss and its gradient of the same batches in turns, and measures the memory.

    Args:
        rows: Sizes of the batch, each at least 2.
        rounds: Turns of each contender at each size, at least 1.
        memory: Whether to measure memory.
        output: The JSON file of everything measured.
        contenders: Who takes part; those whose packages are missing are listed as such.

    Returns:
        See `pipelines.contest.run_contest`.

    Raises:
        ConfigError: A size or `rounds` is out of range.
        RuntimeError: Our own loss failed.
    """
    if not rows or min(rows) < 2:
        raise ConfigError(f"rows: expected batches of at least 2. Received: {list(rows)}")
    contest = Contest(
        module="pipelines.loss_contenders",
        contenders=contenders,
        baseline=BASELINE,
        reference=REFERENCE,
        distributions=_DISTRIBUTIONS,
    )
    problems = {f"{number:,}": {"num_rows": number, **_PROBLEM} for number in rows}
    return run_contest(contest, problems, rounds=rounds, memory=memory, output=output)
