"""A process that reads epochs for the reader benchmark: `python -m pipelines.reader_worker`.

One process for each contender, since memory and threads are the process's. Arguments are the
contender's name, the folder of the rows and the batch size; each line on standard input is a
request, and is answered by one line of JSON on standard output.
"""

import gc
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.reader_contenders import CONTENDERS, Batch, Epoch

_STATUS = Path("/proc/self/status")
_DESCRIPTORS = Path("/proc/self/fd")


def read_epoch(epoch: Epoch) -> dict[str, float]:
    """Reads all batches and drops them: `rows`, `cpu_seconds`, `wall_seconds` and `megabytes`."""
    rows = 0
    cpu, wall = time.process_time(), time.perf_counter()
    for batch in epoch():
        rows += len(batch["row"])
    return {
        "rows": rows,
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "megabytes": _status("VmRSS") * 1024 / 1e6,
    }


def abandon(epoch: Epoch, times: int) -> dict[str, list[int]]:
    """Threads and open files before and after so many iterators were dropped after one batch."""
    _drop(epoch())  # what starts once and stays
    counts = [_counts()]
    for _ in range(times):
        _drop(epoch())
    counts.append(_counts())
    names = ("python_threads", "threads", "open_files")
    return {name: [before, after] for name, before, after in zip(names, *counts, strict=True)}


def _drop(iterator: Iterator[Batch]) -> None:
    next(iterator)
    del iterator
    gc.collect()


def _counts() -> tuple[int, int, int]:
    return threading.active_count(), _status("Threads"), len(list(_DESCRIPTORS.iterdir()))


def _status(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+)", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if match is None:
        raise RuntimeError(f"{_STATUS}: expected a line {name}. Received: none")
    return int(match[1])


def _serve(name: str, folder: Path, batch_size: int) -> None:
    # Libraries print what they like; the pipe is for answers alone.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    (contender,) = (one for one in CONTENDERS if one.name == name)
    epoch: Epoch | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            if epoch is None:
                epoch = contender.open(folder, batch_size)
            if request["do"] == "epoch":
                answer = read_epoch(epoch)
            else:
                answer = abandon(epoch, request["times"])
        except Exception as error:  # a rival's failure is a line of the report
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
