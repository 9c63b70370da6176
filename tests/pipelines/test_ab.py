import json
import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.tfrs


def test_writes_every_run_the_table_and_the_verdict(finished_ab, config):
    folder, comparison = finished_ab
    summary = json.loads((folder / "ab.json").read_text())
    assert summary["comparison"]["metrics"][0]["metric"] == "AUC"
    assert summary["seeds"] == [0, 1]
    assert (folder / "ab.md").read_text().startswith("| metric | control | treatment |")
    for arm in ("control", "treatment"):
        for seed in (0, 1):
            run = folder / "runs" / f"{arm}-seed{seed}"
            metrics = json.loads((run / "metrics.json").read_text())
            assert metrics["denoise"] == (arm == "treatment")
            history = pd.read_csv(run / "history.csv")
            assert list(history["epoch"]) == [1, 2]
            assert ("denoiser/click/loss" in history) == (arm == "treatment")
            assert "denoiser/search/loss" not in history
    assert comparison.arms["treatment"]["AUC"].difference != 0
    assert [entry["metric"] for entry in summary["comparison"]["metrics"]] == config.ab.metrics
    assert "<h1>Offline A/B</h1>" in (folder / "report.html").read_text()


def test_metrics_are_those_of_the_scores_of_the_best_epoch(finished_ab):
    from sklearn.metrics import roc_auc_score

    folder, _ = finished_ab
    for run in sorted((folder / "runs").iterdir()):
        metrics = json.loads((run / "metrics.json").read_text())
        scores = pd.read_parquet(run / "scores.parquet")
        np.testing.assert_allclose(
            metrics["test"]["auc"], roc_auc_score(scores["label"], scores["score"]), rtol=1e-9
        )
        history = pd.read_csv(run / "history.csv")
        np.testing.assert_allclose(metrics["valid"]["auc"], history["valid_auc"].max(), rtol=1e-9)
        assert history["valid_auc"][metrics["best_epoch"] - 1] == history["valid_auc"].max()


def test_the_best_epoch_is_kept_not_the_last(config, tmp_path):
    from pipelines.train import train

    hasty = config.train.model_copy(update={"epochs": 20, "patience": 20, "learning_rate": 0.05})
    metrics = train(
        config.model_copy(update={"train": hasty}).with_denoiser(False), tmp_path / "run"
    )
    assert metrics["best_epoch"] < metrics["epochs"]
    history = pd.read_csv(tmp_path / "run" / "history.csv")
    np.testing.assert_allclose(metrics["valid"]["auc"], history["valid_auc"].max(), rtol=1e-9)


def test_scores_are_in_the_order_of_the_test_rows(finished_ab, config):
    folder, _ = finished_ab
    rows = pd.read_parquet(config.prepared_folder / "test.parquet", columns=["user", "is_click"])
    scores = pd.read_parquet(folder / "runs" / "control-seed0" / "scores.parquet")
    np.testing.assert_array_equal(scores["user"], rows["user"])
    np.testing.assert_array_equal(scores["label"], rows["is_click"])


def test_finished_runs_are_kept_and_changed_ones_made_again(
    finished_ab, config, tmp_path, monkeypatch
):
    from pipelines import ab, arms

    folder, comparison = finished_ab
    shutil.copytree(folder, tmp_path / "ab")
    # Other times of writing are no other data.
    shutil.copytree(config.prepared_folder, tmp_path / "prepared", copy_function=shutil.copyfile)
    made = []
    monkeypatch.setattr(arms, "train", lambda config, folder, **_: made.append(folder.name))
    config = config.model_copy(update={"folder": tmp_path})

    assert ab.run_ab(config) == comparison
    assert made == []

    denoiser = config.denoiser.model_copy(update={"weight": 0.3})
    ab.run_ab(config.model_copy(update={"denoiser": denoiser}))
    assert made == ["treatment-seed0", "treatment-seed1"]

    made.clear()
    path = config.prepared_folder / "train.parquet" / "part-00000.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("is_click")
    other = table.set_column(place, "is_click", [table["is_click"].to_pylist()[::-1]])
    pq.write_table(other, path)
    ab.run_ab(config)
    assert len(made) == 4


def test_the_summary_holds_the_noise_curves(finished_ab, config, tmp_path):
    from pipelines import ab

    folder, _ = finished_ab
    assert json.loads((folder / "ab.json").read_text())["noise"] is None
    shutil.copytree(folder, tmp_path / "ab")
    shutil.copytree(config.prepared_folder, tmp_path / "prepared", copy_function=shutil.copyfile)
    noisy = config.ab.model_copy(update={"noise_levels": [0.5]})
    ab.run_ab(config.model_copy(update={"folder": tmp_path, "ab": noisy}))
    noise = json.loads((tmp_path / "ab" / "ab.json").read_text())["noise"]
    assert noise["levels"] == [0, 0.5]
    fall = noise["falls"]["treatment"]
    ends = [point["value"] for point in noise["curves"]["treatment"]]
    np.testing.assert_allclose(fall["treatment"], ends[0] - ends[1], rtol=1e-9)
    assert f"{fall['difference']:+.5f}" in (tmp_path / "ab" / "ab.md").read_text()


def test_the_same_seed_trains_the_same_model(finished_ab, config, tmp_path):
    from pipelines.train import train

    folder, _ = finished_ab
    train(config, tmp_path / "again", seed=1)
    again = pd.read_parquet(tmp_path / "again" / "scores.parquet")
    first = pd.read_parquet(folder / "runs" / "treatment-seed1" / "scores.parquet")
    np.testing.assert_array_equal(again["score"], first["score"])


def test_weight_zero_is_the_control_to_the_last_bit(finished_ab, config, tmp_path):
    from pipelines.train import train

    folder, _ = finished_ab
    denoiser = config.denoiser.model_copy(update={"weight": 0.0})
    train(config.model_copy(update={"denoiser": denoiser}), tmp_path / "off", seed=1)
    off = pd.read_parquet(tmp_path / "off" / "scores.parquet")
    control = pd.read_parquet(folder / "runs" / "control-seed1" / "scores.parquet")
    np.testing.assert_array_equal(off["score"], control["score"])


def test_a_test_split_of_one_class_is_named(config, tmp_path):
    from pipelines.train import train
    from seqdenoise.errors import DataError

    folder = tmp_path / "run"
    shutil.copytree(config.prepared_folder, folder / "prepared")
    path = folder / "prepared" / "test.parquet" / "part-00000.parquet"
    table = pq.read_table(path)
    clicked = table.filter(table["is_click"].to_numpy() == 1)
    pq.write_table(clicked, path)
    with pytest.raises(
        DataError, match=r"test.parquet.*, column `is_click`: expected both classes"
    ):
        train(config.model_copy(update={"folder": folder}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
