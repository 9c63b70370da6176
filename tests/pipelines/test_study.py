import json
import logging
import re
import shutil

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.tfrs

ARMS = {
    "control": {"denoiser": {"enabled": False}},
    "field": {"denoiser": {"masking": "field"}},
    "event": {"denoiser": {"masking": "event"}},
    "rival": {"denoiser": {"masking": "dropout"}},
}
STUDY = {
    "labels": ["is_click"],
    "seeds": [0, 1],
    "space": {"model.dropout": {"choices": [0.0, 0.1, 0.2]}},
    "spaces": {"field": {"denoiser.weight": {"low": 0.01, "high": 1.0, "log": True}}},
    "rivals": ["rival"],
    "processes": 1,
}
# The rival is best on validation rows; of the others "field" is there, "event" on test rows.
VALID = {"control": 0.70, "field": 0.72, "event": 0.71, "rival": 0.75}
TEST = {"control": 0.4, "field": 0.6, "event": 1.6, "rival": 1.4}


def with_study(config, folder, arms=ARMS, **changes):
    from pipelines.config import RunConfig

    study = {**STUDY, **changes}
    own = {"folder": folder, "arms": arms, "study": study}
    return RunConfig.model_validate({**config.model_dump(), **own})


@pytest.fixture
def small(config, tmp_path):
    shutil.copytree(config.prepared_folder, tmp_path / "prepared", copy_function=shutil.copy2)
    return with_study(config, tmp_path)


@pytest.fixture
def trained(monkeypatch):
    """Stands in for training; what was trained, as pairs of a folder and whether it was tested."""
    from pipelines import arms, tuning
    from pipelines.run_record import fingerprint

    made = []

    def train(config, folder, *, seed, features, name, test=True):
        made.append((folder, test))
        arm = name.partition("-")[0]
        auc = VALID[arm] - config.model.dropout / 100 + seed / 1e6
        metrics = {"valid": {"auc": auc}, "seconds": 360.0}
        folder.mkdir(parents=True)
        if test:
            draw = np.random.default_rng(0)
            labels = draw.integers(0, 2, 3000)
            scores = draw.normal(size=3000) + TEST[arm] * labels
            rows = {
                "user": np.arange(3000) // 10,
                "label": labels,
                "score": 1 / (1 + np.exp(-scores)),
            }
            pd.DataFrame(rows).to_parquet(folder / "scores.parquet")
        (folder / "metrics.json").write_text(json.dumps(metrics))
        (folder / "fingerprint.txt").write_text(fingerprint(config, seed, test=test))
        return metrics

    monkeypatch.setattr(tuning, "train", train)
    monkeypatch.setattr(arms, "train", train)
    return made


