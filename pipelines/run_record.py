"""What a training run depends on, to be recorded with it and compared with another's."""

import hashlib
import json
import os
import platform
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import tensorflow as tf

import seqdenoise
from pipelines.config import RunConfig
from seqdenoise.data.files import ParquetSource

_BLOCK = 1 << 20
# How a run is watched and kept changes no result.
_WITHOUT_EFFECT = {"tensorboard", "mlflow", "backup_minutes"}


def versions() -> dict[str, str]:
    """The version of everything that computes."""
    return {
        "seqdenoise": seqdenoise.__version__,
        "tensorflow": tf.__version__,
        "tf_keras": metadata.version("tf-keras"),
        "tensorflow_recommenders": metadata.version("tensorflow-recommenders"),
        "numpy": np.__version__,
        "pandas": pd.__version__,
        "pyarrow": pa.__version__,
    }


def data_record(prepared_folder: Path, *, test: bool = True) -> dict[str, dict[str, Any]]:
    """What identifies the prepared data.

    Args:
        prepared_folder: What `prepare` wrote.
        test: Whether the test rows are part of it.

    Returns:
        For each split its number of files, rows and bytes, and `sha256`, of the names and contents
        of all its files; and the same hash of `statistics.json`, where it is there. The times of
        the files do not matter.

    Raises:
        DataError: A split is missing or damaged.
    """
    record: dict[str, dict[str, Any]] = {}
    for split in ("train", "valid", "test") if test else ("train", "valid"):
        with ParquetSource(prepared_folder / f"{split}.parquet") as source:
            paths = [Path(name) for name, _ in source.files]
            record[split] = {
                "files": len(paths),
                "rows": source.num_rows,
                "bytes": sum(size for _, size in source.files),
                "sha256": _hash_of(paths),
            }
    # Estimates that the plug-in may take its options from.
    statistics = prepared_folder / "statistics.json"
    if statistics.is_file():
        record["statistics"] = {"sha256": _hash_of([statistics])}
    return record


def _hash_of(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        stat = path.stat()
        content = _content_hash(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)
        digest.update(f"{path.name} {content}\n".encode())
    return digest.hexdigest()


@cache
def _content_hash(path: Path, *_: int) -> str:
    """Of a file; the further arguments change when it does."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(config: RunConfig, seed: int, *, test: bool = True) -> str:
    """Equal for runs of which the results must be equal.

    Args:
        config: The run.
        seed: Its seed.
        test: Whether it scores the test rows.

    Returns:
        A hash of the seed, the data, the versions, and the configuration but for what has no effect
        on the results.

    Raises:
        DataError: A prepared file is missing or damaged.
    """
    sections = {"prepare", "model", "train"}
    # The other options of a plug-in that is off change nothing.
    sections |= {"denoiser"} if config.denoiser.enabled else set()
    settings = config.model_dump(mode="json", include=sections)
    for name in _WITHOUT_EFFECT:
        del settings["train"][name]
    content = {
        "config": settings,
        "seed": seed,
        "data": data_record(config.prepared_folder, test=test),
        "versions": versions(),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_finished(folder: Path, expected: str) -> bool:
    """Whether a folder holds a finished run, and not that of another configuration.

    Args:
        folder: Of the run. Runs are renamed into place when whole, so one that is there is whole.
        expected: The fingerprint of the run.
    """
    mark = folder / "fingerprint.txt"
    return mark.is_file() and mark.read_text(encoding="utf-8") == expected


def run_record(config: RunConfig, seed: int, *, test: bool = True) -> dict[str, Any]:
    """What `record.json` of a run's folder holds: all that somebody needs to make it again.

    Args:
        config: The run.
        seed: Its seed.
        test: Whether it scores the test rows.

    Returns:
        The fingerprint, seed, data, versions, and the machine.
    """
    return {
        "fingerprint": fingerprint(config, seed, test=test),
        "seed": seed,
        "data": data_record(config.prepared_folder, test=test),
        "versions": {"python": platform.python_version(), **versions()},
        "machine": {
            "platform": platform.platform(),
            "cores": len(os.sched_getaffinity(0)),
            "devices": [device.device_type for device in tf.config.list_physical_devices()],
        },
        "deterministic": config.train.deterministic,
    }
