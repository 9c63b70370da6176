import json
import logging
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqdenoise.errors import DataError

pytestmark = pytest.mark.tfrs

PART = "part-00000.parquet"


@pytest.fixture(scope="module")
def inspected(run_folder, tmp_path_factory):
    from pipelines.inspection.job import inspect

    folder = tmp_path_factory.mktemp("inspected") / "out"
    return folder, inspect(run_folder, folder, num_users=2)


@pytest.fixture
def copy(run_folder, judging_config, tmp_path):
    """A copy of the run and of what it was prepared from, to be damaged."""
    folder = tmp_path / "copy"
    shutil.copytree(run_folder, folder / "run")
    shutil.copytree(judging_config.prepared_folder, folder / "prepared")
    shutil.copytree(judging_config.log_folder, folder / "log")
    change(folder / "run", lambda content: content.update(folder=str(folder)))
    return folder


def change(run_folder, edit):
    path = run_folder / "run.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def set_column(path, name, lists):
    table = pq.read_table(path)
    index = table.schema.get_field_index(name)
    column = pa.array(lists, table.schema.field(name).type)
    pq.write_table(table.set_column(index, name, column), path)


def test_what_is_written(inspected, judging_config):
    folder, inspection = inspected
    assert sorted(path.name for path in folder.iterdir()) == ["keep_scores.parquet", "report.html"]
    frame = pd.read_parquet(folder / "keep_scores.parquet")
    assert len(frame) == inspection.counts.events
    # The fixture's run has learnt nothing.
    (pair,) = inspection.distances
    assert (pair.after.noisy, pair.after.trusted) == ("click", "cart")
    assert pair.after.num_rows > 30
    assert pair.before == pair.after
    assert 0 < pair.after.own < pair.after.others < 2  # users click on what they cart
    # Random embeddings of items and categories already tell noise apart, to a degree.
    assert 0.55 < inspection.summary.auc < 1
    assert [len(group) for group in inspection.histories.values()] == [2, 2, 2]
    page = (folder / "report.html").read_text("utf-8")
    assert "judging, test rows" in page
    assert inspection.histories["Most events dropped"][0].user in page


def test_histories_show_the_row_its_scores_and_the_truth(inspected, judging_config):
    folder, inspection = inspected
    scores = pd.read_parquet(folder / "keep_scores.parquet")
    prepared = pq.read_table(judging_config.prepared_folder / "test.parquet").to_pylist()
    log = judging_config.log_folder
    events, truth = (pd.read_parquet(log / f"{name}.parquet") for name in ("events", "truth"))
    for title, numbers in (
        ("Most events dropped", inspection.summary.most_dropped),
        ("Most events kept", inspection.summary.most_kept),
    ):
        for number, history in zip(numbers, inspection.histories[title], strict=True):
            row = prepared[number]
            assert history.user == str(row["user"])
            assert history.candidate.item == str(row["item"])
            assert history.candidate.fields == {"category": str(row["category"])}
            assert [e.item for e in history.trusted["cart"]] == list(map(str, row["cart__item"]))
            of_row = scores[scores["row"] == number]
            clicks = history.judged["click"]
            np.testing.assert_array_equal([e.keep_score for e in clicks], of_row["keep_score"])
            for place, event in enumerate(clicks):
                item, time = row["click__item"][place], row["click__timestamp"][place]
                same = events[
                    (events["user"] == row["user"])
                    & (events["type"] == "click")
                    & (events["item"] == item)
                    & (events["timestamp"] == time)
                ]
                assert event.item == str(item)
                assert event.fields == {"category": str(row["click__category"][place])}
                assert event.truth == truth.loc[same.index, "is_noise"].all()
                assert event.moment == str(pd.Timestamp(time, unit="ms"))[:16]


def test_distances_after_training_are_those_of_the_runs_embeddings(run, prepared):
    from pipelines.inspection.before_after import distances_before_and_after

    table = run.ranker.tables["item"].embeddings
    kept = table.numpy()
    try:
        table.assign(np.ones_like(kept))  # all items alike
        (changed,) = distances_before_and_after(run, prepared)
    finally:
        table.assign(kept)
    (unchanged,) = distances_before_and_after(run, prepared)
    assert changed.before == unchanged.before
    assert changed.after.own < 0.5 * changed.before.own


def test_a_log_without_truth_and_a_run_with_the_plug_in_off(copy, inspected, tmp_path):
    from pipelines.inspection.job import inspect

    change(copy / "run", lambda content: content["denoiser"].update(enabled=False))
    (copy / "log" / "truth.parquet").unlink()
    inspection = inspect(copy / "run", tmp_path / "out", num_users=1)
    actual, expected = (
        pq.read_table(folder / "keep_scores.parquet") for folder in (tmp_path / "out", inspected[0])
    )
    assert actual.equals(expected)
    assert np.isnan(inspection.summary.auc)
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    body = page[page.index("<body") :]
    for word in ("AUC", "truth", 'class="tag', ">real<", ">noise<"):
        assert word not in body
    assert ">dropped</text>" in body  # the histogram's legend


