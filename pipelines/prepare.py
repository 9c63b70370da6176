"""Raw logs to one row an impression with point-in-time sequences, split by time."""

import json
import logging
import os
import shutil
from itertools import chain
from pathlib import Path
from typing import Literal

from pipelines.config import ConfigError, RunConfig
from pipelines.disk_space import needs_room
from pipelines.log_folder import open_log
from pipelines.preparation import local
from pipelines.preparation.plan import BUCKET_ROWS, PART_ROWS, make_plan
from pipelines.preparation.summary import summarise
from pipelines.preparation.work_folder import WorkFolder
from pipelines.splits import SPLITS, split_bounds
from pipelines.statistics import training_statistics
from pipelines.work_lock import alone_in
from seqdenoise.data.atomic import atomic_folder
from seqdenoise.data.files import ParquetSource
from seqdenoise.errors import DataError

_logger = logging.getLogger(__name__)


def _check_names(config: RunConfig, impressions: ParquetSource) -> None:
    prepare, rules = config.prepare, config.prepare.rules()
    names = ["user", "item", "timestamp", *prepare.labels, *prepare.context_fields]
    names += [*prepare.item_fields, *prepare.user_fields]
    names += [name for name in ["weight"] if name in impressions.schema.names]
    names += chain.from_iterable(
        [*rules.columns(kind), f"{kind}__length"] for kind in prepare.sequence_types
    )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"{impressions.path}: expected output columns of distinct names (labels, context, "
            f"item and user fields, sequences). Received: {twice} more than once"
        )


def prepare(
    config: RunConfig,
    *,
    engine: Literal["local", "spark"] = "local",
    processes: int | None = None,
    part_rows: int = PART_ROWS,
    bucket_rows: int = BUCKET_ROWS,
) -> None:
    """Writes the folders `train.parquet`, `valid.parquet`, `test.parquet` and two JSON files.

    One row an impression: keys, labels, context fields, `weight` where the log has it, the
    candidate's item fields, user fields, and each type's sequences as `SequenceBuilder.build` makes
    them. The users are dealt to buckets by a hash, and each bucket is a file of each folder, sorted
    by time, user and item. `prepare.json` counts what was written, and `statistics.json` holds the
    `training_statistics`.

    Memory is that of a bucket, or a part of the log, and of the item table in each process. The
    prepared folder appears whole or not at all. Finished pieces are kept in `.prepare` meanwhile: a
    run that was killed goes on where it was, if log and run file are still the same. Both engines
    write the same files.

    Args:
        config: The run.
        engine: `local` works in processes of this machine, `spark` on the Spark cluster that
            `SparkSession.builder` finds.
        processes: How many of the local engine at a time; by default one a core.
        part_rows: As in `make_plan`.
        bucket_rows: As in `make_plan`.

    Raises:
        DataError: The log cannot be used, a split has no rows, or two columns share a name.
        ConfigError: The split's times are not in order.
        WorkerDiedError: A process of the local engine was killed.
        DiskFullError: There was no room to write.
        FolderInUseError: Another process is at the same preparation.
    """
    if part_rows < 1 or bucket_rows < 1 or (processes is not None and processes < 1):
        raise ConfigError(
            "expected processes, part_rows and bucket_rows of at least 1. "
            f"Received: {processes}, {part_rows}, {bucket_rows}"
        )
    split_bounds(config.prepare.split, config.log.time_unit)  # before any work
    with open_log(config) as sources:
        _check_names(config, sources["impressions"])
        plan = make_plan(config, sources, part_rows=part_rows, bucket_rows=bucket_rows)
    work = WorkFolder(config.folder / ".prepare", plan)
    then = f"What is finished is kept in {work.path}; make room and run again"
    with alone_in(work.path), needs_room("what `prepare` writes", config.folder, then):
        work.open()
        try:
            if engine == "spark":
                from pipelines.preparation import spark

                spark.deal_and_build(config, work)
            else:
                # A log of one bucket is done before another process has started.
                processes = min(processes or len(os.sched_getaffinity(0)), plan.num_buckets)
                local.deal_and_build(config, work, processes=processes)
            _finish(config, work)
        except DataError:
            # Another log is needed, and another plan: nothing that is there can be of use.
            work.remove()
            raise
        work.remove()


def _finish(config: RunConfig, work: WorkFolder) -> None:
    """Puts the buckets' files together in the prepared folder."""
    summary = summarise(config, work)
    statistics = training_statistics(config, work)
    with atomic_folder(config.prepared_folder) as folder:
        for split in SPLITS:
            target = folder / f"{split}.parquet"
            target.mkdir()
            for bucket in range(work.plan.num_buckets):
                source = work.bucket_folder(bucket) / f"{split}.parquet"
                if source.exists():
                    _link(source, target / f"part-{bucket:05d}.parquet")
        for name, content in (("prepare", summary), ("statistics", statistics)):
            text = json.dumps(content, indent=2) + "\n"
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
    for split, counts in summary["splits"].items():
        _logger.info("%s: %d impressions", split, counts["rows"])
    if outside := summary["impressions_outside_splits"]:
        _logger.info("%d impressions lie outside the splits and are left out", outside)


def _link(source: Path, target: Path) -> None:
    # Not moved: should this process be killed now, the finished bucket must still be there.
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
