"""The `bench transport` job: our Sinkhorn solver beside others."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.config import ConfigError
from pipelines.contest import Contender, Contest, run_contest
from pipelines.transport_contenders import CONTENDERS

SIZES = ("512", "1024", "2048", "4096", "512x50x50")
BASELINE = "seqdenoise, XLA"

_PROBLEM = {"dim": 32, "epsilon": 0.05, "iterations": 50}
_DISTRIBUTIONS = (
    "seqdenoise", "tensorflow", "numpy", "scipy", "pot", "ott-jax", "jax", "jaxlib",
    "geomloss", "torch",
)  # fmt: skip


def parse_size(text: str) -> dict[str, int]:
    """Reads `"512"` (one problem of 512 x 512) or `"512x50x50"` (512 problems of 50 x 50).

    Raises:
        ConfigError: It is neither.
    """
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*)x([1-9]\d*))?", text)
    if match is None:
        raise ConfigError(
            "sizes: expected a number (512) or problems x rows x columns (512x50x50). "
            f"Received: {text!r}"
        )
    first, rows, columns = match.groups()
    sizes = (1, first, first) if rows is None else (first, rows, columns)
    names = ("num_problems", "num_rows", "num_columns")
    return {name: int(size) for name, size in zip(names, sizes, strict=True)}


def bench_transport(
    sizes: Sequence[str] = SIZES,
    *,
    rounds: int = 5,
    memory: bool = True,
    output: Path | None = None,
    contenders: Sequence[Contender] = CONTENDERS,
) -> dict[str, Any]:
    """Times solvers of the same transport problems in turns, and measures their memory.

    Args:
        sizes: As `parse_size` reads them.
        rounds: Turns of each contender at each size, at least 1.
        memory: Whether to measure memory.
        output: The JSON file of everything measured.
        contenders: Who takes part; those whose packages are missing are listed as such.

    Returns:
        See `pipelines.contest.run_contest`.

    Raises:
        ConfigError: A size or `rounds` is out of range.
        RuntimeError: One of our own solvers failed.
    """
    contest = Contest(
        module="pipelines.transport_contenders",
        contenders=contenders,
        baseline=BASELINE,
        reference=BASELINE,
        distributions=_DISTRIBUTIONS,
    )
    problems = {size: {**parse_size(size), **_PROBLEM} for size in sizes}
    return run_contest(contest, problems, rounds=rounds, memory=memory, output=output)
