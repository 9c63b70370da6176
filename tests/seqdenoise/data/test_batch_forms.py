"""Padding, ragged batches, weights: what a batch looks like."""

import gc

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from reader_cases import READ, numbered_table, write_folder, write_table

from seqdenoise.data.hash_encoder import HashEncoder
from seqdenoise.data.parquet import (
    data_errors,
    fit_vocabularies,
    parquet_dataset,
    read_batches,
)
from seqdenoise.errors import DataError

NUM_ROWS = 103


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("forms") / "a.parquet", numbered_table(NUM_ROWS))


def entries(number, modulus, max_length):
    return [100 * number + k for k in range(number % modulus)][-max_length:]


@pytest.mark.parametrize("seed", [None, 3])
def test_a_batch_is_padded_to_the_smallest_bucket_that_holds_it(path, seed):
    options = READ | {"batch_size": 3, "max_length": 6, "shuffle_seed": seed}
    options["length_buckets"] = (2, 4, 6)
    dataset = parquet_dataset(path, **options)
    assert dataset.element_spec["click__item"].shape.as_list() == [None, None]
    widths = set()
    for batch in dataset.as_numpy_iterator():
        longest = max(batch["click__length"].max(), batch["cart__length"].max())
        width = min(bucket for bucket in (2, 4, 6) if bucket >= longest)
        widths.add(width)
        for name, modulus in (("click__item", 7), ("cart__item", 3)):
            assert batch[name].shape == (len(batch["number"]), width)
            for number, row in zip(batch["number"], batch[name], strict=True):
                real = entries(number, modulus, 6)
                assert row.tolist() == real + [0] * (width - len(real))
    assert len(widths) > 1


@pytest.mark.parametrize("seed", [None, 3])
def test_ragged_batches(path, seed):
    options = READ | {"max_length": 5, "ragged": True, "shuffle_seed": seed}
    dataset = parquet_dataset(path, **options)
    assert dataset.element_spec["click__item"] == tf.RaggedTensorSpec(
        [None, None], tf.int64, ragged_rank=1, row_splits_dtype=tf.int64
    )
    arrays = list(read_batches(path, **options))
    numbers = []
    for batch, flat in zip(dataset, arrays, strict=True):
        numbers += batch["number"].numpy().tolist()
        assert list(batch) == [name for name in flat if not name.endswith("__row_splits")]
        expected = [entries(number, 7, 5) for number in batch["number"].numpy()]
        assert batch["click__item"].to_list() == expected
        assert batch["click__price"].to_list() == [[x / 2 for x in row] for row in expected]
        assert batch["cart__item"].to_list() == [
            entries(number, 3, 5) for number in batch["number"].numpy()
        ]
        assert batch["click__length"].numpy().tolist() == [len(row) for row in expected]
        assert flat["click__item"].tolist() == [x for row in expected for x in row]
        assert flat["click__row_splits"].tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert sorted(numbers) == list(range(NUM_ROWS))


def test_ragged_batches_without_any_entry(tmp_path):
    table = pa.table({"number": [1, 2], "click__item": pa.array([[], None], pa.list_(pa.int64()))})
    options = {"columns": ["number"], "sequences": {"click": ["item"]}, "ragged": True}
    path = write_table(tmp_path / "a.parquet", table)
    (batch,) = parquet_dataset(path, **options, batch_size=2, max_length=3)
    assert batch["click__item"].to_list() == [[], []]


def test_long_lists_are_cut_to_the_most_recent_entries(tmp_path):
    # Once where most entries go, and once where few do: one is copied, the other not.
    for length in (40, 5):
        lists = [[100 * i + k for k in range(length)] for i in range(9)]
        table = pa.table({"number": range(9), "click__item": lists})
        path = write_table(tmp_path / "a.parquet", table, rows=4)
        options = {"columns": ["number"], "sequences": {"click": ["item"]}, "batch_size": 3}
        for batch in read_batches(path, **options, max_length=4, shuffle_seed=2):
            assert batch["click__item"].tolist() == [lists[i][-4:] for i in batch["number"]]


