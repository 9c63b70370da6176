"""Processes that train together on this machine, as workers of a cluster."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[1]


def free_ports(number):
    """Ports that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def start_cluster(arguments, folder):
    """Starts a Python process for each list of arguments, all of one cluster.

    What they print goes to `folder/{index}.log`.
    """
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(arguments))]
    processes = []
    for index, of_worker in enumerate(arguments):
        task = {"type": "worker", "index": index}
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "tests"),
            "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
        }
        with (folder / f"{index}.log").open("w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, *of_worker],
                    cwd=ROOT,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    return processes


def wait_for(processes, folder, seconds):
    """Waits until all have ended; kills them and fails if one takes longer, or ends badly.

    Workers wait for each other, so one that fails would have the others wait for ever.
    """
    end = time.monotonic() + seconds
    try:
        while any(process.poll() is None for process in processes) and time.monotonic() < end:
            if any(process.poll() for process in processes):
                break
            time.sleep(0.1)
        codes = [process.poll() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    logs = [(folder / f"{index}.log").read_text()[-3000:] for index in range(len(processes))]
    assert codes == [0] * len(processes), f"exit codes {codes} after {seconds} s at most: {logs}"


def run_cluster(arguments, *, seconds):
    """Runs a cluster to its end."""
    with tempfile.TemporaryDirectory() as folder:
        wait_for(start_cluster(arguments, Path(folder)), Path(folder), seconds)
