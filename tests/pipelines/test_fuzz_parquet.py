"""Two hundred spoilt parquet files: the right rows or one clear error, for every job that reads."""

import math
import os
import pickle
import subprocess
import sys
import zlib
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import numpy as np
import parquet_mutants
import parquet_tables
import pyarrow as pa
import pytest
from parquet_mutants import REFUSED

pytestmark = pytest.mark.slow

WORKER = Path(parquet_mutants.__file__).with_name("parquet_fuzz_worker.py")
NAMES = [
    *(("prepared", name) for name in parquet_mutants.PREPARED_MUTATIONS),
    *(("events", n) for n in parquet_mutants.RAW_MUTATIONS | parquet_mutants.EVENT_MUTATIONS),
    *(
        ("impressions", n)
        for n in parquet_mutants.RAW_MUTATIONS | parquet_mutants.IMPRESSION_MUTATIONS
    ),
]

LENGTH = 4
FILL = {"price": 0.25, "click__timestamp": -1, "click__price": 0.5}
BRANDS = {"a": 3, "b": 4, "c": 5}
SCALARS = ["user", "item", "timestamp", "is_click", "price", "brand"]
LISTS = {"click": ["item", "timestamp", "price"], "cart": ["item"]}
MAX_INT64 = 2**63 - 1


class RefusedError(Exception):
    """The table has no reading."""


# What the documents say of each type, written down once more.


def is_list(kind):
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    view = hasattr(pa.types, "is_list_view") and pa.types.is_list_view(kind)
    return lists or pa.types.is_fixed_size_list(kind) or view


