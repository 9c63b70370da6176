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
    np.testing.assert_allclose(table["AUC difference"]["moco"], difference, rtol=1e-9)
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
