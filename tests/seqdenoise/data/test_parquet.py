import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from seqdenoise.data.parquet import data_errors, fit_vocabularies, parquet_dataset, read_batches
from seqdenoise.data.vocabulary import Vocabulary
from seqdenoise.errors import DataError

NUM_ROWS, GROUP_ROWS = 103, 10


def table_of(num_rows=NUM_ROWS):
    """Row i has number i, and i % 7 clicks whose items end in i's last ones."""
    lists = [[100 * i + k for k in range(i % 7)] for i in range(num_rows)]
    return pa.table(
        {
            "number": pa.array(range(num_rows), pa.int64()),
            "label": pa.array([i % 2 for i in range(num_rows)], pa.int8()),
            "price": pa.array([i / 2 for i in range(num_rows)], pa.float64()),
            "click__item": pa.array(lists, pa.list_(pa.int64())),
            "click__brand": pa.array([[f"b{x % 5}" for x in row] for row in lists]),
        }
    )


@pytest.fixture
def write(tmp_path):
    def write_table(table, name="a.parquet", rows=GROUP_ROWS):
        pq.write_table(table, tmp_path / name, row_group_size=rows)
        return tmp_path / name

    return write_table


READ = {
    "columns": ["number", "label", "price"],
    "sequences": {"click": ["item", "brand"]},
    "encoders": {"click__brand": Vocabulary(["b0", "b1", "b2", "b3"])},
    "batch_size": 8,
    "max_length": 4,
}


def expected_row(i, max_length=4):
    """What row i of `table_of` reads as: most recent entries first in place, zeros behind."""
    items = [100 * i + k for k in range(i % 7)][-max_length:]
    brands = [1 if x % 5 == 4 else 3 + x % 5 for x in items]
    padding = [0] * (max_length - len(items))
    return {
        "number": i,
        "label": i % 2,
        "price": i / 2,
        "click__item": items + padding,
        "click__brand": brands + padding,
        "click__length": len(items),
    }


def check_rows(batches):
    for batch in batches:
        for position, number in enumerate(batch["number"]):
            row = {name: np.asarray(values)[position].tolist() for name, values in batch.items()}
            assert row == expected_row(int(number))


@pytest.mark.parametrize("pool", [1, 3, 100])
@pytest.mark.parametrize("batch_size", [1, 8, 25, 1000])
@pytest.mark.parametrize("seed", [None, 5])
def test_every_row_comes_once_and_whole(write, pool, batch_size, seed):
    options = READ | {"batch_size": batch_size, "pool_row_groups": pool, "shuffle_seed": seed}
    batches = list(read_batches(write(table_of()), **options))
    check_rows(batches)
    numbers = np.concatenate([batch["number"] for batch in batches])
    assert sorted(numbers) == list(range(NUM_ROWS))
    sizes = [len(batch["number"]) for batch in batches]
    full, rest = divmod(NUM_ROWS, batch_size)
    assert sizes == [batch_size] * full + ([rest] if rest else [])
    if seed is None:
        assert numbers.tolist() == list(range(NUM_ROWS))
    elif batch_size == 8:
        assert numbers.tolist() != list(range(NUM_ROWS))


def test_rows_are_permuted_within_pools_of_row_groups(write):
    options = READ | {"batch_size": GROUP_ROWS, "shuffle_seed": 5, "max_length": 7}
    path = write(table_of(100))
    for pool in (1, 5):
        batches = list(read_batches(path, **options, pool_row_groups=pool))
        order = np.concatenate([batch["number"] for batch in batches]).reshape(-1, pool * 10)
        groups = order // GROUP_ROWS
        # A pool holds whole row groups, which are not neighbours in the file, and mixes their rows.
        assert all(len(set(row)) == pool for row in groups.tolist())
        assert sorted(set(groups[0])) != list(range(pool))
        assert (np.diff(order[0]) < 0).any()
        if pool > 1:
            assert len(set(groups[0, :GROUP_ROWS])) > 1


def test_types_of_the_batches(write):
    batch = next(read_batches(write(table_of()), **READ))
    types = {name: str(values.dtype) for name, values in batch.items()}
    assert types == {
        "number": "int64",
        "label": "int64",
        "price": "float32",
        "click__item": "int64",
        "click__brand": "int32",
        "click__length": "int32",
    }


def orders(path, seed, epochs):
    return [
        [
            int(number)
            for batch in read_batches(path, **READ, shuffle_seed=seed, epoch=epoch)
            for number in batch["number"]
        ]
        for epoch in epochs
    ]


def test_the_order_depends_on_seed_and_epoch_alone(write):
    path = write(table_of())
    first, second = orders(path, 1, [0, 1])
    assert first != second
    assert orders(path, 1, [0, 1]) == [first, second]
    assert orders(path, 2, [0]) != [first]
    # Neither the process's random state nor the reader's matters.
    np.random.seed(0)  # noqa: NPY002
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    assert orders(path, 1, [1]) == [second]
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


