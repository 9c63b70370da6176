import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

pytestmark = pytest.mark.tfrs

SYSTEMS_FILE = Path(__file__).parents[2] / "pipelines" / "configs" / "systems.yaml"
SYSTEMS = yaml.safe_load(SYSTEMS_FILE.read_text(encoding="utf-8"))["arms"]


def with_arms(config, arms):
    """The small run with some arms."""
    from pipelines.config import RunConfig

    return RunConfig.model_validate({**config.model_dump(), "arms": arms})


@pytest.fixture(scope="module")
def features(config):
    from pipelines.features import fit_features

    return fit_features(config)


@pytest.fixture(scope="module")
def first_batch(config, features):
    path = config.prepared_folder / "train.parquet"
    return next(iter(features.dataset(path, label="is_click", batch_size=64, max_length=8)))


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_system_of_the_run_file_takes_a_training_step(system, config, features, first_batch):
    import tensorflow as tf

    from pipelines.train import build_model

    model = build_model(with_arms(config, SYSTEMS).arm(system), features, seed=0)
    assert (model.denoiser is None) == (system == "control")
    for _ in range(2):  # a queue has no negatives at first
        with tf.GradientTape() as tape:
            loss = model.compute_loss(first_batch, training=True) + sum(model.losses)
    assert np.isfinite(float(loss))
    if model.denoiser is None:
        assert model.losses == []
        return
    assert float(model.losses[0]) != 0
    gradients = tape.gradient(loss, model.denoiser.trainable_variables)
    assert all(np.abs(gradient.numpy()).max() > 0 for gradient in gradients)


def test_the_table_has_a_line_an_arm_and_keeps_finished_runs(config, tmp_path, monkeypatch):
    import shutil

    from pipelines import arms

    shutil.copytree(config.prepared_folder, tmp_path / "prepared", copy_function=shutil.copy2)
    chosen = {"control": SYSTEMS["control"], "moco": SYSTEMS["moco"]}
    brief = config.train.model_copy(update={"epochs": 1})
    small = with_arms(config, chosen).model_copy(update={"folder": tmp_path, "train": brief})
    table = arms.run_arms(small)
    assert list(table.index) == ["control", "moco"]
    pd.testing.assert_frame_equal(
        table, pd.read_csv(tmp_path / "arms" / "arms.csv", index_col="arm"), check_dtype=False
    )
    # Means over the seeds of what the runs say.
    for arm in chosen:
        scores = []
        for seed in (0, 1):
            run = tmp_path / "arms" / "runs" / f"{arm}-seed{seed}"
            scores.append(pd.read_json(run / "metrics.json", typ="series")["test"]["auc"])
        np.testing.assert_allclose(table["test AUC"][arm], np.mean(scores), rtol=1e-12)
    assert np.isnan(table["alignment"]["control"])
    assert 0 < table["alignment"]["moco"] < 4
    assert table["gradient ratio"]["moco"] > 0
    # The difference to the control, with its interval.
    difference = table["test AUC"]["moco"] - table["test AUC"]["control"]
    np.testing.assert_allclose(table["AUC difference"]["moco"], difference, rtol=1e-9, atol=1e-12)
    assert table["AUC low"]["moco"] < difference < table["AUC high"]["moco"]
    assert np.isnan(table["GAUC difference"]["control"])
    interval = "{AUC difference:+.5f} ({AUC low:+.5f} to {AUC high:+.5f})"
    assert interval.format(**table.loc["moco"]) in arms.to_markdown(table)
    markdown = arms.to_markdown(table).splitlines()
    assert markdown[2].startswith("| control | 0.")
    assert markdown[2].count("|") == markdown[0].count("|") == markdown[1].count("|")

    made = []
    monkeypatch.setattr(arms, "train", lambda config, folder, **_: made.append(folder.name))
    pd.testing.assert_frame_equal(arms.run_arms(small), table)
    assert made == []


class DiesWhenTheOthersAreDone:
    """Features that kill the process which unpickles them, once the other runs are there."""

    def __init__(self, folders):
        self.marks = [str(folder / "fingerprint.txt") for folder in folders]

    def __reduce__(self):
        wait = f"while not all(os.path.exists(mark) for mark in {self.marks}): time.sleep(0.05)"
        return exec, (f"import os, time\n{wait}\nos._exit(9)",)


@pytest.mark.slow
def test_runs_in_processes_are_the_same_and_are_kept_when_one_dies(
    finished_ab, config, tmp_path, monkeypatch, caplog
):
    from pipelines import arms
    from pipelines.job_errors import WorkerDiedError

    caplog.set_level(logging.INFO)
    names = ("control", "treatment")
    fit = arms.fit_features
    bomb = DiesWhenTheOthersAreDone([tmp_path / f"{name}-seed0" for name in names])
    monkeypatch.setattr(
        arms, "fit_features", lambda of: bomb if of.model.embedding_dim == 5 else fit(of)
    )
    other = config.model.model_copy(update={"embedding_dim": 5})
    chosen = {name: config.with_denoiser(name == "treatment") for name in names}
    chosen["dying"] = config.model_copy(update={"model": other})
    with pytest.raises(WorkerDiedError, match=f"finished is kept in {tmp_path}; run again, with"):
        arms.train_arms(chosen, [0], tmp_path, processes=3)

    lines = [message for message in caplog.messages if "run" in message]
    assert sorted(line.split(":")[0] for line in lines) == [f"{name}, seed 0" for name in names]
    assert [line[-len("run 1 of 3") :] for line in lines] == ["run 1 of 3", "run 2 of 3"]
    for name in names:
        sequential = pd.read_parquet(finished_ab[0] / "runs" / f"{name}-seed0" / "scores.parquet")
        parallel = pd.read_parquet(tmp_path / f"{name}-seed0" / "scores.parquet")
        # Each process has fewer threads, and sums of another order.
        pd.testing.assert_frame_equal(parallel, sequential, rtol=1e-3)
    made = []

    def note(config, folder, **_):
        folder.mkdir()
        made.append(folder.name)

    monkeypatch.setattr(arms, "train", note)
    arms.train_arms(chosen, [0], tmp_path, processes=1)
    assert made == ["dying-seed0"]


