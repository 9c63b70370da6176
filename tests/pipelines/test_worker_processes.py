import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEADER = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pipelines.worker_processes import end_with_parent

if __name__ == "__main__":
    with ProcessPoolExecutor(2, get_context("spawn"), initializer=end_with_parent) as pool:
        futures = [pool.submit(os.getpid)]
        print(futures[0].result(), flush=True)
        futures = [pool.submit(time.sleep, 600) for _ in range(3)]
        futures[0].result()
"""


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    # A dead process that nobody has waited for still has a number.
    return not status.exists() or status.read_text().rsplit(")")[-1].split()[0] != "Z"


def test_the_processes_of_a_pool_end_with_their_leader(tmp_path):
    script = tmp_path / "leader.py"
    script.write_text(LEADER)
    leader = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SEQDENOISE_DATA_ONLY": "1"},
    )
    with leader:
        worker = int(leader.stdout.readline())
        assert is_alive(worker)
        leader.send_signal(signal.SIGKILL)
        leader.wait()
        deadline = time.monotonic() + 20
        while is_alive(worker) and time.monotonic() < deadline:
            time.sleep(0.02)
        died = not is_alive(worker)
        if not died:
            os.kill(worker, signal.SIGKILL)
    assert died
