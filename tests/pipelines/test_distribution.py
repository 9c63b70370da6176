import json

import numpy as np
import pandas as pd
import pytest
import yaml
from clusters import run_cluster

SECONDS = 240


@pytest.mark.tfrs
def test_two_workers_train_what_one_process_trains(run_file, tmp_path):
    from pipelines.config import load_run_config
    from pipelines.train import train

    content = yaml.safe_load(run_file.read_text())
    # Batches of an odd number of rows, which two workers cannot share out evenly; a penalty and a
    # dropout, parts of which each of them has; a warm start; what cannot be compiled there.
    content["train"] |= {"batch_size": 255, "epochs": 1, "jit_compile": True}
    content["denoiser"]["warm_start_epochs"] = 1
    content["model"] |= {"embedding_l2": 0.01, "dropout": 0.2}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(content))
    arguments = ["-m", "pipelines", "train", str(path), "--output"]
    # Both are given the same folder, and one of them writes.
    run_cluster([[*arguments, str(tmp_path / "two")]] * 2, seconds=SECONDS)
    train(load_run_config(path), tmp_path / "one")
    one, two = tmp_path / "one", tmp_path / "two"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["one", "run.yaml", "two"]
    for name in ("history.csv", "scores.parquet"):
        read = pd.read_csv if name.endswith("csv") else pd.read_parquet
        expected, got = read(one / name), read(two / name)
        assert list(got) == list(expected)
        for column in expected:
            # Of singular values, which are roots of what float32 has rounded.
            rtol = 1e-3 if column.endswith("effective_rank") else 1e-5
            np.testing.assert_allclose(
                got[column], expected[column], rtol=rtol, atol=1e-6, err_msg=column
            )
    fingerprints = [(folder / "fingerprint.txt").read_text() for folder in (one, two)]
    assert fingerprints[0] == fingerprints[1]


@pytest.mark.tfrs
def test_a_job_of_many_runs_is_refused_to_workers(monkeypatch, tmp_path):
    from pipelines.arms import train_arms
    from pipelines.config import ConfigError

    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(ConfigError, match="Train each run by `train` on the workers"):
        train_arms({}, [0], tmp_path)


@pytest.mark.tfrs
@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        json.dumps({"cluster": {"worker": ["a:1"]}}),
        json.dumps({"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}),
        json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}),
    ],
)
def test_a_bad_description_of_workers_is_one_clear_error(text, monkeypatch):
    from pipelines.config import ConfigError
    from pipelines.distribution import workers

    monkeypatch.setenv("TF_CONFIG", text)
    workers.cache_clear()
    with pytest.raises(ConfigError, match="TF_CONFIG: expected JSON with `cluster`"):
        workers()


@pytest.mark.tfrs
def test_without_a_cluster_a_process_is_alone(monkeypatch):
    from pipelines.distribution import workers

    for text in ("", json.dumps({"task": {"type": "worker", "index": 0}})):
        monkeypatch.setenv("TF_CONFIG", text)
        workers.cache_clear()
        team = workers()
        assert team.strategy is None
        assert team.is_chief
        assert team.from_chief({"a": 1}) == {"a": 1}
        assert team.asks_chief(5, lambda: True)
    workers.cache_clear()