def test_a_dataset_counts_epochs_and_repeats_them_in_a_new_process(write):
    path = write(table_of())
    options = {name: value for name, value in READ.items() if name != "encoders"}
    options["sequences"] = {"click": ["item"]}
    script = (
        "import sys\n"
        "from seqdenoise.data.parquet import parquet_dataset\n"
        f"dataset = parquet_dataset(sys.argv[1], shuffle_seed=3, **{options!r})\n"
        "for _ in range(2):\n"
        "    print([int(n) for batch in dataset for n in batch['number']])\n"
    )
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    dataset = parquet_dataset(path, shuffle_seed=3, **options)
    here = [[int(n) for batch in dataset for n in batch["number"]] for _ in range(2)]
    assert here[0] != here[1]
    assert ran.stdout.splitlines() == [str(order) for order in here]


def test_a_dataset_yields_the_reader_s_batches(write):
    path = write(table_of())
    dataset = parquet_dataset(path, **READ, shuffle_seed=1, first_epoch=4)
    batches = list(dataset.as_numpy_iterator())
    check_rows(batches)
    direct = list(read_batches(path, **READ, shuffle_seed=1, epoch=4))
    assert len(batches) == len(direct) == int(dataset.cardinality())
    for ours, theirs in zip(batches, direct, strict=True):
        assert ours.keys() == theirs.keys()
        for name, values in theirs.items():
            assert ours[name].dtype == values.dtype
            np.testing.assert_array_equal(ours[name], values)
    assert dataset.element_spec["click__item"].shape.as_list() == [None, 4]
    assert dataset.element_spec["label"].shape.as_list() == [None]


def lists_table(column, **more):
    numbers = pa.array(range(len(column)), pa.int64())
    return pa.table({"number": numbers, "click__item": column, **more})


LISTS = {
    "columns": ["number"],
    "sequences": {"click": ["item"]},
    "batch_size": 10,
    "max_length": 2,
}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[9], [1, 2, 3], None, []]).slice(1),
        pa.array([[1, 2, 3], None, []], pa.large_list(pa.int32())),
        pa.chunked_array([[[1, 2, 3]], [None, []]], pa.list_(pa.uint64())),
    ],
    ids=["slice", "large", "chunks"],
)
def test_null_lists_are_empty_and_slices_stand_alone(write, column):
    (batch,) = read_batches(write(lists_table(column)), **LISTS)
    assert batch["click__item"].tolist() == [[2, 3], [0, 0], [0, 0]]
    assert batch["click__length"].tolist() == [2, 0, 0]


def test_fixed_size_lists_keep_the_most_recent(write):
    column = pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int64(), 3))
    (batch,) = read_batches(write(lists_table(column)), **LISTS)
    assert batch["click__item"].tolist() == [[2, 3], [5, 6]]


def test_dictionary_strings_and_null_elements_encode(write):
    column = pa.array([["b", None], ["a", "x"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))
    options = LISTS | {"encoders": {"click__item": Vocabulary(["a", "b"])}}
    for rows in (1, 2):
        batches = list(read_batches(write(lists_table(column), rows=rows), **options))
        assert batches[0]["click__item"].tolist() == [[4, 1], [3, 1]]


def test_a_zero_among_the_entries_is_not_padding(write):
    (batch,) = read_batches(write(lists_table(pa.array([[0], [7, 0]]))), **LISTS)
    assert batch["click__item"].tolist() == [[0, 0], [7, 0]]
    assert batch["click__length"].tolist() == [1, 2]


def test_integers_beyond_2_53_survive_nulls(write):
    big = 2**53 + 1
    path = write(lists_table(pa.array([[big, None]]), big=pa.array([big])))
    options = LISTS | {"columns": ["number", "big"], "fill": {"click__item": -1}}
    (batch,) = read_batches(path, **options)
    assert batch["click__item"].tolist() == [[big, -1]]
    assert batch["big"].tolist() == [big]


def test_fill_stands_for_null_and_nan(write):
    price = pa.array([1.5, None, float("nan")])
    path = write(lists_table(pa.array([[1], [2], [3]]), price=price))
    options = LISTS | {"columns": ["price"], "fill": {"price": -1.0}}
    (batch,) = read_batches(path, **options)
    assert batch["price"].tolist() == [1.5, -1.0, -1.0]


LIST = pa.array([[1], [2, 3], [4]])


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        (lists_table(LIST), {"columns": ["absent"]}, "expected one column `absent`"),
        (lists_table(LIST).slice(0, 0), {}, "expected at least one row. Received: 0 rows"),
        (lists_table(LIST), {"columns": ["click__item"], "sequences": {}}, "one value a row"),
        (lists_table(LIST), {"columns": [], "sequences": {"click": ["item"], "x": ["y"]}}, "x__y"),
        (lists_table(pa.array([1, 2, 3])), {}, "column `click__item`: expected lists"),
        (
            lists_table(pa.array([["a"]] * 3)),
            {},
            "column `click__item`: expected numbers, or a voc",
        ),
        (
            lists_table(pa.array([["a"]] * 3)),
            {"encoders": {"click__item": Vocabulary([1])}},
            "column `click__item`: expected integers, as in its vocabulary",
        ),
        (
            lists_table(LIST, click__size=pa.array([[1], [2, 3], [4, 5]])),
            {"sequences": {"click": ["item", "size"]}},
            "row group 1, column `click__size`: expected lists as long as `click__item`'s. "
            "Received: 2 entries where that has 1, in row 0",
        ),
        (
            lists_table(LIST, price=pa.array([1.0, 2.0, None])),
            {"columns": ["price"]},
            "row group 1, column `price`: expected no nulls, or a fill",
        ),
        (
            lists_table(LIST, price=pa.array([1.0, float("nan"), 2.0])),
            {"columns": ["price"]},
            "row group 0, column `price`: expected values finite in float32",
        ),
        (
            lists_table(LIST, price=pa.array([1.0, 1e300, 2.0])),
            {"columns": ["price"]},
            "row group 0, column `price`: expected values finite in float32",
        ),
        (
            lists_table(LIST, count=pa.array([1, None, 2])),
            {"columns": ["count"]},
            "row group 0, column `count`: expected no nulls, or a fill",
        ),
        (
            lists_table(LIST, count=pa.array([1, 2**63, 2], pa.uint64())),
            {"columns": ["count"]},
            "row group 0, column `count`: expected values within int64",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_columns_are_refused_by_place(write, table, changes, message):
    path = write(table, rows=2)
    with pytest.raises(DataError) as caught:
        list(read_batches(path, **(LISTS | changes)))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    # Through TensorFlow the same message arrives, whether found at once or while reading.
    with pytest.raises(DataError) as caught, data_errors():
        list(parquet_dataset(path, **(LISTS | changes)))
    assert message in str(caught.value)


@pytest.mark.parametrize("size", [0, 4, 300])
def test_cut_off_files_are_refused(write, size):
    path = write(table_of())
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=f"a.parquet: expected a whole parquet.*{size} bytes"):
        parquet_dataset(path, **READ)
    with pytest.raises(DataError, match=f"a.parquet: expected a whole parquet.*{size} bytes"):
        next(read_batches(path, **READ))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"absent.parquet: .*no such file"):
        parquet_dataset(tmp_path / "absent.parquet", **READ)