@pytest.mark.parametrize(
    ("cores", "gigabytes", "gpus", "expected"),
    [(2, 64, 0, 1), (16, 64, 0, 4), (16, 5, 0, 2), (16, 1, 0, 1), (16, 64, 1, 1)],
)
def test_as_many_processes_as_cores_and_memory_allow(cores, gigabytes, gpus, expected, monkeypatch):
    from pipelines import arms

    monkeypatch.setattr(arms.os, "sched_getaffinity", lambda _: set(range(cores)))
    sizes = {"SC_AVPHYS_PAGES": gigabytes * 2**18, "SC_PAGE_SIZE": 2**12}
    monkeypatch.setattr(arms.os, "sysconf", sizes.get)
    monkeypatch.setattr(arms.tf.config, "list_physical_devices", lambda _: ["GPU"] * gpus)
    assert arms.default_processes() == expected


def test_without_arms_there_is_nothing_to_do(config):
    from pipelines.arms import run_arms
    from pipelines.config import ConfigError

    with pytest.raises(ConfigError, match=r"expected at least one arm\. Received: none"):
        run_arms(config)


def test_options_that_do_not_go_together_are_one_clear_error(config):
    from pipelines.config import ConfigError
    from pipelines.denoiser import build_denoiser

    arm = {"denoiser": {"loss": "triplet", "temperature": 0.1}}
    with pytest.raises(ConfigError, match="denoiser: Loss 'triplet' has no temperature"):
        build_denoiser(with_arms(config, {"bad": arm}).arm("bad"), seed=0)


def test_what_prepare_measured_reaches_the_plug_in(config, tmp_path):
    import json

    from pipelines.denoiser import build_denoiser
    from seqdenoise.errors import DataError

    statistics = json.loads((config.prepared_folder / "statistics.json").read_text())
    denoiser = build_denoiser(with_arms(config, SYSTEMS).arm("correlated_field"), seed=0)
    information = denoiser.get_config()["mutual_information"]
    assert set(information) == {"click", "cart"}
    got = information["click"]["item"]["category"]
    assert got == statistics["click"]["mutual_information"]["item"]["category"] > 0
    denoiser = build_denoiser(with_arms(config, SYSTEMS).arm("debiased_estimated"), seed=0)
    assert denoiser.get_config()["loss_options"]["tau_plus"] == {
        kind: statistics[kind]["tau_plus"]["same_sequence_of_other_user"]
        for kind in ("click", "cart")
    }
    arm = with_arms(config, SYSTEMS).arm("correlated_field")
    with pytest.raises(DataError, match=r"statistics.json: expected the statistics that `prepare`"):
        build_denoiser(arm.model_copy(update={"folder": tmp_path}), seed=0)


def test_supervised_positives_are_the_clicks(config, features, first_batch):
    from pipelines.train import build_model

    for arm, expected in (("supervised", -1), ("triplet_by_label", 0)):
        model = build_model(with_arms(config, SYSTEMS).arm(arm), features, seed=0)
        seen = []

        def denoiser(sequences, *, labels, seen=seen, **_):
            seen.append(labels.numpy())
            return sequences

        model.denoiser = denoiser
        model(first_batch, training=True)
        clicked = first_batch["is_click"].numpy()
        np.testing.assert_array_equal(seen[0], np.where(clicked == 1, 1, expected))


def test_measuring_the_gradient_balance_changes_nothing(config, features, first_batch):
    import tensorflow as tf

    from pipelines.train import build_model

    model = build_model(with_arms(config, SYSTEMS).arm("moco"), features, seed=0)
    for _ in range(2):
        model(first_batch, training=True)
    variables = model.denoiser.variables + [
        v for metric in model.denoiser.metrics for v in metric.variables
    ]
    before = [v.numpy() for v in variables]
    tf.random.set_seed(5)
    expected_draw = tf.random.uniform([3]).numpy()
    tf.random.set_seed(5)
    ratio, cosine = model.gradient_balance(first_batch)
    np.testing.assert_array_equal(tf.random.uniform([3]).numpy(), expected_draw)
    assert float(ratio) > 0
    assert -1 <= float(cosine) <= 1
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    # Twice the weight is twice the gradient, in the same direction.
    model.denoiser.weight *= 2
    doubled, same = model.gradient_balance(first_batch)
    np.testing.assert_allclose(float(doubled), 2 * float(ratio), rtol=1e-4)
    np.testing.assert_allclose(float(same), float(cosine), rtol=1e-3, atol=1e-6)


def test_cosine_decay_ends_at_zero(config):
    from pipelines.train import _learning_rate

    decaying = config.train.model_copy(update={"cosine_decay": True, "batch_size": 100})
    schedule = _learning_rate(config.model_copy(update={"train": decaying}))
    rows = pd.read_parquet(config.prepared_folder / "train.parquet", columns=["user"])
    steps = -(-len(rows) // 100) * config.train.epochs
    for step in (0, steps // 3, steps):
        expected = config.train.learning_rate * 0.5 * (1 + np.cos(np.pi * step / steps))
        np.testing.assert_allclose(float(schedule(step)), expected, rtol=1e-4, atol=1e-8)
