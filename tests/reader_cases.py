"""A small prepared table whose every value follows from its row's number."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def numbered_table(num_rows):
    """Row i has number i, and i % 7 clicks and i % 3 carts whose items tell row and position."""
    clicks = [[100 * i + k for k in range(i % 7)] for i in range(num_rows)]
    prices = [[item / 2 for item in row] for row in clicks]
    carts = [[100 * i + k for k in range(i % 3)] for i in range(num_rows)]
    return pa.table(
        {
            "number": pa.array(range(num_rows), pa.int64()),
            "day": pa.array([i // 10 for i in range(num_rows)], pa.int16()),
            "kind": pa.array([None if i % 5 == 4 else "abc"[i % 3] for i in range(num_rows)]),
            "weight": pa.array([i % 4 for i in range(num_rows)], pa.int32()),
            "click__item": pa.array(clicks, pa.list_(pa.int64())),
            "click__price": pa.array(prices, pa.list_(pa.float64())),
            "cart__item": pa.array(carts, pa.list_(pa.int64())),
        }
    )


READ = {
    "columns": ["number"],
    "sequences": {"click": ["item", "price"], "cart": ["item"]},
    "batch_size": 8,
    "max_length": 4,
}


def write_table(path, table, rows=10):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows)
    return path


def write_folder(folder, table, sizes, rows=10):
    """The table cut into files of these sizes, and the rest into one more."""
    start = 0
    for index, size in enumerate([*sizes, len(table) - sum(sizes)]):
        write_table(folder / f"part-{index:05d}.parquet", table.slice(start, size), rows)
        start += size
    return folder


def numbers_of(batches):
    return [int(number) for batch in batches for number in np.asarray(batch["number"])]


def assert_same_batches(ours, theirs):
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == list(other)
        for name, values in other.items():
            assert one[name].dtype == values.dtype
            np.testing.assert_array_equal(one[name], values)
