import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_cases import (
    READ,
    assert_same_batches,
    numbered_table,
    numbers_of,
    write_folder,
    write_table,
)

from seqdenoise.data.batches import BatchReader
from seqdenoise.data.files import ParquetSource
from seqdenoise.data.filters import RowFilter
from seqdenoise.data.options import ReadOptions
from seqdenoise.data.parquet import data_errors, parquet_dataset, read_batches
from seqdenoise.errors import DataError

NUM_ROWS = 103


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("order") / "a.parquet", numbered_table(NUM_ROWS))


def reference_order(sizes, batch_size, pool_size, seed, epoch):
    """The order of the first version of the reader, as batches of row numbers."""
    random = np.random.default_rng([seed, epoch])
    starts = np.cumsum([0, *sizes])
    groups = random.permutation(np.arange(len(sizes)))
    batches, left = [], []
    for first in range(0, len(groups), pool_size):
        chosen = groups[first : first + pool_size]
        pool = left + [row for g in chosen for row in range(starts[g], starts[g + 1])]
        pool = [pool[i] for i in random.permutation(np.arange(len(pool)))]
        left = []
        while pool:
            batch, pool = pool[:batch_size], pool[batch_size:]
            if len(batch) < batch_size and first + pool_size < len(groups):
                left = batch
            else:
                batches.append([int(row) for row in batch])
    return batches


@pytest.mark.parametrize(("batch_size", "pool", "epoch"), [(8, 3, 0), (25, 2, 1), (7, 100, 2)])
def test_the_order_of_one_file_never_changes(path, batch_size, pool, epoch):
    options = READ | {"batch_size": batch_size, "pool_row_groups": pool, "shuffle_seed": 5}
    batches = [batch["number"].tolist() for batch in read_batches(path, epoch=epoch, **options)]
    sizes = [10] * 10 + [3]
    assert batches == reference_order(sizes, batch_size, pool, 5, epoch)


def test_a_folder_reads_as_the_file_with_its_row_groups(path, tmp_path):
    folder = write_folder(tmp_path / "all", numbered_table(NUM_ROWS), [30, 0, 50])
    for seed in (None, 3):
        # pyarrow writes a row group for a file without rows, and the order depends on them all.
        (folder / "part-00001.parquet").unlink(missing_ok=True)
        options = READ | {"shuffle_seed": seed}
        assert_same_batches(read_batches(folder, **options), read_batches(path, **options))
        dataset = parquet_dataset(folder, **options)
        assert_same_batches(dataset.as_numpy_iterator(), read_batches(path, **options))


def test_files_without_rows_in_a_folder_are_fine(tmp_path):
    folder = write_folder(tmp_path / "all", numbered_table(NUM_ROWS), [0, 30, 0])
    for shards in (1, 3):
        rows = [
            row
            for index in range(shards)
            for row in numbers_of(
                read_batches(folder, **READ, shuffle_seed=1, shard=(index, shards))
            )
        ]
        assert sorted(rows) == list(range(NUM_ROWS))


@pytest.mark.parametrize("where", [None, {"kind": ["a", "b"]}, {"number": (17, None)}], ids=str)
@pytest.mark.parametrize("seed", [None, 4])
def test_every_row_comes_exactly_once_over_shards(path, where, seed):
    expected = numbers_of(read_batches(path, **READ, where=where))
    for shards in (1, 2, 3):
        found, steps = [], set()
        for index in range(shards):
            options = READ | {"shuffle_seed": seed, "where": where, "shard": (index, shards)}
            dataset = parquet_dataset(path, **options)
            batches = list(dataset.as_numpy_iterator())
            assert len(batches) == int(dataset.cardinality())
            steps.add(len(batches))
            assert all(len(batch["number"]) for batch in batches)
            found += numbers_of(batches)
        assert sorted(found) == sorted(expected)
        assert len(steps) == 1
        if seed is None:
            assert found == expected


