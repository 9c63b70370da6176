import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdenoise.data.vocabulary import Vocabulary
from seqdenoise.errors import DataError

keys = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=12) | st.lists(
    st.text(max_size=3), max_size=12
)


@given(keys, st.integers(1, 2))
def test_ids_follow_frequency_then_key(values, min_count):
    vocabulary = Vocabulary.fit(
        np.array(values, object) if not values else pa.array(values), min_count=min_count
    )
    kept = [key for key in set(values) if values.count(key) >= min_count]
    order = lambda key: (-values.count(key), key.encode() if isinstance(key, str) else key)  # noqa: E731
    expected = sorted(kept, key=order)
    assert vocabulary.keys == expected
    assert vocabulary.size == len(expected) + 3
    again = Vocabulary.from_json(vocabulary.to_json())
    assert again.keys == expected
    assert again == vocabulary
    if values:
        ids = [expected.index(key) + 3 if key in expected else 1 for key in values]
        encoded = again.encode(pa.array([*values, None]))
        assert encoded.dtype == np.int32
        np.testing.assert_array_equal(encoded, [*ids, 1])


def test_the_reserved_ids_are_distinct_and_below_every_key():
    vocabulary = Vocabulary([0, 1, 2])
    reserved = {Vocabulary.PAD, Vocabulary.OOV, Vocabulary.MASK}
    assert reserved == {0, 1, 2}
    assert vocabulary.encode(np.array([0, 1, 2])).tolist() == [3, 4, 5]


def test_several_columns_and_lists_share_one_count():
    scalar, lists = pa.array([5, 5, 6]), pa.array([[6, 7, None], None, [6, 6]])
    assert Vocabulary.fit(scalar, lists).keys == [6, 5, 7]
    assert Vocabulary.fit(scalar, lists, min_count=2).keys == [6, 5]


def test_dictionary_strings_encode_by_value():
    vocabulary = Vocabulary(["b", "a"])
    column = pa.chunked_array(
        [pa.array(["a", "z"]).dictionary_encode(), pa.array(["b", None]).dictionary_encode()]
    )
    assert vocabulary.encode(column).tolist() == [4, 1, 3, 1]


def test_any_integer_type_encodes():
    for kind in (pa.int8(), pa.uint16(), pa.int64()):
        assert Vocabulary([7]).encode(pa.array([7, 8], kind)).tolist() == [3, 1]


def test_nothing_known_is_all_unknown():
    assert Vocabulary.fit(pa.array([], pa.string())).encode(pa.array(["a"])).tolist() == [1]
    assert Vocabulary(["a"]).encode(pa.nulls(2)).tolist() == [1, 1]


def test_order_does_not_depend_on_the_order_of_values():
    values = np.random.default_rng(0).integers(0, 50, 500)
    assert Vocabulary.fit(values).keys == Vocabulary.fit(values[::-1]).keys


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        json.dumps({"format": 1, "type": "int64"}),
        json.dumps({"format": 2, "type": "int64", "keys": []}),
        json.dumps({"format": 1, "type": "double", "keys": []}),
        json.dumps({"format": 1, "type": "int64", "keys": [2**63]}),
        json.dumps({"format": 1, "type": "int64", "keys": [-(2**63) - 1]}),
        json.dumps({"format": 1, "type": "int64", "keys": [1.0]}),
        json.dumps({"format": 1, "type": "int64", "keys": [True]}),
        json.dumps({"format": 1, "type": "int64", "keys": [1, 1]}),
        json.dumps({"format": 1, "type": "string", "keys": [None]}),
    ],
)
def test_json_that_is_no_vocabulary_is_refused(text):
    with pytest.raises(DataError, match=r"vocabulary: expected .*Received: "):
        Vocabulary.from_json(text)


@pytest.mark.parametrize(
    "values", [pa.array([1.5]), pa.array([2**63], pa.uint64()), [2**70], [1, "a"]]
)
def test_values_that_are_no_keys_are_refused(values):
    with pytest.raises(DataError, match="vocabulary: expected"):
        Vocabulary.fit(values)


def test_text_and_integers_do_not_mix():
    with pytest.raises(DataError, match=r"type int64. Received: string"):
        Vocabulary([1]).encode(pa.array(["1"]))
    with pytest.raises(DataError, match="all values integers, or all strings"):
        Vocabulary.fit(pa.array([1]), pa.array(["1"]))
