"""A process that runs contenders of a contest: `python -m pipelines.contest_worker MODULE`.

One process each, because the libraries' threads and settings would otherwise meet in one: POT on
TensorFlow changes how every tensor of its process behaves. This module loads none of them itself.

It answers each line of JSON on standard input with one on standard output.
"""

import ctypes
import gc
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.contest import Results

# A turn is at least this long, so that a call of a few milliseconds is made many times in it.
_TURN_SECONDS = 0.25
_STATUS = Path("/proc/self/status")


def time_turn(call: Callable[[], Results]) -> float:
    """Median seconds of a call, over as many as fill a turn; a first short one does not count."""
    start = time.perf_counter()
    call()
    seconds = [time.perf_counter() - start]
    if seconds[0] < _TURN_SECONDS:
        seconds = []
        while sum(seconds) < _TURN_SECONDS:
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def peak_megabytes(call: Callable[[], Results]) -> float | None:
    """How far a call raises this process's resident memory, results included; None without Linux.

    The kernel keeps the highest mark of resident memory and resets it on request: nothing is
    sampled, so no short peak is missed, and every allocator is seen. What an earlier call left
    unused in the allocator's hands would hide a part of the peak: the process must run with
    `MALLOC_MMAP_THRESHOLD_` set low, so that large blocks go back at once.
    """
    if not _STATUS.is_file():
        return None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status_kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    results = call()
    peak = _status_kilobytes("VmHWM")
    del results
    return (peak - before) * 1024 / 1e6


def _status_kilobytes(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if match is None:
        raise RuntimeError(f"{_STATUS}: expected a line {name}. Received: none")
    return int(match[1])


def _serve(module: Any) -> None:
    contenders = {one.name: one for one in module.CONTENDERS}
    # Libraries print what they like; the pipe is for answers alone.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    call: Callable[[], Results] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            if request["do"] == "prepare":
                call = None  # frees the last problem
                gc.collect()  # Keras' objects refer to one another in circles
                problem = module.make_problem(**request["problem"])
                call = contenders[request["contender"]].make(problem)
                start = time.perf_counter()
                results = call()
                answer = {"seconds": time.perf_counter() - start}
                if request["results"] is not None:
                    np.savez(request["results"], *(np.asarray(part) for part in results))
                del results
            elif call is None:
                raise RuntimeError("no problem was prepared")
            elif request["do"] == "time":
                answer = {"seconds": time_turn(call)}
            else:
                answer = {"megabytes": peak_megabytes(call)}
        except Exception as error:  # a rival's failure is a line of the report
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve(importlib.import_module(sys.argv[1]))
