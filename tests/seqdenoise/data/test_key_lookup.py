import numpy as np
import pyarrow as pa
import pytest

from seqdenoise.data.key_lookup import IntegerLookup, TextLookup


@pytest.mark.parametrize(
    "keys",
    [
        [5],
        [30, 10, 20],
        [-5, 0, 3, -(2**40)],
        [2**63 - 1, -(2**63), 0],
        [2**63 - 1, 2**63 - 3],
        list(range(0, 10**6, 7)),
        [i * 10**9 for i in range(1000)],
    ],
    ids=lambda keys: f"{len(keys)} from {keys[0]}",
)
def test_integers(keys):
    lookup = IntegerLookup(pa.array(keys, pa.int64()))
    edges = [-(2**63), 2**63 - 1, 0, 1, keys[0] - 1 if keys[0] > -(2**63) else 0]
    values = [*keys[:50], None, *edges, keys[-1]]
    expected = [keys.index(value) if value in keys else -1 for value in values]
    found = lookup.find(pa.array(values, pa.int64()))
    assert found.dtype == np.int32
    assert found.tolist() == expected
    assert lookup.find(pa.array(values, pa.int64()).slice(3)).tolist() == expected[3:]
    assert lookup.find(pa.array([], pa.int64())).tolist() == []


@pytest.mark.parametrize("num_keys", [1, 3, 5000])
def test_texts(num_keys):
    keys = [f"key {i}" for i in range(num_keys)]
    lookup = TextLookup(pa.array(keys))
    for repeats in (1, 100):
        values = ["key 0", None, "", "other", keys[-1]] * repeats
        expected = [keys.index(value) if value in keys else -1 for value in values]
        for column in (pa.array(values), pa.array(values).dictionary_encode()):
            assert lookup.find(column).tolist() == expected
            assert lookup.find(column).dtype == np.int32
    # A null may also be an entry of the dictionary.
    odd = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, None]), pa.array(["key 0", None]))
    assert lookup.find(odd).tolist() == [0, -1, -1, -1]