def test_no_event_to_judge_and_none_to_judge_by(copy, tmp_path):
    from pipelines.inspection.job import inspect

    path = copy / "prepared" / "test.parquet" / PART
    rows = pq.read_metadata(path).num_rows
    columns = [name for name in pq.read_schema(path).names if name.startswith("click__")]
    for name in columns:
        set_column(path, name, [[]] * rows)
    inspection = inspect(copy / "run", tmp_path / "out")
    assert inspection.counts.events == 0
    assert pq.read_table(tmp_path / "out" / "keep_scores.parquet").num_rows == 0
    assert "No event could be judged by cart." in (tmp_path / "out" / "report.html").read_text()

    shutil.copy(copy / "prepared" / "valid.parquet" / PART, path)
    rows = pq.read_metadata(path).num_rows
    for name in columns:
        set_column(path, name.replace("click", "cart"), [[]] * rows)
    inspection = inspect(copy / "run", tmp_path / "out")
    assert inspection.counts.rows_without_trusted == inspection.counts.rows == rows
    frame = pd.read_parquet(tmp_path / "out" / "keep_scores.parquet")
    assert len(frame) > 100
    assert not frame["has_trusted"].any()
    assert (frame["keep_score"] == 1).all()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "No event could be judged by cart." in page
    assert "not judged" in page  # the users drawn at random


def test_progress_is_logged_where_there_is_no_terminal(
    run, prepared, tmp_path, caplog, monkeypatch
):
    from pipelines.inspection import keep_scores

    monkeypatch.setattr(keep_scores, "_BATCH_ROWS", 16)
    with caplog.at_level(logging.INFO):
        counts = keep_scores.write_keep_scores(run, prepared, tmp_path / "out.parquet")
    lines = [r.getMessage() for r in caplog.records if "keep scores:" in r.getMessage()]
    assert len(lines) == 10
    assert lines[-1] == f"keep scores: {counts.rows} of {counts.rows} rows"


def without_trusted(folder):
    change(folder / "run", lambda content: content["denoiser"].update(trusted=None))
    return r"run\.json, denoiser\.trusted: expected .* Received: null"


def trusted_alone(folder):
    """Of a run with the plug-in off, whose training has not looked at its options."""
    trusted = {"trusted": ["click", "cart"], "enabled": False}
    change(folder / "run", lambda content: content["denoiser"].update(trusted))
    return r"run\.json, denoiser: Every denoised sequence is trusted"


def no_run(folder):
    shutil.rmtree(folder / "run")
    return "expected the folder of a finished training run"


def cut_run_file(folder):
    path = folder / "run" / "run.json"
    path.write_text(path.read_text()[:50])
    return "expected the folder of a finished training run"


def no_seed(folder):
    (folder / "run" / "metrics.json").write_text("{}")
    return r"metrics\.json: expected the seed of a finished training run"


def cut_features(folder):
    path = folder / "run" / "features.json"
    path.write_text(path.read_text()[:50])
    return r"features\.json: expected the features file"


def cut_weights(folder):
    for path in (folder / "run" / "checkpoint").glob("best.data*"):
        path.write_bytes(path.read_bytes()[:100])
    return "expected the run's weights"


def not_prepared(folder):
    shutil.rmtree(folder / "prepared" / "test.parquet")
    return r"test\.parquet: expected a parquet file. Received: no such file"


def cut_prepared(folder):
    path = folder / "prepared" / "test.parquet" / PART
    path.write_bytes(path.read_bytes()[:-200])
    return r"part-00000\.parquet: expected a whole parquet file"


def damaged_page(folder):
    """Readable until the pass is under way."""
    path = folder / "prepared" / "test.parquet" / PART
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    (column,) = (c for c in columns if c.path_in_schema.startswith("click__item."))
    start = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    content[start + column.total_compressed_size // 2] ^= 255
    path.write_bytes(content)
    return r"part-00000\.parquet, row group 0, column `click__item`"


def other_truth(folder):
    path = folder / "log" / "truth.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    return r"truth\.parquet: expected a row for each of the"


@pytest.mark.parametrize(
    "damage",
    [
        without_trusted, trusted_alone, no_run, cut_run_file, no_seed,
        cut_features, cut_weights, not_prepared, cut_prepared, damaged_page, other_truth,
    ],
)  # fmt: skip
def test_one_clear_error_and_the_old_output_stays(copy, damage):
    from pipelines.config import ConfigError
    from pipelines.inspection.job import inspect

    message = damage(copy)
    out = copy / "out"
    out.mkdir()
    (out / "report.html").write_text("old")
    before = sorted(copy.rglob("*"))
    with pytest.raises((ConfigError, DataError), match=message):
        inspect(copy / "run", out)
    assert sorted(copy.rglob("*")) == before
    assert (out / "report.html").read_text() == "old"


def test_an_unknown_split_is_named(run_folder, tmp_path):
    from pipelines.config import ConfigError
    from pipelines.inspection.job import inspect

    with pytest.raises(ConfigError, match=r"split: expected one of .* Received: 'tset'"):
        inspect(run_folder, tmp_path / "out", split="tset")


def test_a_page_that_cannot_be_written_leaves_nothing(run_folder, tmp_path, monkeypatch):
    from pipelines.inspection import job

    def fail(inspection):
        raise OSError("disk full")

    monkeypatch.setattr(job, "to_html", fail)
    with pytest.raises(OSError, match="disk full"):
        job.inspect(run_folder, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