def family(kind):
    """What values of an Arrow type are to a reader."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "int"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "float"
    view = hasattr(pa.types, "is_string_view") and pa.types.is_string_view(kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or view:
        return "text"
    return "null" if pa.types.is_null(kind) else "other"


def number(value, of, fill):
    if value is None or (isinstance(value, float) and math.isnan(value)):
        if fill is None:
            raise RefusedError
        value = fill
    if of == "float" or isinstance(fill, float):
        with np.errstate(over="ignore"):
            value = float(np.float32(float(value)))
        if not math.isfinite(value):
            raise RefusedError
        return value
    if value > MAX_INT64:
        raise RefusedError
    return int(value)


def values_of(name, of, values):
    if name == "brand":
        if of not in ("text", "null"):
            raise RefusedError
        return [BRANDS.get(value, 1) for value in values]
    if of not in ("int", "float", "null"):
        raise RefusedError
    return [number(value, of, FILL.get(name)) for value in values]


def needed(mutant, names):
    for name in names:
        if [n for n, _ in mutant.columns].count(name) != 1:
            raise RefusedError
    if not len(mutant.columns[0][1]):
        raise RefusedError


def reading_of_prepared(mutant):
    """The rows as the reader must give them; a RefusedError where it must refuse."""
    lists = {f"{kind}__{name}": kind for kind, names in LISTS.items() for name in names}
    needed(mutant, [*SCALARS, *lists])
    read = {}
    for name in SCALARS:
        kind = mutant.array(name).type
        if is_list(kind):
            raise RefusedError
        read[name] = values_of(name, family(kind), mutant.values(name))
    for name, of in lists.items():
        kind = mutant.array(name).type
        if not is_list(kind):
            raise RefusedError
        entries = [value or [] for value in mutant.values(name)]
        try:
            for each in entries:
                values_of(name, family(kind.value_type), each)
        except RefusedError:
            mutant.may_refuse = True  # perhaps for an entry that is too old to be kept
        kept = [each[-LENGTH:] for each in entries]
        read[name] = [values_of(name, family(kind.value_type), each) for each in kept]
        lengths = read.setdefault(f"{of}__length", [len(each) for each in kept])
        first = mutant.values(f"{of}__item")
        if [len(each or []) for each in first] != [len(each) for each in entries]:
            raise RefusedError
        assert lengths == [len(each) for each in kept]
    return [dict(zip(read, row, strict=True)) for row in zip(*read.values(), strict=True)]


def milliseconds(kind, values):
    if not pa.types.is_timestamp(kind):
        return raw_integers(kind, values)
    if None in values:
        raise RefusedError
    ticks = pa.array(values, kind).cast(pa.int64()).to_pylist()
    per_ms = {"s": 0.001, "ms": 1, "us": 1000, "ns": 10**6}[kind.unit]
    if kind.unit == "s":
        return [tick * 1000 for tick in ticks]
    if any(tick % per_ms for tick in ticks):
        raise RefusedError
    return [tick // per_ms for tick in ticks]


def raw_integers(kind, values):
    decimal = pa.types.is_decimal(kind)
    if None in values or pa.types.is_boolean(kind) or (family(kind) != "int" and not decimal):
        raise RefusedError
    return [
        number(value if not isinstance(value, Decimal) else int(value), "int", None)
        for value in values
    ]


def raw_table(mutant, names):
    needed(mutant, names)
    table = {}
    for name in names:
        kind, values = mutant.array(name).type, mutant.values(name)
        if name == "timestamp":
            table[name] = milliseconds(kind, values)
        elif name == "type":
            if family(kind) != "text" or None in values:
                raise RefusedError
            table[name] = values
        elif name == "is_click":
            if family(kind) != "int" or any(value not in (0, 1) for value in values):
                raise RefusedError
            table[name] = [int(value) for value in values]
        elif name == "weight":
            if any(value is None or not value >= 0 for value in values):
                raise RefusedError
        else:
            table[name] = raw_integers(kind, values)
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def built_from(events, impressions):
    """What the builder must give, event by event."""
    past = raw_table(events, ["user", "item", "type", "timestamp"])
    if not {"click", "cart"} <= {event["type"] for event in past}:
        raise RefusedError
    rows = []
    for row in raw_table(impressions, ["user", "item", "timestamp", "is_click", "weight"]):
        for kind in ("click", "cart"):
            before = [
                (event["timestamp"], event["item"])
                for event in past
                if (event["user"], event["type"]) == (row["user"], kind)
                and event["timestamp"] < row["timestamp"]
            ]
            last = sorted(before)[-LENGTH:]
            row[f"{kind}__item"] = [item for _, item in last]
            row[f"{kind}__timestamp"] = [time for time, _ in last]
        rows.append(row)
    return rows


def random_of(table, name):
    return np.random.default_rng(zlib.crc32(f"{table} {name}".encode()))


def mutant_of(table, name):
    random = random_of(table, name)
    if table == "prepared":
        rows, schema = parquet_tables.prepared_rows(random), parquet_tables.PREPARED
        mutations = parquet_mutants.PREPARED_MUTATIONS
    elif table == "events":
        rows, schema = parquet_tables.event_rows(random), parquet_tables.EVENTS
        mutations = parquet_mutants.RAW_MUTATIONS | parquet_mutants.EVENT_MUTATIONS
    else:
        rows, schema = parquet_tables.impression_rows(random), parquet_tables.IMPRESSIONS
        mutations = parquet_mutants.RAW_MUTATIONS | parquet_mutants.IMPRESSION_MUTATIONS
    return parquet_mutants.make(mutations, name, rows, schema, random), random


def plain(table):
    """An unspoilt table, for the other one of a log."""
    if table == "events":
        rows, schema = parquet_tables.event_rows, parquet_tables.EVENTS
    else:
        rows, schema = parquet_tables.impression_rows, parquet_tables.IMPRESSIONS
    random = np.random.default_rng(1)
    as_it_is = {"as it is": parquet_mutants.PREPARED_MUTATIONS["as it is"]}
    return parquet_mutants.make(as_it_is, "as it is", rows(random), schema, random)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """By table and name: the mutant, its path, and what the worker made of it."""
    home = tmp_path_factory.mktemp("fuzz")
    cases, jobs = {}, []
    for number, (table, name) in enumerate(NAMES):
        mutant, random = mutant_of(table, name)
        folder = home / f"{number:03}" / "log"
        folder.mkdir(parents=True)
        path = folder / f"{table}.parquet"
        cases[table, name] = mutant, path
        if not parquet_mutants.write(mutant, path, random):
            continue
        if table != "prepared":
            other = "impressions" if table == "events" else "events"
            assert parquet_mutants.write(plain(other), folder / f"{other}.parquet", random)
        key = {"name": (table, name), "path": str(path), "table": table}
        jobs.append({**key, "thorough": number % 6 == 0})
    (home / "jobs").write_bytes(pickle.dumps(jobs))
    result = subprocess.run(
        [sys.executable, str(WORKER), str(home / "jobs"), str(home / "outcomes")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(WORKER.parents[1])},
    )
    outcomes = {}
    if (home / "outcomes").exists():
        with (home / "outcomes").open("rb") as file, suppress(EOFError):
            while True:
                name, outcome = pickle.load(file)
                outcomes[name] = outcome
    if result.returncode:
        left = [job["name"] for job in jobs if job["name"] not in outcomes]
        reached = left[0] if left else "after the last file"
        pytest.fail(f"{reached}: the process ended with {result.returncode}:\n{result.stderr}")
    return {key: (*case, outcomes.get(key)) for key, case in cases.items()}


def expected_of(table, mutant):
    try:
        if table == "prepared":
            return reading_of_prepared(mutant)
        if table == "events":
            return built_from(mutant, plain("impressions"))
        return built_from(plain("events"), mutant)
    except RefusedError:
        return REFUSED


def wanted_of(job, rows):
    """What one of the worker's jobs makes of rows; some refuse where none are left."""
    if rows == REFUSED:
        return rows
    if job == "where":
        return [row for row in rows if row["timestamp"] >= 1010] or REFUSED
    if job == "prepare":
        splits = {(row["timestamp"] >= 50_000) + (row["timestamp"] >= 100_000) for row in rows}
        return rows if splits == {0, 1, 2} else REFUSED
    return rows


