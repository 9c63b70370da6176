"""Runs a job whole, and then again, killed at random moments until it gets through.

`python killed_job.py train|prepare RUN_FILE FOLDER SEED TIMES KILLS` writes `FOLDER/whole`, and so
many times `FOLDER/killed-N`, where the job was killed up to so often. Prints as JSON at which
moments it was. Each run is a forked copy of this process, so that TensorFlow is loaded once. A run
is killed with SIGKILL just before one of the things that it does to files: the first opening of a
file is such a moment, and so is the last removal.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

# pytest imports this file too, when it looks for doctests.
if __name__ == "__main__":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if sys.argv[1] == "prepare":
        os.environ["SEQDENOISE_DATA_ONLY"] = "1"

    from pipelines.config import load_run_config

    if sys.argv[1] == "train":
        import tensorflow as tf

        from pipelines.train import train

        # To make a graph takes longer than this training, and has to be done after every kill.
        tf.config.run_functions_eagerly(True)
    else:
        from pipelines.prepare import prepare

# Removals name what they remove relatively to an open folder.
ANYWHERE = {"os.remove", "os.rmdir"}
IN_THE_FOLDER = {"open", "os.rename", "os.mkdir", "os.link", "os.scandir"}


def run(job, run_file, output):
    """The job, with its output in one folder."""
    if job == "train":
        train(load_run_config(run_file), output / "run", seed=3)
        return
    # In one process, or the moments of the others would not count.
    prepare(load_run_config(run_file, output), processes=1, part_rows=600, bucket_rows=400)


def attempt(kill_at, *arguments):
    """Runs the job in a process of its own, killed at a moment; None for not at all.

    Returns:
        Whether it got through, and the number of its moments if it did.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        moments = 0
        folder = str(arguments[-1])

        def count(event, args):
            nonlocal moments
            inside = event in IN_THE_FOLDER and any(str(arg).startswith(folder) for arg in args)
            if inside or event in ANYWHERE:
                moments += 1
                if moments == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            run(*arguments)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os.write(writing, str(moments).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        moments = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise SystemExit(f"expected a run that ends or is killed. Received: exit code {status}")
    return status == 0, int(moments or 0)


def main():
    job, run_file, folder, *numbers = sys.argv[1:]
    seed, times, kills = map(int, numbers)
    folder = Path(folder).resolve()
    _, moments = attempt(None, job, Path(run_file), folder / "whole")
    drawn = random.Random(seed)
    killed_at = []
    for number in range(times):
        killed_at.append([])
        finished = False
        while not finished:
            at = drawn.randint(1, moments) if len(killed_at[-1]) < kills else None
            finished, _ = attempt(at, job, Path(run_file), folder / f"killed-{number}")
            if not finished:
                killed_at[-1].append(at)
    print(json.dumps({"moments": moments, "killed_at": killed_at}))


if __name__ == "__main__":
    main()
