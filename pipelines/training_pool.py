"""Runs trained in this process, or side by side in several that share its cores."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

from pipelines.worker_processes import end_with_parent

P = ParamSpec("P")
T = TypeVar("T")
# TensorFlow and XLA keep some 0.3 GB of every run until their process ends.
_RUNS_OF_A_PROCESS = 8


class _Here(Executor):
    """Does at once, in this process, what it is given."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        # What goes wrong is raised here and now: nobody is to start the next run after it.
        future.set_result(fn(*args, **kwargs))
        return future


class _Process:
    """One process, and after some runs another in its place."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ProcessPoolExecutor | None = None
        self._runs = 0

    def run(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        # Not `max_tasks_per_child`: Python has it from 3.11 on.
        if self._runs == _RUNS_OF_A_PROCESS:
            self.end()
        if self._pool is None:
            # Not forked: a fork of a process with threads (Arrow's, TensorFlow's) can hang.
            self._pool = ProcessPoolExecutor(
                1,
                mp_context=get_context("spawn"),
                initializer=_start_process,
                initargs=(self._threads,),
            )
        self._runs += 1
        return self._pool.submit(fn, *args, **kwargs).result()

    def end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._pool, self._runs = None, 0


class _Processes(Executor):
    """Several processes, each with a thread here that hands it one run after another."""

    def __init__(self, number: int) -> None:
        threads = max(1, len(os.sched_getaffinity(0)) // number)
        self._all = [_Process(threads) for _ in range(number)]
        self._free: SimpleQueue[_Process] = SimpleQueue()
        for process in self._all:
            self._free.put(process)
        self._hands = ThreadPoolExecutor(number)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._hands.submit(self._run, fn, args, kwargs)

    def _run(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
        # There are as many threads as processes, so one is free.
        process = self._free.get()
        try:
            return process.run(fn, args, kwargs)
        finally:
            self._free.put(process)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._hands.shutdown(wait=wait, cancel_futures=cancel_futures)
        for process in self._all:
            process.end()


def _start_process(threads: int) -> None:
    end_with_parent()
    # Keras' bars of several runs would write over each other on a terminal.
    sys.stdout = io.StringIO()
    # Otherwise each would take all cores, and spend its time on waiting for the others.
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


@contextmanager
def training_pool(processes: int) -> Iterator[Executor]:
    """What trains runs, `processes` at a time.

    Args:
        processes: With 1 a run is trained in this process, as it is submitted. With more each has
            its share of the cores, as threads: TensorFlow's sums then differ in their last bits
            from those that more threads make. A process ends after eight runs, and another takes
            its place: not all that TensorFlow keeps of a run is freed before.

    Yields:
        The executor. What it has not begun when the block raises is never begun; what it is at is
        finished first.
    """
    if processes <= 1:
        yield _Here()
        return
    pool = _Processes(processes)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
