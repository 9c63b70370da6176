"""`prepare` on a local Spark writes what it writes without."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import small_log

from pipelines.config import ConfigError
from pipelines.prepare import prepare

PARTS = {"part_rows": 1500, "bucket_rows": 800}  # 5 parts, 3 buckets
ROOT = Path(__file__).parents[2]
SPARK = importlib.util.find_spec("pyspark") is not None

# One process for all that needs Spark, since its start takes longest.
_SCRIPT = """
import json, sys
from pipelines.config import RunConfig
from pipelines.prepare import prepare
from seqdenoise.errors import DataError

good, bad = [RunConfig.model_validate_json(text) for text in sys.argv[2:]]
options = json.loads(sys.argv[1])
prepare(good, engine="spark", **options)
try:
    prepare(bad, engine="spark", **options)
except DataError as error:
    print(error)
"""


@pytest.mark.spark
@pytest.mark.skipif(not SPARK, reason="needs PySpark (the extra `spark`)")
@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java, which runs Spark")
def test_spark_writes_the_files_that_the_local_engine_writes(tmp_path):
    raw = small_log.tables()
    local, spark, bad = (tmp_path / name for name in ("local", "spark", "bad"))
    for folder in (local, spark):
        small_log.write_log(folder, raw)
    users = raw["events"]["user"].to_pylist()
    users[1700] = None
    raw["events"] = raw["events"].set_column(0, "user", pa.array(users))
    small_log.write_log(bad, raw)
    prepare(small_log.settings(local), processes=1, **PARTS)
    configs = [small_log.settings(folder).model_dump_json() for folder in (spark, bad)]
    environment = {
        **os.environ,
        "SEQDENOISE_DATA_ONLY": "1",
        "PYTHONPATH": str(ROOT),
        "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell",
    }
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(PARTS), *configs],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    files = sorted(path for path in (local / "prepared").rglob("*") if path.is_file())
    assert len(files) > 8
    for path in files:
        other = spark / path.relative_to(local)
        assert other.read_bytes() == path.read_bytes()
    assert sorted(os.listdir(spark)) == ["log", "prepared"]
    place = f"{bad / 'log' / 'events.parquet'}, row group 3, column `user`: expected no nulls."
    assert run.stdout == f"{place} Received: 1 nulls, the first in row 200\n"
    assert os.listdir(bad) == ["log"]


@pytest.mark.skipif(SPARK, reason="PySpark is here")
def test_without_pyspark_the_error_says_what_to_install(tmp_path):
    small_log.write_log(tmp_path, small_log.tables())
    with pytest.raises(ConfigError, match=r"expected PySpark for --engine spark \(pip install"):
        prepare(small_log.settings(tmp_path), engine="spark")
