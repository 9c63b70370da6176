"""Prepared rows with noise planted into their histories, as files."""

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config import ConfigError, RunConfig
from seqdenoise.data.atomic import atomic_file, atomic_folder
from seqdenoise.data.files import ParquetSource
from seqdenoise.evaluation.noise import Catalogue, Draw, plant_noise

logger = logging.getLogger(__name__)

_MARK = "noise.json"


def noisy_types(config: RunConfig) -> tuple[str, ...]:
    """The types that may hold noise: neither excluded from denoising nor trusted by it."""
    trusted = config.denoiser.trusted or ()
    spared = {*config.denoiser.exclude, *((trusted,) if isinstance(trusted, str) else trusted)}
    return tuple(kind for kind in config.prepare.sequence_types if kind not in spared)


def check_types(config: RunConfig, types: Sequence[str]) -> None:
    """Raises ConfigError unless these are some of the run's types."""
    unknown = sorted(set(types) - set(config.prepare.sequence_types))
    if unknown or not types:
        raise ConfigError(
            f"noise: expected some of the sequence types {config.prepare.sequence_types}. "
            f"Received: {unknown or 'none'}"
        )


def training_catalogue(config: RunConfig) -> Catalogue:
    """The candidates of the training rows, with their item fields.

    Raises:
        DataError: The prepared training file is missing or damaged, or has no rows.
    """
    fields = config.prepare.item_fields
    with ParquetSource(config.prepared_folder / "train.parquet") as source:
        columns = ["item", *fields]
        source.require(columns)
        groups = range(source.num_row_groups)
        return Catalogue.of_rows((source.read_row_group(i, columns) for i in groups), fields)


def write_noisy(
    source: Path,
    target: Path,
    catalogue: Catalogue,
    *,
    types: Sequence[str],
    rate: float,
    max_length: int,
    draw: Draw,
    seed: int,
) -> None:
    """Writes a prepared split with noise in its histories, its rows in the same order.

    Args:
        source: The prepared file, or folder of files.
        target: The file to write, whole or not at all.
        catalogue: Where items come from.
        types: The types to plant into.
        rate: Share of noise among the events of the histories.
        max_length: The most events of a history.
        draw: How items are drawn.
        seed: Of all draws.

    Raises:
        DataError: A file is damaged, or a column is missing or of the wrong type.
    """
    with ParquetSource(source) as rows, atomic_file(target) as aside:
        writer = None
        try:
            for index in range(rows.num_row_groups):
                noisy, _ = plant_noise(
                    rows.read_row_group(index, rows.schema.names),
                    catalogue,
                    types=types,
                    rate=rate,
                    max_length=max_length,
                    draw=draw,
                    seed=seed,
                )
                if writer is None:
                    writer = pq.ParquetWriter(
                        aside, noisy.schema, compression="zstd", write_page_checksum=True
                    )
                writer.write_table(noisy, row_group_size=max(1, len(noisy)))
            if writer is None:
                empty = pa.schema([rows.schema.field(name) for name in rows.schema.names])
                writer = pq.ParquetWriter(aside, empty)
        finally:
            if writer is not None:
                writer.close()


def files_fingerprint(folder: Path) -> str:
    """What changes when a prepared file does: the names, sizes and times of all of them."""
    parts = [
        f"{path.relative_to(folder)} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def with_train_noise(
    config: RunConfig,
    rate: float,
    *,
    draw: Draw = "uniform",
    types: Sequence[str] | None = None,
    seed: int = 0,
) -> RunConfig:
    """A run that trains on noisy histories and is tested on the prepared ones as they are.

    Writes `train-noise/prepared/` in the run's folder: training and validation rows with noise,
    test rows and everything else as they were. It is kept where an earlier call wrote the same.

    Args:
        config: The run.
        rate: Share of noise, in [0, 1); 0 gives the run itself.
        draw: How items are drawn.
        types: The types to plant into; `noisy_types` by default.
        seed: Of all draws.

    Returns:
        The run on that folder.

    Raises:
        ConfigError: Unknown types.
        DataError: A prepared file is missing or damaged.
    """
    if rate == 0:
        return config
    chosen = noisy_types(config) if types is None else tuple(types)
    check_types(config, chosen)
    catalogue = training_catalogue(config)  # says so if nothing is prepared
    wanted = {
        "rate": rate,
        "draw": draw,
        "types": list(chosen),
        "seed": seed,
        "max_length": config.prepare.max_length,
        "files": files_fingerprint(config.prepared_folder),
    }
    noisy = config.model_copy(update={"folder": config.folder / "train-noise"})
    mark = noisy.prepared_folder / _MARK
    if mark.is_file() and json.loads(mark.read_text(encoding="utf-8")) == wanted:
        return noisy
    with atomic_folder(noisy.prepared_folder) as aside:
        planted = ("train.parquet", "valid.parquet")
        for path in config.prepared_folder.iterdir():
            if path.name in planted:
                target = aside / path.name / "part-00000.parquet"
                target.parent.mkdir()
                write_noisy(
                    path,
                    target,
                    catalogue,
                    types=chosen,
                    rate=rate,
                    max_length=config.prepare.max_length,
                    draw=draw,
                    seed=seed,
                )
            elif path.is_dir():
                shutil.copytree(path, aside / path.name)
            else:
                shutil.copy2(path, aside / path.name)
        (aside / _MARK).write_text(json.dumps(wanted, indent=2), encoding="utf-8")
    logger.info("planted %.0f %% noise into the training histories", 100 * rate)
    return noisy
