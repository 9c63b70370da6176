"""The `simulate` job: a log with known noise, written as a log folder."""

import logging
import os
from typing import Any

import pyarrow.parquet as pq

from pipelines.config import ConfigError
from seqdenoise.data.atomic import atomic_folder
from seqdenoise.data.simulate import simulate_log
from seqdenoise.data.simulation_spec import SimulationSpec

logger = logging.getLogger(__name__)


def write_simulated_log(folder: str | os.PathLike[str], **parameters: Any) -> dict[str, int]:
    """Simulates a log and writes each of its tables as `<name>.parquet`.

    Args:
        folder: The log folder; replaced whole if it exists.
        **parameters: The fields of `seqdenoise.data.simulation_spec.SimulationSpec`.

    Returns:
        Rows by table name.

    Raises:
        ConfigError: A parameter is unknown or out of range; nothing is written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp()) / "log"
        >>> counts = write_simulated_log(folder, num_users=30, num_items=60, num_categories=6)
        >>> counts["users"], counts["items"]
        (30, 60)
    """
    try:
        SimulationSpec(**parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"simulate: {error}") from error
    tables = simulate_log(**parameters)
    with atomic_folder(folder) as aside:
        for name, table in tables.items():
            pq.write_table(table, aside / f"{name}.parquet", compression="zstd")
    for name, table in tables.items():
        logger.info("simulate: %s.parquet has %d rows", name, table.num_rows)
    truth = tables["truth"]
    noise = sum(truth.column("is_noise").to_pylist())
    logger.info("simulate: %d of %d events are noise", noise, truth.num_rows)
    return {name: table.num_rows for name, table in tables.items()}
