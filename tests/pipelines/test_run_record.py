import json
import os
import platform
import shutil

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.tfrs


def changed(config, section, **values):
    return config.model_copy(
        update={section: getattr(config, section).model_copy(update=values)}, deep=True
    )


def test_the_folder_of_a_run_records_what_it_depends_on(finished_ab, config):
    import numpy as np
    import tensorflow as tf

    import seqdenoise
    from pipelines.config import RunConfig
    from pipelines.run_record import fingerprint

    run = finished_ab[0] / "runs" / "treatment-seed1"
    record = json.loads((run / "record.json").read_text())
    assert record["seed"] == 1
    assert record["versions"]["python"] == platform.python_version()
    assert record["versions"]["tensorflow"] == tf.__version__
    assert record["versions"]["numpy"] == np.__version__
    assert record["versions"]["seqdenoise"] == seqdenoise.__version__
    assert record["versions"]["tf_keras"].startswith("2.")
    assert record["machine"]["devices"][0] == "CPU"
    train = config.prepared_folder / "train.parquet"
    assert record["data"]["train"]["rows"] == pq.read_table(train).num_rows
    assert record["data"]["train"]["bytes"] == sum(p.stat().st_size for p in train.iterdir())
    assert record["deterministic"] is False
    kept = RunConfig.model_validate_json((run / "run.json").read_text())
    assert fingerprint(kept, 1) == record["fingerprint"]
    assert (run / "fingerprint.txt").read_text() == record["fingerprint"]


def test_a_fingerprint_changes_with_what_changes_results_alone(config, tmp_path, monkeypatch):
    from pipelines import run_record

    folder = tmp_path / "run"
    shutil.copytree(config.prepared_folder, folder / "prepared")
    config = config.model_copy(update={"folder": folder})
    first = run_record.fingerprint(config, 0)
    same = [
        changed(config, "train", backup_minutes=None),
        changed(config, "train", tensorboard=True),
        changed(config, "ab", seeds=[5]),
    ]
    assert {run_record.fingerprint(one, 0) for one in same} == {first}
    others = [
        changed(config, "train", learning_rate=0.5),
        changed(config, "train", deterministic=True),
        changed(config, "model", dropout=0.5),
        changed(config, "denoiser", weight=0.5),
        changed(config, "denoiser", enabled=False),
    ]
    found = {run_record.fingerprint(one, 0) for one in others} | {run_record.fingerprint(config, 1)}
    assert len(found | {first}) == 7
    off = changed(config, "denoiser", enabled=False)
    assert run_record.fingerprint(off, 0) == run_record.fingerprint(
        changed(off, "denoiser", weight=0.5), 0
    )

    path = folder / "prepared" / "test.parquet" / "part-00000.parquet"
    os.utime(path, (0, 0))
    assert run_record.fingerprint(config, 0) == first
    # A byte of the data, of the same size and in the same place: no footer tells of it.
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert run_record.fingerprint(config, 0) != first
    content[100] ^= 1
    path.write_bytes(content)
    assert run_record.fingerprint(config, 0) == first
    (folder / "prepared" / "statistics.json").write_text("{}")
    assert run_record.fingerprint(config, 0) != first
    monkeypatch.setattr(run_record, "versions", lambda: {"tensorflow": "1.0"})
    assert run_record.fingerprint(config, 0) != first


def test_nothing_prepared_is_one_clear_error(config, tmp_path):
    from pipelines.run_record import fingerprint
    from seqdenoise.errors import DataError

    with pytest.raises(DataError, match=r"train\.parquet"):
        fingerprint(config.model_copy(update={"folder": tmp_path}), 0)
