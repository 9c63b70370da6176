"""Finished runs on noisy test rows, and training on noisy histories."""

import logging
import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from pipelines.config import ConfigError
from pipelines.noise_planting import (
    noisy_types,
    training_catalogue,
    with_train_noise,
    write_noisy,
)
from seqdenoise.evaluation.noise import plant_noise


def copy_of_run(config, tmp_path):
    shutil.copytree(config.prepared_folder, tmp_path / "prepared", copy_function=shutil.copy2)
    return config.model_copy(update={"folder": tmp_path})


def write(config, path, rate):
    write_noisy(
        config.prepared_folder / "test.parquet",
        path,
        training_catalogue(config),
        types=noisy_types(config),
        rate=rate,
        max_length=config.prepare.max_length,
        draw="uniform",
        seed=0,
    )


def test_a_noisy_copy_is_the_rows_in_file_order_with_noise(config, tmp_path):
    write(config, tmp_path / "noisy.parquet", 0.4)
    rows = pd.read_parquet(config.prepared_folder / "test.parquet")
    noisy = pd.read_parquet(tmp_path / "noisy.parquet")
    changed = [f"{kind}__{f}" for kind in ("click", "cart") for f in ("item", "category", "price")]
    for name in rows.columns:
        same = all(np.array_equal(a, b) for a, b in zip(rows[name], noisy[name], strict=True))
        assert same != (name in [*changed, "click__timestamp", "cart__timestamp"]), name
    # Planted items have the fields that training rows show them with.
    train = pd.read_parquet(config.prepared_folder / "train.parquet")
    category = dict(zip(train["item"], train["category"], strict=True))
    for row in noisy.itertuples():
        for item, value in zip(row.click__item, row.click__category, strict=True):
            assert value == category.get(item, value)
    # The same as planting into all rows at once, whatever the row groups.
    table = pq.read_table(config.prepared_folder / "test.parquet")
    whole, _ = plant_noise(
        table, training_catalogue(config), types=["click", "cart"], rate=0.4, max_length=8
    )
    assert pq.read_table(tmp_path / "noisy.parquet").equals(whole.combine_chunks())


def test_trusted_and_excluded_types_are_spared(config):
    assert noisy_types(config) == ("click", "cart")
    for trusted in ("cart", ["cart", "candidate"]):
        denoiser = config.denoiser.model_copy(update={"trusted": trusted})
        assert noisy_types(config.model_copy(update={"denoiser": denoiser})) == ("click",)


