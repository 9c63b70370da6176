import json

import numpy as np
import pyarrow as pa
import pytest

from seqdenoise.data.hash_encoder import HashEncoder
from seqdenoise.errors import DataError

WORD = 2**64


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) % WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % WORD
    return x ^ (x >> 31)


def expected_id(value, num_bins, salt):
    """The definition, in Python's integers."""
    if value is None:
        return 1
    if isinstance(value, str):
        content, power, word = value.encode(), 1, 0
        for byte in content:
            power = power * 0x9E3779B97F4A7C15 % WORD
            word = (word + (byte + 1) * power) % WORD
        word ^= mix(len(content))
    else:
        word = value % WORD
    return 3 + mix(word ^ mix(salt)) % num_bins


TEXTS = ["", "a", "b", "ab", "ba", "\0", "schön", "日本", None, "a" * 300]
INTEGERS = [0, 1, -1, 7, 2**63 - 1, -(2**63), None, 2**53 + 1]


@pytest.mark.parametrize(("num_bins", "salt"), [(1000, 0), (7, 0), (2**31 - 4, 5), (1, 0)])
def test_the_hash_is_the_same_everywhere(num_bins, salt):
    encoder = HashEncoder(num_bins, salt)
    for values, kind in ((TEXTS, pa.string()), (INTEGERS, pa.int64())):
        expected = [expected_id(value, num_bins, salt) for value in values]
        column = pa.array(values, kind)
        assert encoder.encode(column).tolist() == expected
        assert encoder.encode(column).dtype == np.int32
        assert encoder.encode(column.slice(2)).tolist() == expected[2:]
        assert encoder.encode(column.dictionary_encode()).tolist() == expected
        chunks = pa.chunked_array([column.slice(0, 3), column.slice(3)])
        assert encoder.encode(chunks).tolist() == expected
    assert encoder.encode(pa.array(TEXTS, pa.large_string())).tolist() == [
        expected_id(value, num_bins, salt) for value in TEXTS
    ]
    assert encoder.encode(np.array([7], np.int8)).tolist() == [expected_id(7, num_bins, salt)]


def test_columns_without_values():
    encoder = HashEncoder(10)
    assert encoder.encode(pa.array([], pa.string())).tolist() == []
    assert encoder.encode(pa.nulls(2)).tolist() == [1, 1]
    assert encoder.encode(pa.array([None, None], pa.string())).tolist() == [1, 1]


def test_ids_are_spread_and_leave_the_reserved_ones_out():
    for values in (np.arange(100_000), pa.array([f"item {i}" for i in range(100_000)])):
        ids = HashEncoder(100).encode(values)
        counts = np.bincount(ids, minlength=103)
        assert counts[:3].tolist() == [0, 0, 0]
        # A thousand each, give or take five standard deviations.
        assert 840 < counts[3:].min() < counts[3:].max() < 1160
    salted = HashEncoder(100, salt=1).encode(np.arange(1000))
    assert (salted != HashEncoder(100).encode(np.arange(1000))).mean() > 0.9


def test_json():
    encoder = HashEncoder(10, salt=3)
    assert HashEncoder.from_json(encoder.to_json()) == encoder
    assert hash(HashEncoder.from_json(encoder.to_json())) == hash(encoder)
    assert encoder != HashEncoder(10)
    for text in ("", "[]", '{"format": 2, "num_bins": 1, "salt": 0}', '{"format": 1}'):
        with pytest.raises(DataError, match="hash: expected JSON"):
            HashEncoder.from_json(text)
    content = json.loads(encoder.to_json()) | {"num_bins": True}
    with pytest.raises(DataError, match="num_bins"):
        HashEncoder.from_json(json.dumps(content))


@pytest.mark.parametrize("arguments", [(0,), (2**31,), (1.5,), (10, -1), (10, 2**63)], ids=str)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="must be an integer of at least"):
        HashEncoder(*arguments)


@pytest.mark.parametrize(
    "values", [pa.array([1.5]), pa.array([[1]]), pa.array([2**63], pa.uint64())], ids=str
)
def test_other_values_are_refused(values):
    with pytest.raises(DataError, match="hash: expected"):
        HashEncoder(10).encode(values)