def rows_of(markdown):
    """The cells of all lines of tables."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in markdown.splitlines()
        if line.startswith("| ")
    ]


def test_the_best_arm_is_chosen_on_validation_rows(small, trained, caplog):
    from pipelines.study import run_study

    caplog.set_level(logging.INFO)
    config = small.model_copy(
        update={"study": small.study.model_copy(update={"host_trials": 2, "trials": 2})}
    )
    result = run_study(config)
    folder = config.folder / "study"
    one = result.labels[0]
    assert one.chosen == "field"
    assert one.valid_auc["field"] == pytest.approx(
        0.72 - result.tuning.host["model.dropout"] / 100 + 0.5e-6, abs=1e-12
    )
    # On the test rows another is better: they had no say.
    difference = {arm: c["AUC"].difference for arm, c in one.against_control.arms.items()}
    assert difference["event"] > difference["rival"] > difference["field"] > 0
    assert list(one.against_rivals) == ["rival"]
    against = one.against_rivals["rival"]["AUC"]
    assert against.outcome == "worse"
    assert against.difference == pytest.approx(difference["field"] - difference["rival"], abs=1e-12)
    assert [metric.metric for metric in one.against_rivals["rival"].metrics] == [
        "AUC",
        "GAUC",
        "log loss",
    ]
    # Only final runs are tested, each once, with the settings found.
    tested = [path for path, test in trained if test]
    runs = folder / "is_click" / "runs"
    assert sorted(tested) == sorted(runs / f"{arm}-seed{seed}" for arm in ARMS for seed in (0, 1))
    assert result.number_of_runs == len(trained)
    assert result.hours == pytest.approx(len(trained) / 10)
    assert caplog.messages[-1] == "14 of 14 runs done"
    assert any(
        re.search(r"^9 of 14 runs done, about \d+ seconds left$", m) for m in caplog.messages
    )

    written = json.loads((folder / "study.json").read_text())
    label = written["labels"]["is_click"]
    assert label["chosen"] == "field"
    assert label["against_control"]["arms"]["event"]["metrics"][0]["outcome"] == "better"
    assert written["tuning"]["arms"]["field"]["number_of_trials"] == 2
    text = (folder / "study.md").read_text()
    cells = {row[0]: row for row in rows_of(text)[: len(ARMS) + 1]}
    assert cells["event"][4].startswith(f"{difference['event']:+.5f} (+")
    assert cells["event"][7] == "better"
    assert cells["event"][1] == "as in the run file"
    assert cells["field"][1].startswith("weight 0.")
    assert cells["control"][4:] == ["", "", "", ""]
    assert len({len(row) for row in cells.values()}) == 1
    assert "Chosen on validation rows: **field**." in text
    assert "The control had 4 trials, the first 2" in text
    assert f"took {result.hours:.1f} hours of computing in {len(trained)} runs" in text

    # All of it is kept.
    number = len(trained)
    assert run_study(config) == result
    assert len(trained) == number
    assert (folder / "study.md").read_text() == text
    shutil.rmtree(runs / "event-seed1")
    assert run_study(config) == result
    assert trained[number:] == [(runs / "event-seed1", True)]


def test_rivals_and_control_are_never_chosen():
    from pipelines.study import choose_arm

    auc = {"control": 0.9, "rival": 0.8, "b": 0.6, "a": 0.7, "c": 0.7}
    assert choose_arm(auc, ["rival"]) == "a"
    assert choose_arm(auc, []) == "rival"


def test_it_says_of_finished_runs_what_the_ab_says(finished_ab, config, tmp_path):
    from pipelines.study import run_study

    shutil.copytree(config.prepared_folder, tmp_path / "prepared", copy_function=shutil.copy2)
    runs = tmp_path / "study" / "is_click" / "runs"
    shutil.copytree(finished_ab[0] / "runs", runs, copy_function=shutil.copy2)
    arms = {"control": ARMS["control"], "treatment": {}}
    unchanged = {"space": {}, "spaces": {}, "rivals": []}
    study = with_study(config, tmp_path, arms, seeds=[0], noise_levels=[0.4], **unchanged)
    (one,) = run_study(study).labels
    expected = {m.metric: m.seeds[0] for m in finished_ab[1].arms["treatment"].metrics}
    for metric in ("AUC", "GAUC", "log loss"):
        found = one.against_control.arms["treatment"][metric]
        assert found.control == pytest.approx(expected[metric].control, abs=1e-12)
        assert found.difference == pytest.approx(expected[metric].difference, abs=1e-12)
        assert found.low < found.difference < found.high
    assert one.chosen == "treatment"
    assert list(one.noise.curves) == ["control", "treatment"]
    assert one.noise.curves["treatment"][0].value == pytest.approx(expected["AUC"].treatment)
    text = (tmp_path / "study" / "study.md").read_text()
    assert "| AUC | 0 % noise | 40 % noise |" in text
    (figure,) = re.findall(r"!\[.*\]\((.*)\)", text)
    assert "<svg" in (tmp_path / "study" / figure).read_text()
    assert "As in the run file: control, treatment." in text


def test_a_bar_on_a_terminal_takes_the_place_of_what_is_printed(monkeypatch, capsys):
    from pipelines import study_progress

    monkeypatch.setattr(study_progress.sys.stderr, "isatty", lambda: True, raising=False)
    with study_progress.StudyProgress(3) as progress:
        print("an epoch")
        progress.done(kept=True)
        progress.done(kept=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert "2/3" in err
    assert "2 of 3 runs done, about 0 seconds left" in err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (10, "about 60 seconds left"),
        (30, "about 3 minutes left"),
        (2000, "about 3.3 hours left"),
    ],
)
def test_the_time_left_is_that_of_runs_that_were_trained(seconds, words, monkeypatch):
    from pipelines import study_progress

    now = [0.0]
    monkeypatch.setattr(study_progress.time, "monotonic", lambda: now[0])
    progress = study_progress.StudyProgress(10)
    for _ in range(3):
        progress.done(kept=True)
    assert progress.in_words() == "3 of 10 runs done"
    now[0] = seconds
    progress.done(kept=False)
    assert progress.in_words() == f"4 of 10 runs done, {words}"