@given(
    where=st.sampled_from([None, {"kind": ["a", None]}, {"day": (2, 8)}]),
    seed=st.sampled_from([None, 4]),
    shards=st.integers(1, 3),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_a_resumed_reader_yields_the_identical_remaining_batches(path, where, seed, shards, data):
    shard = (data.draw(st.integers(0, shards - 1)), shards)
    options = READ | {"pool_row_groups": 3, "where": where, "shuffle_seed": seed, "shard": shard}
    batches = list(read_batches(path, epoch=1, **options))
    step = data.draw(st.integers(0, len(batches)))
    assert_same_batches(read_batches(path, epoch=1, first_step=step, **options), batches[step:])


@pytest.mark.parametrize("where", [None, {"kind": ["a", "b"]}], ids=str)
def test_a_resumed_dataset_goes_on_through_the_epochs(path, where):
    options = READ | {"shuffle_seed": 2, "where": where, "pool_row_groups": 3}
    whole = parquet_dataset(path, **options)
    steps = int(whole.cardinality())
    expected = [batch for _ in range(3) for batch in whole.as_numpy_iterator()]
    for first in (1, steps - 1, steps, steps + 3):
        dataset = parquet_dataset(path, first_step=first, **options)
        resumed = dataset.repeat().take(3 * steps - first)
        assert_same_batches(resumed.as_numpy_iterator(), expected[first:])
        # Only a start at an epoch's beginning has a number of batches that holds for each epoch.
        known = int(dataset.cardinality())
        assert known == (steps if first % steps == 0 else -2)


def test_a_resumed_reader_goes_on_in_a_new_process(path):
    options = {"columns": ["number"], "sequences": {"click": ["item"]}, "batch_size": 8}
    options |= {"max_length": 4, "shuffle_seed": 3, "where": {"kind": ["a", "b"]}}
    script = (
        "import sys\n"
        "from seqdenoise.data.batches import BatchReader\n"
        "from seqdenoise.data.files import ParquetSource\n"
        "from seqdenoise.data.options import ReadOptions\n"
        f"reader = BatchReader(ParquetSource(sys.argv[1]), ReadOptions(**{options!r}))\n"
        "for pool in reader.pools(1, 4):\n"
        "    for index in range(pool.num_batches):\n"
        "        batch = reader.batch(pool, index)\n"
        "        print({name: values.tolist() for name, values in batch.items()})\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "SEQDENOISE_DATA_ONLY": "1"},
    )
    here = list(read_batches(path, epoch=1, **options))[4:]
    assert len(here) > 2
    assert ran.stdout.splitlines() == [
        str({name: values.tolist() for name, values in batch.items()}) for batch in here
    ]


def test_a_late_start_decodes_only_what_it_needs(tmp_path, monkeypatch):
    path = write_table(tmp_path / "a.parquet", numbered_table(100))
    read = []
    original = ParquetSource.read_row_group
    monkeypatch.setattr(
        ParquetSource,
        "read_row_group",
        lambda self, index, columns: read.append(index) or original(self, index, columns),
    )
    options = READ | {"batch_size": 10, "pool_row_groups": 2}
    next(read_batches(path, first_step=9, **options))
    assert read == [9]
    read.clear()
    next(read_batches(path, first_step=8, **options, shuffle_seed=1))
    assert len(read) == 2


def test_rows_that_change_between_counting_and_reading_are_refused(path):
    with ParquetSource(path) as source:
        reader = BatchReader(source, ReadOptions(**READ, where={"number": (0, 14)}))
        reader.decoder.filter = RowFilter(source, {"number": (0, 12)})
    message = r"a.parquet, row group 1: expected 5 rows as before. Received: 3"
    with pytest.raises(DataError, match=message):
        list(reader.pools(0))


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0)], ids=str)
def test_shards_out_of_range_are_refused(path, shard):
    with pytest.raises(ValueError, match="`shard`"):
        parquet_dataset(path, **READ, shard=shard)


def test_more_shards_than_rows_are_refused_by_name(tmp_path):
    small = write_table(tmp_path / "a.parquet", numbered_table(2))
    with pytest.raises(DataError, match=r"a.parquet: expected a row for each of 3 shards"):
        parquet_dataset(small, **READ, shard=(0, 3))
    with pytest.raises(DataError, match="a row for each"), data_errors():
        next(read_batches(small, **READ, shard=(0, 3)))
