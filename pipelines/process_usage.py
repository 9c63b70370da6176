"""What a command costs: time, processor time and memory of all its processes."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Usage:
    """What one command took.

    Attributes:
        wall_seconds: From start to end.
        cpu_seconds: User and system time of the process and its children.
        peak_megabytes: The highest resident memory of all its processes at a time.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_megabytes: float


def run_measured(command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> Usage:
    """Runs a command to its end; Linux only.

    Args:
        command: The program and its arguments.
        environment: Added to this process's.
        cwd: Where it runs.

    Returns:
        What it took.

    Raises:
        RuntimeError: It ends with another status than 0; ends with what it wrote to stderr last.
    """
    peak = 0
    start = time.perf_counter()
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            while True:
                # Not Popen.wait: only this gives the usage of this child alone.
                ended, status, used = os.wait4(process.pid, os.WNOHANG)
                if ended:
                    break
                peak = max(peak, sum(map(_resident_pages, _family(process.pid))))
                time.sleep(_SAMPLE_SECONDS)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - start
        assert process.stderr is not None
        message = process.stderr.read()
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command)}: expected exit status 0. Received: {process.returncode}: "
            f"{message.strip()[-2000:]}"
        )
    return Usage(wall, used.ru_utime + used.ru_stime, peak * _PAGE_BYTES / 1e6)


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended meanwhile
        return
    for thread in threads:
        children = _read(f"/proc/{pid}/task/{thread}/children")
        for child in children.split():
            yield from _family(int(child))


def _resident_pages(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) if fields else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except OSError:  # it has ended meanwhile
        return ""