def test_a_weight_is_float_and_checked(path, tmp_path):
    options = READ | {"columns": ["number", "weight"], "weight": "weight"}
    for batch in parquet_dataset(path, **options).as_numpy_iterator():
        assert batch["weight"].dtype == np.float32
        assert batch["weight"].tolist() == [number % 4 for number in batch["number"]]
    table = numbered_table(30)
    for bad, message in ((-0.5, "weights of at least 0. Received: -0.5 in row 3"), (np.inf, "inf")):
        weights = [1.0] * 23 + [bad] + [1.0] * 6
        changed = table.set_column(3, "weight", pa.array(weights))
        broken = write_table(tmp_path / "a.parquet", changed)
        place = r"a.parquet, row group 2, column `weight`: expected .*" + message
        with pytest.raises(DataError, match=place):
            list(read_batches(broken, **options))
        # The batches before it come first.
        batches = []
        with pytest.raises(DataError, match=place), data_errors():
            batches.extend(parquet_dataset(broken, **options))
        assert len(batches) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"length_buckets": (2, 3)},
        {"length_buckets": (4, 2)},
        {"length_buckets": (2, 4), "ragged": True},
        {"weight": "weight"},
        {"shuffle_seed": -1},
        {"first_step": -1},
        {"weight": "number", "encoders": {"number": HashEncoder(3)}},
        {"sequences": {"click": ["item", "row_splits"]}, "ragged": True},
    ],
    ids=str,
)
def test_options_that_contradict_are_refused(path, changes):
    with pytest.raises(ValueError, match=r"expected .*Received: "):
        parquet_dataset(path, **(READ | changes))
    with pytest.raises(TypeError, match="unknown"):
        parquet_dataset(path, **READ, unknown=1)


def test_hash_encoders_stand_beside_vocabularies(path):
    item = HashEncoder(50, salt=1)
    encoders = {"kind": HashEncoder(7), "click__item": item, "cart__item": item}
    options = READ | {"columns": ["number", "kind"], "encoders": encoders}
    table = numbered_table(NUM_ROWS)
    kinds = encoders["kind"].encode(table["kind"])
    for batch in parquet_dataset(path, **options, shuffle_seed=1).as_numpy_iterator():
        assert batch["kind"].dtype == batch["click__item"].dtype == np.int32
        np.testing.assert_array_equal(batch["kind"], kinds[batch["number"]])
        for number, row in zip(batch["number"], batch["click__item"], strict=True):
            real = item.encode(np.array(entries(number, 7, 4), np.int64)).tolist()
            assert row.tolist() == real + [0] * (4 - len(real))


def test_vocabularies_are_fitted_over_folders(tmp_path):
    table = numbered_table(60)
    folder = write_folder(tmp_path / "all", table, [20, 15], rows=7)
    single = write_table(tmp_path / "a.parquet", table, rows=60)
    columns = {"item": ["number", "click__item", "cart__item"], "kind": ["kind"]}
    assert fit_vocabularies(folder, columns) == fit_vocabularies(single, columns)
    assert fit_vocabularies(folder, columns)["kind"].keys == ["a", "b", "c"]


def test_batches_that_are_kept_never_change(path):
    # Their memory serves again, but only once they are gone.
    kept, copies = [], []
    for batch in read_batches(path, **READ, shuffle_seed=1):
        kept.append(batch)
        copies.append({name: values.copy() for name, values in batch.items()})
    rows = [batch["click__item"][0] for batch in parquet_dataset(path, **READ, shuffle_seed=1)]
    for batch, copy, row in zip(kept, copies, rows, strict=True):
        for name, values in copy.items():
            np.testing.assert_array_equal(batch[name], values)
        np.testing.assert_array_equal(row, copy["click__item"][0])


def test_abandoned_iterators_leave_no_pool_in_memory(path, monkeypatch):
    from seqdenoise.data import parquet

    streams = []
    original = parquet._Stream.dataset
    monkeypatch.setattr(
        parquet._Stream,
        "dataset",
        lambda self, *args: streams.append(self) or original(self, *args),
    )
    for pool in (1, 100):
        dataset = parquet_dataset(path, **READ, shuffle_seed=1, pool_row_groups=pool)
        for taken in (1, 7, 13):
            iterator = iter(dataset)
            for _ in range(taken):
                next(iterator)
            del iterator
        assert len(list(dataset)) == 13
        gc.collect()
        assert streams.pop()._pools == {}


def test_pools_smaller_than_a_batch_are_not_kept(path, monkeypatch):
    from seqdenoise.data import parquet

    most = 0
    original = parquet._Stream._stacks

    def stacks(self, key, index):
        nonlocal most
        most = max(most, len(self._pools))
        return original(self, key, index)

    monkeypatch.setattr(parquet._Stream, "_stacks", stacks)
    options = READ | {"batch_size": 33, "pool_row_groups": 1, "shuffle_seed": 1}
    sizes = [len(batch["number"]) for batch in parquet_dataset(path, **options)]
    assert sizes == [33, 33, 33, 4]
    assert most <= 2
