"""Both stages on this machine, in one process or several."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import get_context
from typing import Any, TypeVar

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipelines.config import RunConfig
from pipelines.job_errors import WorkerDiedError
from pipelines.log_folder import read_items
from pipelines.preparation.bucket import build_bucket
from pipelines.preparation.partition import partition
from pipelines.preparation.plan import LogPart
from pipelines.preparation.summary import check_counts
from pipelines.preparation.work_folder import WorkFolder
from pipelines.worker_processes import end_with_parent

_logger = logging.getLogger(__name__)
_Piece = TypeVar("_Piece")


def deal_and_build(config: RunConfig, work: WorkFolder, *, processes: int) -> None:
    """Deals the log to buckets and builds them; what is finished already is left as it is.

    Args:
        config: The run.
        work: Where parts and buckets go.
        processes: How many at a time.

    Raises:
        DataError: The log cannot be used.
        WorkerDiedError: A process was killed.
    """
    with _pool(processes) as pool:
        parts = work.missing_parts()
        _each("dealing the log to user buckets", _deal_part, parts, config, work, pool)
        work.save_counts(work.dealt_counts())
        check_counts(config, work.counts())
        buckets = range(work.plan.num_buckets)
        missing = [bucket for bucket in buckets if not work.has_bucket(bucket)]
        _each("building sequences", _build_bucket, missing, config, work, pool)


def _deal_part(config: RunConfig, work: WorkFolder, part: LogPart) -> None:
    counts: dict[str, Any] = {}
    num_chunks = 0
    for buckets in partition(config, part, work.plan.num_buckets, counts):
        work.write_chunk(part, num_chunks, buckets)
        num_chunks += 1
    work.finish_part(part, num_chunks, counts)


def _build_bucket(config: RunConfig, work: WorkFolder, bucket: int) -> None:
    build_bucket(
        config,
        work.bucket_tables(bucket),
        cached_items(config.model_dump_json()),
        work.bucket_folder(bucket),
        num_ranges=work.plan.num_buckets,
    )


@lru_cache(maxsize=1)
def cached_items(config: str) -> pa.Table | None:
    """`read_items`, once a process; takes the run as JSON, since a cache needs a hash."""
    return read_items(RunConfig.model_validate_json(config))


def _each(
    what: str,
    work_on: Callable[[RunConfig, WorkFolder, _Piece], None],
    pieces: Sequence[_Piece],
    config: RunConfig,
    work: WorkFolder,
    pool: ProcessPoolExecutor | None,
) -> None:
    with _progress(what, len(pieces)) as advance:
        if pool is None:
            for piece in pieces:
                work_on(config, work, piece)
                advance()
            return
        futures = [pool.submit(_in_process, work_on, config, work, piece) for piece in pieces]
        try:
            for future in as_completed(futures):
                future.result()
                advance()
        except BrokenProcessPool as error:
            raise WorkerDiedError(
                f"{what}: expected every process to finish its piece. Received: one that ended "
                "without an answer, killed for its memory most likely. What is finished is kept in "
                f"{work.path}; run again, with fewer --processes or a smaller --bucket-rows"
            ) from error
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _in_process(
    work_on: Callable[[RunConfig, WorkFolder, _Piece], None],
    config: RunConfig,
    work: WorkFolder,
    piece: _Piece,
) -> None:
    work_on(config, work, piece)
    # What one process keeps for later the other cannot have.
    pa.default_memory_pool().release_unused()


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes for both stages, since one takes a second to start; None for this one alone."""
    if processes == 1:
        yield None
        return
    # Not forked: a fork of a process with threads (Arrow's, TensorFlow's) can hang. TensorFlow
    # would cost each process 600 MB.
    with (
        environment(SEQDENOISE_DATA_ONLY="1"),
        ProcessPoolExecutor(
            processes, mp_context=get_context("spawn"), initializer=end_with_parent
        ) as pool,
    ):
        yield pool


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Sets environment variables for the processes that start meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; elsewhere a line now and then, and none where there is one piece."""
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=total)
            yield lambda: bar.advance(task)
        return
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        # Ten lines, whatever the number of pieces.
        if total > 1 and (done == total or done * 10 // total > (done - 1) * 10 // total):
            _logger.info("%s: %d of %d", what, done, total)

    yield advance
