"""Anybody's score files: joined, checked, compared."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipelines.compare_files import compare_files
from pipelines.reporting.score_files import find_arms, read_scores
from seqdenoise.errors import DataError
from seqdenoise.evaluation.compare import compare_arms

ROOT = Path(__file__).parents[2]
METRICS = ["AUC", "GAUC"]


def rows(num_users=60):
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(num_users), 6)
    labels = (rng.random(users.size) < 0.4).astype(np.int64)
    return pd.DataFrame({"user": users, "label": labels}), rng


@pytest.fixture
def files(tmp_path):
    """Two seeds of two arms, with weights and a column to slice by."""
    table, rng = rows()
    table["weight"] = rng.random(len(table)) + 0.5
    table["day"] = pd.to_datetime("2024-01-01") + pd.to_timedelta(table["user"] % 2, unit="D")
    scores = {}
    for arm, gain in (("old", 0.0), ("new", 1.0)):
        for seed in range(2):
            scores[arm, seed] = table["label"] * gain + rng.normal(0, 1, len(table))
            (tmp_path / arm).mkdir(exist_ok=True)
            table.assign(score=scores[arm, seed]).to_parquet(tmp_path / arm / f"{seed}.parquet")
    return tmp_path, table, scores


def change(path, **columns):
    table = pd.read_parquet(path)
    table.assign(**columns).to_parquet(path)


def test_it_is_compare_arms_on_what_the_files_hold(files, tmp_path):
    folder, table, scores = files
    found = compare_files(
        [f"{folder}/old", f"{folder}/new"],
        slices=["day"],
        metrics=METRICS,
        num_resamples=50,
        confidence=0.9,
        multiplicity="benjamini-hochberg",
        json_file=tmp_path / "out" / "all.json",
    )
    expected = compare_arms(
        table["label"],
        table["user"],
        {arm: np.stack([scores[arm, seed] for seed in range(2)]) for arm in ("old", "new")},
        control="old",
        metrics=METRICS,
        weights=table["weight"],
        slices={"day": table["day"].dt.strftime("%Y-%m-%d %H:%M:%S").to_numpy(str)},
        num_resamples=50,
        confidence=0.9,
        multiplicity="benjamini-hochberg",
    )
    assert found.comparison.arms == expected.arms
    for one, other in zip(found.comparison.slices["day"], expected.slices["day"], strict=True):
        assert one.value.startswith(other.value)  # with parts of a second
        assert one.arms == other.arms
    plain = json.loads((tmp_path / "out" / "all.json").read_text())
    assert plain["files"]["new"] == [f"{folder}/new/0.parquet", f"{folder}/new/1.parquet"]
    assert (
        plain["arms"]["new"]["metrics"][0]["difference"] == expected.arms["new"]["AUC"].difference
    )
    assert "# new against old" in found.to_markdown()
    assert "corrected over these 2 slices by Benjamini-Hochberg" in found.to_markdown()
    assert found.headline().startswith("AUC: better")


def test_arms_are_files_folders_globs_and_names(files, monkeypatch):
    folder, _, _ = files
    old, new = f"{folder}/old", f"{folder}/new"
    (folder / "old" / "notes.txt").write_text("not a score file")
    two = [f"{old}/0.parquet", f"{old}/1.parquet"]
    other = [f"{new}/0.parquet", f"{new}/1.parquet"]
    assert find_arms([old, new]) == {"old": two, "new": other}
    assert find_arms([f"a={two[0]}", f"a={two[1]}", f"b={new}"]) == {"a": two, "b": other}
    assert find_arms([f"{old}/*.parquet", new]) == {f"{old}/*.parquet": two, "new": other}
    # Files of one name are told apart by their paths.
    assert list(find_arms([two[0], other[0]])) == [two[0], other[0]]
    hive = folder / "day=3"
    (folder / "old").rename(hive)
    assert find_arms([str(hive), new])["day=3"] == [f"{hive}/0.parquet", f"{hive}/1.parquet"]
    monkeypatch.chdir(folder)
    assert find_arms(["day=3", new])["day=3"] == ["day=3/0.parquet", "day=3/1.parquet"]


def test_arms_that_do_not_go_together(files):
    folder, _, _ = files
    with pytest.raises(DataError, match=r"at least two arms. Received: 1, \['old'\]"):
        find_arms([f"{folder}/old"])
    with pytest.raises(DataError, match=r"as many files.*Received: \{'old': 2, 'x': 1\}"):
        find_arms([f"{folder}/old", f"x={folder}/new/0.parquet"])
    with pytest.raises(DataError, match=r"nothing.parquet.*no such file"):
        find_arms([f"{folder}/old", f"{folder}/nothing.parquet"])


def test_rows_are_joined_by_a_key(files):
    folder, table, scores = files
    path = folder / "new" / "1.parquet"
    arms = {"old": [f"{folder}/old/0.parquet"], "new": [str(path)]}
    for name in (folder / "old" / "0.parquet", path):
        change(name, row=np.arange(len(table)) * 3)
    shuffled = pd.read_parquet(path).sample(frac=1, random_state=1)
    shuffled.to_parquet(path)
    read = read_scores(arms)
    np.testing.assert_array_equal(read.scores["new"][0], scores["new", 1])
    np.testing.assert_array_equal(read.labels, table["label"])
    # The same by another name; without it the rows are not those of the first file.
    for name in (folder / "old" / "0.parquet", path):
        pd.read_parquet(name).rename(columns={"row": "id"}).to_parquet(name)
    again = read_scores(arms, key="id")
    np.testing.assert_array_equal(again.scores["new"][0], scores["new", 1])
    with pytest.raises(DataError, match=r"new/1.parquet, row 0, column `user`: expected the same"):
        read_scores(arms)
    change(path, id=pd.read_parquet(path)["id"].replace(9, 10))
    with pytest.raises(DataError, match=r"`id`: expected 9, which .*old/0.parquet has in row 3"):
        read_scores(arms, key="id")
    change(path, id=7)
    with pytest.raises(DataError, match=r"row 0, column `id`: expected every value once.*: 7"):
        read_scores(arms, key="id")


def with_value(row, value):
    def make(column):
        changed = column.astype(object) if value is None else column.copy()
        changed[row] = value
        return changed

    return make


@pytest.mark.parametrize(
    ("column", "make", "message"),
    [
        (
            "user",
            with_value(5, 77),
            r"row 5, column `user`: .* row 5 of .*old/0.*, 0. Received: 77",
        ),
        ("label", lambda c: 1 - c, r"row 0, column `label`: expected the same impression"),
        ("label", with_value(4, 2), r"row 4, column `label`: expected 0 or 1. Received: 2"),
        ("label", lambda c: 0 * c, r"`label`: expected both classes. Received: only 0"),
        ("label", lambda c: c.astype(str), r"`label`: expected 0 or 1. Received: .*string"),
        (
            "score",
            with_value(7, np.nan),
            r"row 7, column `score`: expected a (value|finite number)",
        ),
        ("score", with_value(7, np.inf), r"row 7, column `score`: .* finite .*Received: inf"),
        ("score", lambda c: c.astype(str), r"`score`: expected numbers. Received: .*string"),
        ("user", with_value(9, None), r"row 9, column `user`: expected a value. Received: None"),
        ("user", lambda c: c / 2, r"`user`: expected integers or strings. Received: double"),
        ("user", lambda c: c.astype(str), r"row 0, column `user`: expected the same impression"),
        ("weight", with_value(3, -1.0), r"row 3, column `weight`: .*not below 0. Received: -1"),
        ("weight", lambda c: c + 1, r"row 0, column `weight`: expected the same impression"),
    ],
)
def test_a_bad_file_is_one_error_that_says_where(files, column, make, message):
    folder, _, _ = files
    path = folder / "new" / "0.parquet"
    change(path, **{column: make(pd.read_parquet(path)[column])})
    with pytest.raises(DataError, match=message) as error:
        read_scores({"old": [f"{folder}/old/0.parquet"], "new": [str(path)]})
    assert str(error.value).startswith(str(path))
    assert str(error.value).count("Received:") == 1


def test_files_that_lack_something(files):
    folder, table, _ = files
    old, new = folder / "old" / "0.parquet", folder / "new" / "0.parquet"
    arms = {"old": [str(old)], "new": [str(new)]}
    with pytest.raises(DataError, match=r"old/0.parquet: expected one column `tab`. Received:"):
        read_scores(arms, slices=["tab"])
    whole = pd.read_parquet(new)
    whole.drop(columns="weight").to_parquet(new)
    with pytest.raises(DataError, match=r"new/0.parquet: expected one column `weight`. Received"):
        read_scores(arms)
    with pytest.raises(DataError, match=r"old/0.parquet: expected no column `weight`, as in .*new"):
        read_scores({"new": [str(new)], "old": [str(old)]})
    whole.iloc[:-1].to_parquet(new)
    with pytest.raises(DataError, match=r"new/0.parquet: expected the 360 rows .*Received: 359"):
        read_scores(arms)
    whole.iloc[:0].to_parquet(new)
    with pytest.raises(DataError, match=r"new/0.parquet: expected rows. Received: none"):
        read_scores(arms)
    new.write_bytes(old.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"new/0.parquet: expected a whole parquet file"):
        read_scores(arms)
    whole.drop(columns="score").to_parquet(new)
    with pytest.raises(DataError, match=r"expected one column `score`"):
        read_scores(arms)
    whole.to_parquet(new)
    change(old, day=with_value(2, None)(table["day"].dt.day))
    with pytest.raises(DataError, match=r"old/0.parquet, row 2, column `day`: expected a value"):
        read_scores(arms, slices=["day"])


def test_what_the_comparison_refuses_is_a_data_error(files):
    folder, _, _ = files
    arms = [f"{folder}/old", f"{folder}/new"]
    with pytest.raises(DataError, match=r"`metrics` must be of .*Received: 'accuracy'"):
        compare_files(arms, metrics=["accuracy"])
    with pytest.raises(DataError, match=r"`slices\['score'\]` must have at most 100"):
        compare_files(arms, metrics=METRICS, slices=["score"])


def test_the_recipe_for_a_scikit_learn_model(tmp_path):
    """The documented two lines: write the scores of a model, compare the files."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(300), 8)
    X = rng.normal(size=(users.size, 3))
    y = (rng.random(users.size) < 1 / (1 + np.exp(-X @ [1.0, -1.0, 0.5]))).astype(int)
    train = users < 100
    test = ~train
    for name, columns in (("old", [0]), ("new", [0, 1, 2])):
        model = linear_model.LogisticRegression().fit(X[train][:, columns], y[train])
        frame = pd.DataFrame({"user": users[test], "label": y[test]})
        frame["score"] = model.predict_proba(X[test][:, columns])[:, 1]
        frame.to_parquet(tmp_path / f"{name}.parquet")
    result = subprocess.run(
        [sys.executable, "-m", "pipelines", "compare", f"{tmp_path}/old.parquet",
         f"{tmp_path}/new.parquet", "--metric", "AUC", "--metric", "log loss",
         "--resamples", "100", "--report", f"{tmp_path}/ab.html", "--json", f"{tmp_path}/ab.json"],
        cwd=ROOT, capture_output=True, text=True,
        env={k: v for k, v in os.environ.items() if k != "SEQDENOISE_DATA_ONLY"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert re.search(r"^AUC: better; \+0\.1", result.stdout, re.M)
    assert re.search(r"^log loss: better; -0\.", result.stdout, re.M)
    assert "tensorflow" not in result.stderr.lower()
    page = (tmp_path / "ab.html").read_text(encoding="utf-8")
    assert "new" in page
    assert "Calibration" in page
    assert json.loads((tmp_path / "ab.json").read_text())["control"] == "old"


def test_a_bad_file_ends_the_command_with_code_2(tmp_path):
    (tmp_path / "a.parquet").write_text("no parquet")
    # A folder in the place of TensorFlow: whoever imports it fails.
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "tensorflow.py").write_text("raise ImportError('TensorFlow was loaded')")
    env = {k: v for k, v in os.environ.items() if k != "SEQDENOISE_DATA_ONLY"}
    result = subprocess.run(
        [sys.executable, "-m", "pipelines", "compare", f"{tmp_path}/a.parquet",
         f"{tmp_path}/b.parquet", "--report", f"{tmp_path}/ab.html"],
        cwd=ROOT, capture_output=True, text=True, env=env | {"PYTHONPATH": f"{tmp_path}/shadow"},
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.count("error:") == 1
    assert "b.parquet: expected a parquet file. Received: no such file" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "ab.html").exists()
