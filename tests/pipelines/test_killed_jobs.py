"""A job that is killed, anywhere, and run again gives what it gives undisturbed, to the last bit.

With `SEQDENOISE_KILLS=20` the real commands are killed at so many moments as well, drawn from the
whole time that one takes: from before Python has loaded anything to the last thing that it does.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import small_log
import yaml

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("SEQDENOISE_KILLS", "0"))
PARTS = {"part_rows": 600, "bucket_rows": 400}  # 4 parts of events, 2 of impressions, 5 buckets
RUN = {
    "prepare": {
        "sequence_types": ["click"],
        "max_length": 6,
        "item_fields": ["category"],
        "labels": ["is_click"],
        "split": {
            "valid_from": "2024-01-03T00:00:00+00:00",
            "test_from": "2024-01-04T00:00:00+00:00",
        },
    },
    "model": {
        "label": "is_click",
        "event_fields": ["category"],
        "embedding_dim": 4,
        "attention_units": [4],
        "mlp_units": [8],
        "dropout": 0.2,
    },
    # What has the most to remember: a queue, a momentum encoder, a temperature, a schedule, and two
    # phases, each with its optimiser and its order of the rows.
    "denoiser": {
        "loss": "moco",
        "queue_size": 64,
        "momentum": 0.9,
        "learn_temperature": True,
        "weight": 0.2,
        "warm_start_epochs": 1,
    },
    "train": {
        "batch_size": 32,
        "epochs": 2,
        "patience": 2,
        "learning_rate": 0.01,
        "cosine_decay": True,
        "deterministic": True,
        "backup_minutes": 1e-9,  # after every batch
    },
}


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    """The run file of a small log that is prepared."""
    from pipelines.config import load_run_config
    from pipelines.prepare import prepare
    from pipelines.simulate import write_simulated_log

    folder = tmp_path_factory.mktemp("small")
    write_simulated_log(folder / "log", num_users=60, num_items=100, num_days=4)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**RUN, "folder": str(folder)}))
    prepare(load_run_config(path))
    return path


@pytest.fixture
def raw_run_file(tmp_path_factory):
    """The run file of a log that is not prepared yet; its `folder` is to be given."""
    folder = tmp_path_factory.mktemp("raw")
    small_log.write_log(folder, small_log.tables())
    content = json.loads(small_log.settings(folder).model_dump_json())
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**content, "log": {"folder": str(folder / "log")}}))
    return path


def environment():
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_USE_LEGACY_KERAS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def killed_job(job, run_file, folder, *, seed, times, kills):
    """At which moments `tests/killed_job.py` has killed a job, each time that it was run."""
    script = ROOT / "tests" / "killed_job.py"
    command = [sys.executable, script, job, run_file, folder]
    command += map(str, [seed, times, kills])
    run = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)["killed_at"]


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def contents(folder):
    """Every file below a folder; of metrics all but the time, of weights their numbers."""
    import tensorflow as tf

    found = files(folder)
    for name in [name for name in found if name.endswith("metrics.json")]:
        metrics = json.loads(found[name])
        assert metrics.pop("seconds") > 0
        found[name] = metrics
    for name in [name for name in found if name.endswith(".index")]:
        # How TensorFlow lays out a file is up to its threads.
        reader = tf.train.load_checkpoint(str(folder / name.removesuffix(".index")))
        found[name] = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
        del found[name.replace(".index", ".data-00000-of-00001")]
    return found


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict) and name.endswith(".index"):
            assert actual[name].keys() == value.keys()
            for key in value:
                np.testing.assert_array_equal(actual[name][key], value[key], err_msg=key)
        else:
            assert actual[name] == value, name


@pytest.mark.tfrs
@pytest.mark.slow
def test_a_training_killed_between_any_two_things_it_does(run_file, tmp_path):
    (killed_at,) = killed_job("train", run_file, tmp_path, seed=1, times=1, kills=3)
    assert len(killed_at) >= 2
    assert "run/metrics.json" in files(tmp_path / "whole")
    assert_same(contents(tmp_path / "killed-0"), contents(tmp_path / "whole"))
    # Nor is anything left beside the run.
    assert os.listdir(tmp_path / "killed-0") == ["run"]


def test_a_preparation_killed_between_any_two_things_it_does(raw_run_file, tmp_path):
    killed_at = killed_job("prepare", raw_run_file, tmp_path, seed=0, times=12, kills=2)
    assert all(killed_at)
    expected = files(tmp_path / "whole")
    assert "prepared/train.parquet/part-00004.parquet" in expected
    for number, moments in enumerate(killed_at):
        folder = tmp_path / f"killed-{number}"
        assert files(folder) == expected, moments
        assert os.listdir(folder) == ["prepared"], moments


def command(job, run_file, output):
    start = [sys.executable, "-m", "pipelines", job, str(run_file)]
    if job == "train":
        return [*start, "--output", str(output / "run"), "--seed", "3"]
    return [*start, "--folder", str(output), "--bucket-rows", "20000", "--processes", "2"]


def run_whole(job, run_file, output):
    """Runs a command to its end; the seconds that it took, and what it says of going on."""
    started = time.monotonic()
    run = subprocess.run(
        command(job, run_file, output), env=environment(), cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    goes_on = [line for line in run.stderr.splitlines() if "goes on" in line or "going on" in line]
    return time.monotonic() - started, goes_on


def run_and_kill(job, run_file, output, moment):
    """Runs a command and kills it; the seconds that it took if it came to its end before."""
    started = time.monotonic()
    process = subprocess.Popen(
        command(job, run_file, output),
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        process.wait(timeout=moment)
        return time.monotonic() - started
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


@pytest.mark.tfrs
@pytest.mark.slow
@pytest.mark.skipif(not KILLS, reason="SEQDENOISE_KILLS says how many moments; each takes long")
@pytest.mark.parametrize("job", ["prepare", "train"])
def test_the_real_commands_killed_at_random_moments(job, run_file, raw_run_file, tmp_path):
    if job == "train":
        # As long as what comes before the first step.
        longer = yaml.safe_load(run_file.read_text())
        longer["train"] |= {"epochs": 12, "patience": 12, "deterministic": False}
        path = run_file.with_name("longer.yaml")
        path.write_text(yaml.safe_dump(longer))
    else:
        raw = small_log.tables(num_users=2000, num_events=150_000, num_impressions=60_000)
        path = raw_run_file
        small_log.write_log(path.parent, raw)
    run_whole(job, path, tmp_path / "cold")
    seconds, _ = run_whole(job, path, tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    assert_same(contents(tmp_path / "cold"), expected)
    drawn = random.Random(0)
    killed = missed = 0
    while killed < KILLS:
        # One moment in each part of the time that it takes.
        moment = seconds * (killed + drawn.random()) / KILLS
        output = tmp_path / f"{killed}-{missed}"
        took = run_and_kill(job, path, output, moment)
        if took is not None:
            # The machine is faster now.
            seconds, missed = took, missed + 1
            assert missed <= KILLS
            continue
        killed += 1
        left = sorted(os.listdir(output)) if output.exists() else []
        _, goes_on = run_whole(job, path, output)
        assert_same(contents(output), expected)
        assert sorted(os.listdir(output)) == sorted(os.listdir(tmp_path / "whole"))
        print(f"{job} killed at {moment:.2f} of {seconds:.2f} s, left {left}, {goes_on}: the same")
