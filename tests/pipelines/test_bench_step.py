import json

import numpy as np
import pytest

pytestmark = pytest.mark.tfrs


def test_steps_train_and_parts_are_reported(tmp_path, monkeypatch):
    from pipelines import bench_step as bench
    from pipelines.bench_headlines import of_step

    monkeypatch.setattr(bench, "_TURN_SECONDS", 0.0)
    monkeypatch.setattr(bench, "_SIZES", {"item": 50, "category": 9, "user": 30})
    seconds = iter([1.0, 2.0, 0.1, 0.2, 0.3, 0.4, 3.0, 3.0, 0.1, 0.2, 0.3, 0.4])
    called = []

    def turn(call):
        called.append(call())
        return next(seconds)

    monkeypatch.setattr(bench, "_turn", turn)
    report = bench.bench_step([8], rounds=2, output=tmp_path / "step.json")
    assert json.loads((tmp_path / "step.json").read_text()) == report
    result = report["results"]["8"]
    assert (result["bare_seconds"], result["plugged_seconds"]) == (2.0, 2.5)
    assert result["ratio"] == 1.25
    assert result["ratio_range"] == [1.0, 2.0]
    parts = {"views": 0.1, "encoders": 0.2, "loss": 0.3, "health metrics": 0.4}
    assert result["parts"] == pytest.approx(parts)
    assert "| 8 | 2000.0 | 2500.0 | 1.25 (1.00 to 2.00) |  | 100.0 |" in bench.to_markdown(report)
    assert of_step(report).endswith("without: 8 rows 1.25 (1.00 to 2.00)")
    bare, plugged = called[:2]
    assert float(bare["regularization_loss"]) == 0
    assert float(plugged["regularization_loss"]) > 0.05  # the side loss, at chance 0.1
    # Both ways: the gradients of events, of pooled views with the encoders', of vectors.
    for gradients in called[2:5]:
        given = [x.numpy() for x in gradients if x is not None]
        assert all(np.isfinite(x).all() for x in given)
        assert any(np.abs(x).max() > 0 for x in given)


def test_large_batches_are_also_stepped_with_few_negatives(monkeypatch):
    from pipelines import bench_step as bench

    monkeypatch.setattr(bench, "_SIZES", {"item": 50, "category": 9, "user": 30})
    monkeypatch.setattr(bench, "_FEW_NEGATIVES", 3)
    seconds = iter([1.0, 2.0, 0.1, 0.2, 0.3, 0.4, 1.5])
    losses = []

    def turn(call):
        losses.append(call())
        return next(seconds)

    monkeypatch.setattr(bench, "_turn", turn)
    report = bench.bench_step([8], rounds=1)
    assert report["results"]["8"]["few_negatives_ratio"] == 1.5
    assert len(report["results"]["8"]["parts"]) == 4
    assert "| 2.00 (2.00 to 2.00) | 1.50 (1.50 to 1.50) |" in bench.to_markdown(report)
    side = [float(losses[index]["regularization_loss"]) for index in (1, 6)]
    assert min(side) > 0.05
    assert side[0] != side[1]


def test_a_batch_is_what_the_ranker_takes():
    from pipelines.bench_step import TYPES, step_batch

    batch = step_batch(40)
    for kind in TYPES:
        assert batch[f"{kind}__item"].shape == (40, 50)
        lengths = batch[f"{kind}__length"].numpy()
        assert 0 <= lengths.min() < 10
        assert 40 < lengths.max() <= 50


def test_bad_numbers_are_refused():
    from pipelines.bench_step import bench_step
    from pipelines.config import ConfigError

    for sizes, rounds in (([], 1), ([1], 1), ([8], 0)):
        with pytest.raises(ConfigError, match="expected batches of at least 2 rows"):
            bench_step(sizes, rounds=rounds)
