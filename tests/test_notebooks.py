"""Every notebook runs from top to bottom, with the cells as committed."""

import json
import os
import re
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from seqdenoise.evaluation.compare import compare_arms
from seqdenoise.evaluation.verdict import arms_to_dict, to_dict

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SEEDS = [0, 1, 2]

pytestmark = [
    pytest.mark.slow,
    # Closing a kernel's sockets is not ours to tidy.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def history(rng, arm):
    """A run's learning curve as `train` writes it."""
    epochs = np.arange(1, 7)
    table = {
        "epoch": epochs,
        "loss": 0.35 + 0.3 * np.exp(-epochs / 2) + rng.normal(0, 0.004, 6),
        "valid_auc": 0.69 - 0.12 * np.exp(-epochs / 1.5) - 0.002 * epochs + rng.normal(0, 0.002, 6),
    }
    if arm == "treatment":
        for kind in ("cart", "click", "purchase"):
            table[f"denoiser/{kind}/loss"] = 6 * np.exp(-epochs / 3) + rng.normal(0, 0.05, 6)
            table[f"denoiser/{kind}/alignment"] = 0.3 + 0.9 * np.exp(-epochs / 2)
            table[f"denoiser/{kind}/uniformity"] = -3 * (1 - np.exp(-epochs / 2))
            table[f"denoiser/{kind}/effective_rank"] = 18 + epochs + rng.normal(0, 0.5, 6)
    return pd.DataFrame(table)


def make_ab_folder(folder, gain=0.4):
    """A finished A/B with a planted gain, laid out as `pipelines ab` lays it out."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(200), rng.integers(2, 20, 200))
    rng.shuffle(users)
    labels = (rng.random(users.size) < 0.3).astype(np.int8)
    signal = labels + rng.normal(0, 1.2, users.size)
    scores = {}
    for arm, bonus in (("control", 0.0), ("treatment", gain)):
        for seed in SEEDS:
            noise = rng.normal(0, 0.3, users.size)
            score = 1 / (1 + np.exp(-(signal + bonus * labels + noise)))
            score = score.astype(np.float32)
            scores[arm, seed] = score
            run = folder / "runs" / f"{arm}-seed{seed}"
            run.mkdir(parents=True)
            pd.DataFrame({"user": users, "label": labels, "score": score}).to_parquet(
                run / "scores.parquet", index=False
            )
            history(rng, arm).to_csv(run / "history.csv", index=False)
            (run / "metrics.json").write_text(
                json.dumps({"valid_auc": 0.7, "test": {"auc": 0.7, "log_loss": 0.5}, "epochs": 6})
            )
    comparison = compare_arms(
        labels,
        users,
        {arm: np.stack([scores[arm, seed] for seed in SEEDS]) for arm in ("control", "treatment")},
        control="control",
        metrics=["AUC", "GAUC", "log loss"],
        num_resamples=200,
    )
    ab = {
        "label": "click",
        "confidence": 0.95,
        "comparison": to_dict(comparison.arms["treatment"]),
        "all_arms": arms_to_dict(comparison),
        "arms": ["control", "treatment"],
        "seeds": SEEDS,
        "config": {"train": {"batch_size": 512}},
    }
    (folder / "ab.json").write_text(json.dumps(ab, allow_nan=False))
    return folder


def execute(path):
    """Runs a notebook in a fresh kernel whose working directory is the repository."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    )
    client.execute()
    return notebook


def printed(notebook):
    return "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )


def num_images(notebook):
    return sum(
        "image/png" in output.get("data", {})
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    if path.stem == "02_ab_offline_eval":
        monkeypatch.setenv("SEQDENOISE_AB", str(make_ab_folder(tmp_path / "ab")))
    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
    if path.stem == "03_what_was_denoised" and not is_legacy:
        pytest.skip("it chooses legacy Keras itself, so one generation runs it")
    if path.stem == "02_ab_offline_eval" and is_legacy:
        pytest.skip("it has no Keras in it, so one generation runs it")
    notebook = execute(path)
    if path.stem == "01_plug_in":
        text = printed(notebook)
        assert "the scores are the same to the last bit\n" in text
        assert re.findall("^padding masked: (.*?):", text, re.MULTILINE) == ["denoiser/click"]
        assert "alarms: 0\n" in text
        assert re.search(r"^(\d+) operations, \1 in the stripped one$", text, re.MULTILINE)
        served, python = (
            re.search(f"^{place} +([0-9. ]+)$", text, re.MULTILINE)[1].split()
            for place in ("served", "in Python")
        )
        np.testing.assert_allclose(np.float64(served), np.float64(python), atol=2e-6)
        assert num_images(notebook) == 1
    if path.stem == "02_ab_offline_eval":
        assert "AUC: better" in printed(notebook)
        # Seed by seed, slices, calibration, power, learning curves, the denoiser's metrics.
        assert num_images(notebook) == 6
    if path.stem == "03_what_was_denoised":
        (auc,) = re.findall(r"the keep score has an AUC of (0\.\d+)", printed(notebook))
        assert float(auc) > 0.7
        assert num_images(notebook) == 2  # the clicks' scores, distances
        assert 'class="event dropped"' in notebook.cells[-1].outputs[0].data["text/html"]
    if path.stem == "04_contrastive_losses":
        # Its cells assert what they claim of the limits and of the debiased loss.
        assert "Collapsed: attraction only\n" in printed(notebook)
        assert num_images(notebook) == 4  # temperature, debiased, paths in training, ranks


def test_ab_notebook_notices_scores_that_are_not_the_jobs(tmp_path, monkeypatch):
    folder = make_ab_folder(tmp_path / "ab")
    path = folder / "runs" / "treatment-seed1" / "scores.parquet"
    table = pd.read_parquet(path)
    table.loc[0, "score"] += 3.0
    table.to_parquet(path, index=False)
    monkeypatch.setenv("SEQDENOISE_AB", str(folder))
    with pytest.raises(CellExecutionError, match=r"ab\.json is not what these scores give"):
        execute(ROOT / "notebooks" / "02_ab_offline_eval.ipynb")
