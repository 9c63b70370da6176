"""Finished pieces of a preparation, kept until all are there, so that a killed one can go on."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from pipelines.log_folder import TableName
from pipelines.preparation.bucket import SUMMARY
from pipelines.preparation.partition import read_bucket, write_chunk
from pipelines.preparation.plan import LogPart, Plan
from pipelines.work_lock import clear
from seqdenoise.data.atomic import atomic_file, remove_folder

Counts: TypeAlias = dict[TableName, list[dict[str, Any]]]
"""For each part of each table what `partition` counted in it."""

_logger = logging.getLogger(__name__)


class WorkFolder:
    """The parts dealt to buckets and the buckets built, each written whole or not at all.

    Args:
        path: The folder.
        plan: Whose pieces they are.
    """

    def __init__(self, path: Path, plan: Plan):
        self.path = path
        self.plan = plan

    def open(self) -> None:
        """Makes the folder, or takes up what an earlier run of the same plan has finished.

        What another plan has left (another log, or another run file) is removed. The caller has
        the folder for itself.
        """
        stamp = self.path / "plan.json"
        if self.path.exists() and any(self.path.iterdir()):
            try:
                same = json.loads(stamp.read_text("utf-8"))["fingerprint"] == self.plan.fingerprint
            except (OSError, ValueError, KeyError, TypeError):
                same = False
            if same:
                finished = sum(self.has_bucket(index) for index in range(self.plan.num_buckets))
                _logger.info(
                    "going on with an unfinished run: %d of %d parts, %d of %d buckets are there",
                    len(self.plan.parts) - len(self.missing_parts()),
                    len(self.plan.parts),
                    finished,
                    self.plan.num_buckets,
                )
                return
            _logger.info("%s: an unfinished run of something else is removed", self.path)
            clear(self.path, stamp)
        with atomic_file(stamp) as aside:
            aside.write_text(json.dumps({"fingerprint": self.plan.fingerprint}), "utf-8")

    def remove(self) -> None:
        """Removes the folder, at once: half of it would look like one to go on with."""
        remove_folder(self.path)

    def _chunk(self, part: LogPart, index: int) -> Path:
        return self.path / "parts" / f"{part.name}-{index:04d}.arrow"

    def _done(self, part: LogPart) -> Path:
        return self.path / "parts" / f"{part.name}.json"

    def missing_parts(self) -> list[LogPart]:
        """The parts still to be dealt."""
        return [part for part in self.plan.parts if not self._done(part).exists()]

    def write_chunk(self, part: LogPart, index: int, buckets: Sequence[pa.Table]) -> None:
        """Keeps what `partition` yielded."""
        with atomic_file(self._chunk(part, index)) as aside:
            write_chunk(aside, buckets)

    def finish_part(self, part: LogPart, num_chunks: int, counts: dict[str, Any]) -> None:
        """Marks a part as dealt, once all its chunks are written."""
        with atomic_file(self._done(part)) as aside:
            aside.write_text(json.dumps({"chunks": num_chunks, "counts": counts}), "utf-8")

    def _read_done(self, part: LogPart) -> dict[str, Any]:
        return json.loads(self._done(part).read_text("utf-8"))

    def dealt_counts(self) -> Counts:
        """What was counted in each part, once all are dealt."""
        counts: Counts = {}
        for part in self.plan.parts:
            counts.setdefault(part.table, []).append(self._read_done(part)["counts"])
        return counts

    def save_counts(self, counts: Counts) -> None:
        """Keeps what the first stage counted."""
        with atomic_file(self.path / "counts.json") as aside:
            aside.write_text(json.dumps(counts), encoding="utf-8")

    def counts(self) -> Counts:
        """What `save_counts` kept."""
        return json.loads((self.path / "counts.json").read_text("utf-8"))

    def bucket_tables(self, bucket: int) -> dict[TableName, pa.Table]:
        """One bucket's rows of every table."""
        chunks: dict[TableName, list[Path]] = {}
        for part in self.plan.parts:
            paths = [self._chunk(part, index) for index in range(self._read_done(part)["chunks"])]
            chunks.setdefault(part.table, []).extend(paths)
        return {name: read_bucket(paths, bucket) for name, paths in chunks.items()}

    def bucket_folder(self, bucket: int) -> Path:
        """Where a bucket's files are once it is built."""
        return self.path / "buckets" / f"{bucket:05d}"

    def has_bucket(self, bucket: int) -> bool:
        """Whether a bucket is built."""
        return self.bucket_folder(bucket).exists()

    def summaries(self) -> list[dict[str, Any]]:
        """The `summary.json` of every bucket."""
        return [
            json.loads((self.bucket_folder(index) / SUMMARY).read_text("utf-8"))
            for index in range(self.plan.num_buckets)
        ]
