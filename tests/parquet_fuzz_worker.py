"""Reads spoilt files in a process of its own, which a crash or a hang may take down.

`python parquet_fuzz_worker.py JOBS OUTCOMES`: both are pickles; OUTCOMES grows job by job.
"""

import faulthandler
import os
import pickle
import sys
import traceback
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from pipelines.check import check
from pipelines.config import RunConfig
from pipelines.log_folder import read_log
from pipelines.prepare import prepare
from pipelines.splits import SPLITS
from seqdenoise.data.parquet import data_errors, parquet_dataset, read_batches
from seqdenoise.data.sequences import build_sequences
from seqdenoise.data.vocabulary import Vocabulary
from seqdenoise.errors import DataError

SECONDS_A_JOB = 60
FROM = 1010
SCALARS = ["user", "item", "timestamp", "is_click", "price", "brand"]
READING = {
    "columns": SCALARS,
    "sequences": {"click": ["item", "timestamp", "price"], "cart": ["item"]},
    "batch_size": 10,
    "max_length": 4,
    "encoders": {"brand": Vocabulary(["a", "b", "c"])},
    "fill": {"price": 0.25, "click__timestamp": -1, "click__price": 0.5},
}


def as_rows(batches):
    """Python values, lists cut to their length; padding must be zeros."""
    rows = []
    for batch in batches:
        columns = {}
        for name, values in batch.items():
            kind = name.split("__")[0]
            if "__" not in name or name.endswith("__length"):
                columns[name] = values.tolist()
            elif f"{kind}__row_splits" in batch:
                splits = batch[f"{kind}__row_splits"]
                if name != f"{kind}__row_splits":
                    columns[name] = [part.tolist() for part in np.split(values, splits[1:-1])]
                    assert splits[-1] == len(values)
            else:
                lengths = batch[f"{kind}__length"]
                columns[name] = [v[:n].tolist() for v, n in zip(values, lengths, strict=True)]
                assert not any(v[n:].any() for v, n in zip(values, lengths, strict=True))
        rows += [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    return rows


def read(path, **options):
    return as_rows(read_batches(path, **READING | options))


def dataset_rows(path):
    with data_errors():
        return as_rows(parquet_dataset(path, **READING).as_numpy_iterator())


def log_config(folder):
    prepare = {
        "sequence_types": ["click", "cart"],
        "max_length": 4,
        "labels": ["is_click"],
        "split": {"valid_from": 50_000, "test_from": 100_000},
    }
    content = {"folder": folder, "prepare": prepare, "model": {"label": "is_click"}}
    return RunConfig.model_validate(content)


def built_rows(folder):
    config = log_config(folder)
    log = read_log(config)
    rules = config.prepare.rules()
    sequences = build_sequences(log.impressions, log.events, rules)
    keys = log.impressions.select(["user", "item", "timestamp", "is_click"]).to_pylist()
    return [key | row for key, row in zip(keys, sequences.to_pylist(), strict=True)]


def prepared_rows(folder):
    config = log_config(folder)
    prepare(config, processes=1)
    parts = [config.prepared_folder / f"{split}.parquet" for split in SPLITS]
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    return [{name: row[name] for name in row if name != "weight"} for row in rows]


def attempt(read):
    """`("rows", value)`, `("error", message)`, or `("bug", traceback)`."""
    try:
        return "rows", read()
    except DataError as error:
        return "error", str(error)
    except BaseException:
        return "bug", traceback.format_exc()


def findings(path):
    return [(f.severity, f.code, f.file, f.column, f.count) for f in check([path]).findings]


def outcomes_of(job):
    path = Path(job["path"])
    result = {"check": attempt(lambda: findings(path))}
    if job["table"] == "prepared":
        result["rows"] = attempt(lambda: read(path))
        result["shuffled"] = attempt(lambda: read(path, shuffle_seed=3, pool_row_groups=2))
        result["ragged"] = attempt(lambda: read(path, ragged=True, batch_size=3))
        result["where"] = attempt(lambda: read(path, where={"timestamp": (FROM, None)}))
        if job["thorough"]:
            result["dataset"] = attempt(lambda: dataset_rows(path))
    else:
        folder = path.parent.parent
        result["rows"] = attempt(lambda: built_rows(folder))
        if job["thorough"]:
            result["prepare"] = attempt(lambda: prepared_rows(folder))
            if result["prepare"][0] == "error":
                assert not (folder / "prepared").exists()
    return result


def main(jobs_path, outcomes_path):
    jobs = pickle.loads(Path(jobs_path).read_bytes())
    with open(outcomes_path, "wb") as file:
        for job in jobs:
            faulthandler.dump_traceback_later(SECONDS_A_JOB, exit=True)
            pickle.dump((job["name"], outcomes_of(job)), file)
            file.flush()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    faulthandler.enable()
    main(*sys.argv[1:])
