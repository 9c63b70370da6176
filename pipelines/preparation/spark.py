"""Both stages on a Spark cluster: the functions of the local engine through `mapInArrow`.

Spark reads and writes no log itself. An executor opens the log's files as the local engine does, so
that checks, messages and the order of tied events are the same; Spark shuffles the rows to their
buckets and runs failed tasks again; each bucket is written by one task into the run's folder, which
every executor must see under the same path.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa

from pipelines.config import ConfigError, RunConfig
from pipelines.preparation.bucket import build_bucket
from pipelines.preparation.local import cached_items, environment
from pipelines.preparation.partition import partition
from pipelines.preparation.plan import LogPart
from pipelines.preparation.summary import check_counts
from pipelines.preparation.work_folder import Counts, WorkFolder
from seqdenoise.errors import DataError

_Batches = Iterable[pa.RecordBatch]

# The counts of a part travel in a row of their own.
_NO_BUCKET = -1
_DEALT = "bucket int, table string, number int, chunk int, rows binary, counts string"
_DEALT_ARROW = pa.schema(
    [
        ("bucket", pa.int32()),
        ("table", pa.string()),
        ("number", pa.int32()),
        ("chunk", pa.int32()),
        ("rows", pa.binary()),
        ("counts", pa.string()),
    ]
)
_BUILT_ARROW = pa.schema([("bucket", pa.int32())])


def deal_and_build(config: RunConfig, work: WorkFolder) -> None:
    """Deals the log to buckets and builds those that are not built yet.

    Args:
        config: The run.
        work: Where the buckets go.

    Raises:
        ConfigError: PySpark is not installed.
        DataError: As the local engine.
    """
    try:
        from pyspark import StorageLevel
        from pyspark.errors import PythonException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            "expected PySpark for --engine spark (pip install 'seqdenoise[spark]'). "
            f"Received: {error}"
        ) from error
    buckets = range(work.plan.num_buckets)
    missing = [bucket for bucket in buckets if not work.has_bucket(bucket)]
    run = config.model_dump_json()
    # Executors of another machine get theirs from the cluster's configuration.
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    ours = SparkSession.getActiveSession() is None
    with environment(SEQDENOISE_DATA_ONLY="1", PYSPARK_PYTHON=python):
        spark = (
            SparkSession.builder.appName("seqdenoise prepare")
            .config("spark.executorEnv.SEQDENOISE_DATA_ONLY", "1")
            .getOrCreate()
        )
        # A record is a bucket's share of a part: some are enough for a batch.
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
        parts = [(index, json.dumps(asdict(part))) for index, part in enumerate(work.plan.parts)]
        dealt = (
            spark.createDataFrame(parts, "number int, part string")
            .repartition(len(parts))
            .mapInArrow(partial(_deal, run, work.plan.num_buckets), _DEALT)
            .persist(StorageLevel.DISK_ONLY)
        )
        try:
            work.save_counts(_counts(dealt.where(dealt.bucket == _NO_BUCKET).collect()))
            check_counts(config, work.counts())
            if missing:
                (
                    dealt.where(dealt.bucket.isin(missing))
                    .repartition(len(missing), "bucket")
                    .sortWithinPartitions("bucket", "table", "number", "chunk")
                    .mapInArrow(partial(_build, run, work), "bucket int")
                    .collect()
                )
        except PythonException as error:
            found = re.search(r"DataError: (.*)", str(error))
            if found is None:
                raise
            raise DataError(found.group(1).strip()) from error
        finally:
            dealt.unpersist()
            if ours:
                spark.stop()


def _counts(rows: Iterable[Any]) -> Counts:
    counts: Counts = {}
    for row in sorted(rows, key=lambda row: (row.table, row.number)):
        counts.setdefault(row.table, []).append(json.loads(row.counts))
    return counts


def _deal(run: str, num_buckets: int, batches: _Batches) -> Iterator[pa.RecordBatch]:
    config = RunConfig.model_validate_json(run)
    for text in (text for batch in batches for text in batch["part"].to_pylist()):
        content = json.loads(text)
        part = LogPart(**{**content, "files": tuple(content["files"])})
        counts: dict[str, Any] = {}
        place = (part.table, part.number)
        for chunk, buckets in enumerate(partition(config, part, num_buckets, counts)):
            for bucket, rows in enumerate(buckets):
                yield _record(_DEALT_ARROW, bucket, *place, chunk, _to_bytes(rows), None)
        yield _record(_DEALT_ARROW, _NO_BUCKET, *place, 0, None, json.dumps(counts))


def _build(run: str, work: WorkFolder, batches: _Batches) -> Iterator[pa.RecordBatch]:
    config = RunConfig.model_validate_json(run)
    records = (record for batch in batches for record in batch.to_pylist())
    for bucket, of_bucket in groupby(records, key=lambda record: record["bucket"]):
        tables = {
            table: pa.concat_tables(
                [_from_bytes(record["rows"]) for record in of_table],
                promote_options="permissive",
            )
            for table, of_table in groupby(of_bucket, key=lambda record: record["table"])
        }
        build_bucket(
            config,
            tables,
            cached_items(run),
            work.bucket_folder(bucket),
            num_ranges=work.plan.num_buckets,
        )
        yield _record(_BUILT_ARROW, bucket)


def _record(schema: pa.Schema, *values: Any) -> pa.RecordBatch:
    arrays = [pa.array([value], kind) for value, kind in zip(values, schema.types, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
    ) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def _from_bytes(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()
