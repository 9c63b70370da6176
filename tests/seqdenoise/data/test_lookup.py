import numpy as np
import pyarrow as pa
import pytest

from seqdenoise.data.lookup import Lookup


@pytest.mark.parametrize("step", [1, 1000, 2**58])
@pytest.mark.parametrize("low", [0, -7, -(2**63)])
def test_dense_and_scattered_keys_are_found_alike(step, low):
    """Dense keys go through a table, scattered ones through a search."""
    keys = low + step * np.random.default_rng(0).permutation(30)
    lookup = Lookup(pa.table({"key": keys, "value": np.arange(30)}), "key", ["value"], place="here")
    asked = [*keys.tolist(), low + 30 * step, low + step // 2 + 1 + 29 * step, 2**63 - 1, -(2**63)]
    row_of = {key: row for row, key in enumerate(keys.tolist())}
    expected = [row_of.get(key, -1) for key in asked]
    assert lookup.rows(np.array(asked)).tolist() == expected
    values = lookup.take("value", np.array(expected)).to_pylist()
    assert values == [None if row < 0 else row for row in expected]


def test_an_empty_table_knows_no_key():
    empty = pa.table({"key": pa.array([], pa.int64()), "value": pa.array([], pa.string())})
    lookup = Lookup(empty, "key", ["value"], place="here")
    assert lookup.rows(np.array([0, 5])).tolist() == [-1, -1]
