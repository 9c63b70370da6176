"""A run on a share of its training rows, as files."""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.config import ConfigError, RunConfig
from pipelines.noise_planting import files_fingerprint
from pipelines.preparation.summary import length_statistics
from seqdenoise.data.atomic import atomic_folder
from seqdenoise.data.columns import IntArray, int64_values
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.mixing import mix64
from seqdenoise.data.shared_rate import KeyArray, list_keys, shared_rates
from seqdenoise.errors import DataError

logger = logging.getLogger(__name__)

_MARK = "fraction.json"
_KEYS = ("user", "item", "timestamp")
_ROW_GROUP_ROWS = 8192


def with_train_fraction(config: RunConfig, fraction: float, *, seed: int = 0) -> RunConfig:
    """A run that trains on a random share of the rows and is tested on all test rows.

    Writes `train-fraction/{fraction}-seed{seed}/prepared/` in the run's folder. Of `train.parquet`
    it holds as many rows as `round` says, in their order. Which ones depends on the seed and on the
    rows' user, item and time, not on the files: those of a smaller share are among those of a
    larger. Validation and test rows are the same files.

    The log stays as it was: rows are impressions with labels, and what is left of them has all of
    its history. `prepare.json` counts the rows that are left, and `tau_plus` in `statistics.json`
    is over them; the mutual information is of events, hence as before. Vocabularies are
    fitted on the prepared rows, hence on those that are left.

    The folder is kept where an earlier call wrote it from the same files.

    Args:
        config: The run.
        fraction: Share of the training rows, in (0, 1]; 1 gives the run itself.
        seed: Of the draw.

    Returns:
        The run on that folder.

    Raises:
        ConfigError: The fraction is out of bounds, or so small that no row is left.
        DataError: A prepared file is missing or damaged.
    """
    if not 0 < fraction <= 1:
        raise ConfigError(f"train fraction: expected a share in (0, 1]. Received: {fraction!r}")
    if fraction == 1:
        return config
    place = config.folder / "train-fraction" / f"{float(fraction)!r}-seed{seed}"
    small = config.model_copy(update={"folder": place})
    source = config.prepared_folder / "train.parquet"
    with ParquetSource(source) as rows:  # says so if nothing is prepared
        num_rows = rows.num_rows
    number = round(fraction * num_rows)
    if not number:
        raise ConfigError(
            f"train fraction: expected at least one row to be left of the {num_rows} in {source}. "
            f"Received: {fraction!r}"
        )
    wanted = {
        "fraction": fraction,
        "seed": seed,
        "types": config.prepare.sequence_types,
        "labels": config.prepare.labels,
        "files": files_fingerprint(config.prepared_folder),
    }
    mark = small.prepared_folder / _MARK
    if mark.is_file() and json.loads(mark.read_text(encoding="utf-8")) == wanted:
        return small
    summary = _read_json(config.prepared_folder / "prepare.json")
    statistics = _read_json(config.prepared_folder / "statistics.json")
    kept = _drawn(source, number, seed)
    with atomic_folder(small.prepared_folder) as aside:
        counts = _Counts(config)
        target = aside / "train.parquet"
        target.mkdir()
        _write_rows(source, kept, target / "part-00000.parquet", counts)
        summary["splits"]["train"] = counts.summary()
        for kind, rates in counts.tau_plus().items():
            statistics[kind]["tau_plus"] = rates
        texts = {"prepare.json": summary, "statistics.json": statistics, _MARK: wanted}
        for name, content in texts.items():
            (aside / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for path in config.prepared_folder.iterdir():
            if path.name in texts or path.name == target.name:
                continue
            if path.is_dir():
                shutil.copytree(path, aside / path.name, copy_function=_link)
            else:
                _link(path, aside / path.name)
    logger.info("train fraction %g: %d of %d rows", fraction, number, num_rows)
    return small


def _read_json(path: Path) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: expected what `prepare` writes. Received: {error}") from error
    return loaded


def _drawn(source: Path, number: int, seed: int) -> npt.NDArray[np.bool_]:
    """Which rows are in: bool `[rows]`, `number` of them true.

    They are those of the smallest hashes, so a smaller number gives a part of them. Rows of one
    user, item and time share a hash, and the earlier ones in the file come first.
    """
    parts = []
    # Mixed, since xor with a small seed itself would deal neighbouring ids the others' hashes.
    start = mix64(np.array([seed], np.uint64))
    with ParquetSource(source) as rows:
        rows.require(_KEYS)
        for index in range(rows.num_row_groups):
            group = rows.read_row_group(index, _KEYS)
            hashed = start
            for key in _KEYS:
                values = int64_values(group, key, rows.place(index)).astype(np.uint64)
                hashed = mix64(hashed ^ values)
            parts.append(hashed)
    order = np.argsort(np.concatenate(parts), kind="stable")
    kept = np.zeros(len(order), np.bool_)
    kept[order[:number]] = True
    return kept


def _kept_rows(source: Path, kept: npt.NDArray[np.bool_]) -> Iterator[pa.Table]:
    with ParquetSource(source) as rows:
        first = 0
        for index in range(rows.num_row_groups):
            group = rows.read_row_group(index, rows.schema.names)
            yield group.filter(pa.array(kept[first : first + len(group)]))
            first += len(group)


def _write_rows(source: Path, kept: npt.NDArray[np.bool_], target: Path, counts: "_Counts") -> None:
    """Writes the rows that are in, in row groups as large as those of `prepare`.

    A training shuffles rows within some row groups at a time: a twentieth of each would be
    shuffled a twentieth as well.
    """
    with ParquetSource(source) as rows:
        schema = pa.schema([rows.schema.field(name) for name in rows.schema.names])
    waiting = schema.empty_table()
    with pq.ParquetWriter(target, schema, compression="zstd", write_page_checksum=True) as writer:
        for part in _kept_rows(source, kept):
            counts.add(part)
            waiting = pa.concat_tables([waiting, part.cast(schema)])
            whole = len(waiting) // _ROW_GROUP_ROWS * _ROW_GROUP_ROWS
            if whole:
                writer.write_table(waiting.slice(0, whole), row_group_size=_ROW_GROUP_ROWS)
                # A slice would keep all of its rows in memory.
                waiting = waiting.slice(whole).combine_chunks()
        if len(waiting):
            writer.write_table(waiting, row_group_size=_ROW_GROUP_ROWS)


class _Counts:
    """What `prepare.json` and `statistics.json` say of training rows.

    Takes 24 bytes of memory a row and type, and 16 a row.
    """

    def __init__(self, config: RunConfig):
        self._labels = dict.fromkeys(config.prepare.labels, 0)
        self._max_length = config.prepare.max_length
        self._users: list[IntArray] = []
        self._times: list[IntArray] = []
        self._keys: dict[str, list[tuple[KeyArray, IntArray]]] = {
            kind: [] for kind in config.prepare.sequence_types
        }

    def add(self, rows: pa.Table) -> None:
        """Takes in some rows."""
        self._users.append(rows["user"].to_numpy())
        self._times.append(rows["timestamp"].to_numpy())
        for name in self._labels:
            self._labels[name] += pc.sum(rows[name], min_count=0).as_py()
        for kind, keys in self._keys.items():
            keys.append(list_keys(rows[f"{kind}__item"], kind))

    def _lengths(self, kind: str) -> IntArray:
        return np.concatenate([lengths for _, lengths in self._keys[kind]])

    def summary(self) -> dict[str, Any]:
        """The entry of a split in `prepare.json`."""
        users, times = np.concatenate(self._users), np.concatenate(self._times)
        return {
            "rows": len(users),
            "users": len(np.unique(users)),
            "first_timestamp": int(times.min()),
            "last_timestamp": int(times.max()),
            "label_rates": {name: float(n / len(users)) for name, n in self._labels.items()},
            "sequences": {
                kind: length_statistics(
                    np.bincount(self._lengths(kind), minlength=self._max_length + 1)
                )
                for kind in self._keys
            },
        }

    def tau_plus(self) -> dict[str, dict[str, float]]:
        """By type the `shared_rates` of the rows whose sequence is not empty."""
        users = np.concatenate(self._users)
        rates = {}
        for kind, parts in self._keys.items():
            filled = self._lengths(kind) > 0
            keys = np.concatenate([keys for keys, _ in parts])
            rates[kind] = shared_rates(users[filled], keys[filled])
        return rates


def _link(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    # Test rows can be most of a log. Nothing writes into a prepared file that is there.
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