def test_training_on_noise_leaves_the_test_rows_and_is_kept(config, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    run = copy_of_run(config, tmp_path)
    assert with_train_noise(run, 0.0) is run
    noisy = with_train_noise(run, 0.3)
    assert noisy.folder == tmp_path / "train-noise"
    lengths = {}
    for split in ("train", "valid", "test"):
        before, after = (
            pd.read_parquet(of.prepared_folder / f"{split}.parquet") for of in (run, noisy)
        )
        pd.testing.assert_series_equal(before["user"], after["user"])
        lengths[split] = [frame["click__item"].map(len).sum() for frame in (before, after)]
    assert lengths["train"][1] > lengths["train"][0]
    assert lengths["valid"][1] > lengths["valid"][0]
    assert lengths["test"][1] == lengths["test"][0]
    for name in ("prepare.json", "statistics.json"):
        assert (noisy.prepared_folder / name).read_text() == (
            run.prepared_folder / name
        ).read_text()
    assert with_train_noise(run, 0.3) == noisy
    assert len(caplog.messages) == 1
    with_train_noise(run, 0.2)
    assert len(caplog.messages) == 2
    assert pq.read_table(noisy.prepared_folder / "train.parquet").num_rows == len(
        pq.read_table(run.prepared_folder / "train.parquet")
    )
    with pytest.raises(ConfigError, match=r"expected some of the sequence types .*\['view'\]"):
        with_train_noise(run, 0.3, types=["view"])


@pytest.mark.parametrize("levels", [[0.1], [0.3, 0.1], [-0.1, 0.2], [0, 1.0]])
@pytest.mark.tfrs
def test_levels_that_cannot_be_are_named(levels, config):
    from pipelines.noise_curve import noise_curve

    with pytest.raises(ConfigError, match=r"at least two increasing shares in \[0, 1\)"):
        noise_curve(config.folder, ["control", "treatment"], config, levels=levels)


@pytest.mark.tfrs
def test_curves_of_finished_runs(finished_ab, config, tmp_path, monkeypatch, caplog):
    from pipelines import noise_curve as job
    from pipelines.export import load_model
    from pipelines.train import score
    from seqdenoise.errors import DataError
    from seqdenoise.evaluation.ranking import auc

    caplog.set_level(logging.INFO)
    folder, _ = finished_ab
    runs = tmp_path / "runs"
    shutil.copytree(folder / "runs", runs, copy_function=shutil.copy2)
    arms = ["control", "treatment"]
    curves = job.noise_curve(runs, arms, config, levels=[0, 0.5])
    assert [m for m in caplog.messages if "scored run" in m][-1].startswith(
        "noise: scored run 4 of 4, treatment-seed1, at 1 levels"
    )
    # At no noise the curve is the A/B.
    tested = pd.read_parquet(runs / "control-seed0" / "scores.parquet")
    np.testing.assert_allclose(
        curves.curves["control"][0].seeds[0], auc(tested["label"], tested["score"]), rtol=1e-12
    )
    # At noise it is what the model says of the noisy rows.
    write(config, tmp_path / "noisy.parquet", 0.5)
    of_run, features, model = load_model(runs / "treatment-seed1")
    shape = {"label": "is_click", "batch_size": 100, "max_length": of_run.prepare.max_length}
    scores = score(model, features.dataset(tmp_path / "noisy.parquet", **shape))
    np.testing.assert_allclose(
        curves.curves["treatment"][1].seeds[1], auc(tested["label"], scores), rtol=1e-6
    )
    clean = score(model, features.dataset(config.prepared_folder / "test.parquet", **shape))
    kept = pd.read_parquet(runs / "treatment-seed1" / "scores.parquet")["score"]
    np.testing.assert_allclose(clean, kept, rtol=1e-5)
    lines = job.to_markdown(curves).splitlines()
    assert lines[0] == (
        "| AUC | 0 % noise | 50 % noise | fall | fall against control (95 % interval) "
        "| verdict of falls | area against control (95 % interval) | verdict of areas |"
    )
    fall, area = curves.falls["treatment"], curves.areas["treatment"]
    assert lines[2].startswith(f"| control | {curves.curves['control'][0].value:.4f} |")
    assert lines[2].endswith(f" | {fall.control:.4f} |  |  |  |  |")
    assert lines[3].endswith(
        f" | {fall.treatment:.4f} "
        f"| {fall.difference:+.5f} ({fall.low:+.5f} to {fall.high:+.5f}) | {fall.outcome} "
        f"| {area.difference:+.5f} ({area.low:+.5f} to {area.high:+.5f}) | {area.outcome} |"
    )
    assert {line.count("|") for line in lines} == {9}

    # What is there is kept; what is missing, or of another run, is made.
    made = []
    monkeypatch.setattr(
        job, "_score_run", lambda folder, copies: made.append((folder.name, len(copies)))
    )
    assert job.noise_curve(runs, arms, config, levels=[0, 0.5]) == curves
    assert made == []
    (path,) = (runs / "control-seed1" / "noise").iterdir()
    path.rename(path.with_suffix(".aside"))
    with pytest.raises(FileNotFoundError):
        job.noise_curve(runs, arms, config, levels=[0, 0.5])
    assert made == [("control-seed1", 1)]
    path.with_suffix(".aside").rename(path)
    made.clear()
    weights = next((runs / "treatment-seed0" / "checkpoint").iterdir())
    weights.touch()
    job.noise_curve(runs, arms, config, levels=[0, 0.5])
    assert made == [("treatment-seed0", 1)]
    assert not list(config.folder.glob(".noise.*"))

    with pytest.raises(ConfigError, match="the control 'control' and another arm"):
        job.noise_curve(runs, ["treatment"], config)
    with pytest.raises(DataError, match="folder of a finished training run"):
        job.noise_curve(tmp_path, arms, config)
    tested.iloc[1:].to_parquet(runs / "control-seed0" / "scores.parquet")
    with pytest.raises(DataError, match="control-seed0: expected a run that was tested on the"):
        job.noise_curve(runs, arms, config)
