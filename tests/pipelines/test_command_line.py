"""The jobs as a scheduler sees them: exit codes, one clear error, nothing left half-written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

pytestmark = pytest.mark.tfrs
ROOT = Path(__file__).parents[2]


def pipelines(*arguments, env=None):
    return subprocess.run(
        [sys.executable, "-m", "pipelines", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, env=env,
    )  # fmt: skip


@pytest.fixture
def log(run_file, tmp_path):
    """A run file with a copy of the raw log, nothing prepared yet."""
    folder = tmp_path / "run"
    shutil.copytree(run_file.parent / "log", folder / "log")
    content = yaml.safe_load(run_file.read_text())
    content["folder"] = str(folder)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_help_lists_the_jobs_and_legacy_keras_is_chosen_for_the_process():
    env = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    result = pipelines("--help", env=env)
    assert result.returncode == 0
    for job in (
        "simulate", "import", "prepare", "check", "audit", "train", "arms", "ab", "compare",
        "export", "harm", "inspect", "denoising", "coverage", "bench",
    ):  # fmt: skip
        assert job in result.stdout


def test_prepare_audit_train_inspect_and_export(log, tmp_path):
    assert pipelines("prepare", log).returncode == 0
    audit = pipelines("audit", log)
    assert audit.returncode == 0, audit.stderr
    assert "no violations" in audit.stdout
    content = yaml.safe_load(log.read_text())
    content["denoiser"]["trusted"] = "search"
    log.write_text(yaml.safe_dump(content))
    assert pipelines("train", log, "--output", tmp_path / "one", "--seed", 3).returncode == 0
    inspected = pipelines("inspect", tmp_path / "one", tmp_path / "inspected")
    assert inspected.returncode == 0, inspected.stderr
    assert "of click events" in inspected.stdout
    assert (tmp_path / "inspected" / "report.html").is_file()
    assert pipelines("export", tmp_path / "one", tmp_path / "model").returncode == 0
    assert (tmp_path / "model" / "saved_model.pb").is_file()


def test_a_planted_leak_fails_the_audit(log):
    assert pipelines("prepare", log).returncode == 0
    path = log.parent / "prepared" / "test.parquet" / "part-00000.parquet"
    table = pq.read_table(path)
    lists, times = table["click__timestamp"].to_pylist(), table["timestamp"].to_pylist()
    row = next(i for i, values in enumerate(lists) if values)
    lists[row][-1] = times[row]  # the impression's own moment
    index = table.schema.get_field_index("click__timestamp")
    leaky = table.set_column(
        index, table.schema.field(index), pa.array(lists, pa.list_(pa.int64()))
    )
    pq.write_table(leaky, path)
    result = pipelines("audit", log)
    assert result.returncode == 1
    assert "test" in result.stdout
    assert "click" in result.stdout


def drop_column(log):
    path = log.parent / "log" / "events.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["timestamp"]), path)
    return "prepare", ["events.parquet", "`timestamp`"]


def wrong_dtype(log):
    path = log.parent / "log" / "impressions.parquet"
    table = pq.read_table(path)
    index = table.schema.get_field_index("item")
    text = table["item"].cast(pa.string())
    pq.write_table(table.set_column(index, "item", text), path)
    return "prepare", ["impressions.parquet", "`item`", "string"]


def unknown_key(log):
    content = yaml.safe_load(log.read_text())
    content["denoiser"]["wieght"] = 0.1
    log.write_text(yaml.safe_dump(content))
    return "prepare", ["run.yaml", "denoiser.wieght", "unknown key"]


def empty_log(log):
    path = log.parent / "log" / "impressions.parquet"
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    return "prepare", ["impressions.parquet", "0 rows"]


def truncated_file(log):
    path = log.parent / "log" / "events.parquet"
    path.write_bytes(path.read_bytes()[:-200])
    return "prepare", ["events.parquet", "expected a whole parquet file"]


def truncated_prepared_file(log):
    assert pipelines("prepare", log).returncode == 0
    path = log.parent / "prepared" / "train.parquet" / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:-200])
    return "ab", ["train.parquet/part-00000.parquet", "expected a whole parquet file"]


def not_prepared(log):
    return "ab", ["train.parquet", "no such file"]


@pytest.mark.parametrize(
    "damage",
    [
        drop_column, wrong_dtype, unknown_key, empty_log,
        truncated_file, truncated_prepared_file, not_prepared,
    ],
)  # fmt: skip
def test_bad_input_gives_one_clear_error_and_leaves_nothing(log, damage):
    job, words = damage(log)
    before = sorted(log.parent.rglob("*"))
    result = pipelines(job, log)
    assert result.returncode == 2
    # On some processors TensorFlow tells, at any log level, of round-off errors.
    own = [line for line in result.stderr.splitlines() if "oneDNN" not in line]
    assert len([line for line in own if "error" in line.lower()]) == 1
    message = result.stderr[result.stderr.index("error:") :]
    for word in words:
        assert word in message
    assert "Traceback" not in result.stderr
    assert sorted(log.parent.rglob("*")) == before


def test_bad_options_of_simulate_are_named(tmp_path):
    result = pipelines("simulate", tmp_path / "log", "--noise-rate", "2")
    assert result.returncode == 2
    assert "noise-rate" in result.stderr
    assert not (tmp_path / "log").exists()