def unordered(rows):
    return sorted(sorted(row.items()) for row in rows)


def check_error(message, path):
    assert str(path) in message, message
    assert message.count("Received: ") == 1, message


@pytest.mark.parametrize(("table", "name"), NAMES)
def test_a_spoilt_file_gives_its_rows_or_one_clear_error(cases, table, name):
    mutant, path, outcomes = cases[table, name]
    if outcomes is None:
        pytest.skip("this pyarrow cannot write such a file")
    expected = expected_of(table, mutant)
    if mutant.damage is not None and parquet_mutants.must_be_refused(name):
        expected = REFUSED
    for job in set(outcomes) - {"check"}:
        how, received = outcomes[job]
        assert how != "bug", (job, received)
        wanted = wanted_of(job, expected)
        if how == "error":
            assert wanted == REFUSED or mutant.may_refuse, (job, received)
            check_error(received, path)
        elif job == "where" and wanted == REFUSED:
            # What cannot be read may be in the rows that do not pass; not so where bytes are gone.
            assert mutant.damage is None
        elif job in ("shuffled", "prepare"):
            assert unordered(received) == unordered(wanted)
        else:
            assert received == wanted, job
    # However it is read, it is read alike.
    assert len({outcomes[job][0] for job in set(outcomes) - {"check", "where", "prepare"}}) == 1

    how, findings = outcomes["check"]
    assert how == "rows", findings
    assert {file for _, _, file, _, _ in findings} <= {str(path)}
    if expected == REFUSED and not mutant.clean:
        assert findings
    if mutant.clean and mutant.damage is None:
        assert not [finding for finding in findings if finding[0] == "error"]


def test_there_are_enough_of_each(cases):
    written = {key: case for key, case in cases.items() if case[2] is not None}
    assert len(written) >= 200
    outcomes = [case[2]["rows"][0] for case in written.values()]
    assert outcomes.count("rows") > 60
    assert outcomes.count("error") > 60
    for job in ("dataset", "prepare"):
        assert sum(job in case[2] for case in written.values()) > 10