def test_a_damaged_page_names_row_group_and_column(tmp_path):
    path = tmp_path / "a.parquet"
    # Without compression only the checksum tells that a number has changed.
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table_of(), path, row_group_size=GROUP_ROWS, **options)
    column = pq.ParquetFile(path).metadata.row_group(3).column(2)
    assert column.path_in_schema == "price"
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="row group 3, column `price`: expected readable pages"):
        list(read_batches(path, **READ))


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 0},
        {"max_length": 0},
        {"pool_row_groups": 0},
        {"columns": ["number", "number"]},
        {"sequences": {"click": ["item", "length"]}},
        {"sequences": {"click": []}},
        {"encoders": {"other": Vocabulary([1])}},
        {"fill": {"other": 0}},
    ],
    ids=str,
)
def test_arguments_that_contradict_are_refused(write, changes):
    path = write(lists_table(LIST))
    for reader in (read_batches, parquet_dataset):
        with pytest.raises(ValueError, match=r"expected .*Received: "):
            reader(path, **(LISTS | changes))


def open_files(path):
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(os.path.exists(link) and os.path.realpath(link) == str(path) for link in links)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files through /proc")
def test_abandoned_iterators_leave_no_thread_and_no_open_file(write):
    path = write(table_of())
    list(read_batches(path, **READ))  # Arrow and TensorFlow start their own pools once
    next(iter(parquet_dataset(path, **READ)))
    gc.collect()
    before = threading.active_count()
    for _ in range(5):
        reader = read_batches(path, **READ)
        next(reader)
        assert open_files(path.resolve()) == 1
        del reader
        next(iter(parquet_dataset(path, **READ)))
    gc.collect()
    assert threading.active_count() == before
    assert open_files(path.resolve()) == 0


def test_other_errors_of_tensorflow_pass_through():
    with pytest.raises(tf.errors.InvalidArgumentError), data_errors():
        raise tf.errors.InvalidArgumentError(None, None, "something else")


def test_vocabularies_count_over_row_groups(write):
    path = write(table_of(20), rows=3)
    vocabularies = fit_vocabularies(
        path, {"item": ["number", "click__item"], "brand": ["click__brand"]}, min_count=2
    )
    counts, brands = {}, {}
    for i in range(20):
        for key in [i, *(100 * i + k for k in range(i % 7))]:
            counts[key] = counts.get(key, 0) + 1
        for key in [f"b{k % 5}" for k in range(i % 7)]:
            brands[key] = brands.get(key, 0) + 1
    for name, expected in (("item", counts), ("brand", brands)):
        kept = [key for key in expected if expected[key] >= 2]
        assert vocabularies[name].keys == sorted(kept, key=lambda key: (-expected[key], key))
    with pytest.raises(DataError, match="row group 0, column `price`: vocabulary: expected"):
        fit_vocabularies(path, {"price": ["price"]})
    with pytest.raises(DataError, match="expected one column `absent`"):
        fit_vocabularies(path, {"x": ["absent"]})
