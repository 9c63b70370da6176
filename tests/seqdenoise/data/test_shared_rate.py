import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdenoise.data.shared_rate import list_keys, shared_rates
from seqdenoise.errors import DataError


def loops(users, sequences):
    """Both rates, pair by pair."""
    shared = pairs = same = others = 0
    for i in range(len(users)):
        for j in range(i):
            pairs += 1
            shared += users[i] == users[j] or sequences[i] == sequences[j]
            if users[i] != users[j]:
                others += 1
                same += sequences[i] == sequences[j]
    return {
        "same_user_or_sequence": shared / pairs if pairs else 0.0,
        "same_sequence_of_other_user": same / others if others else 0.0,
    }


ROW = st.tuples(
    st.sampled_from([-5, 0, 3, 2**62]), st.lists(st.sampled_from([1, 2, 2**40]), max_size=3)
)


@given(st.lists(ROW, max_size=30))
def test_equals_a_double_loop(rows):
    users = [user for user, _ in rows]
    sequences = [sequence for _, sequence in rows]
    keys, lengths = list_keys(pa.array(sequences, pa.list_(pa.int64())), "rows")
    np.testing.assert_array_equal(lengths, [len(sequence) for sequence in sequences])
    assert shared_rates(np.array(users, np.int64), keys) == loops(users, sequences)


def test_many_rows_are_counted_exactly():
    # 200,000 rows, one in a thousand sequences alike: 2e10 pairs, more than 32 bits count.
    users = np.repeat(np.arange(1000), 200)
    sequences = np.tile(np.arange(200), 1000)
    keys, _ = list_keys(pa.array([[value] for value in range(200)]), "rows")
    rates = shared_rates(users, keys[sequences])
    pairs = 200_000 * 199_999 // 2
    of_user, of_sequence = 1000 * 200 * 199 // 2, 200 * 1000 * 999 // 2
    assert rates == {
        "same_user_or_sequence": (of_user + of_sequence) / pairs,
        "same_sequence_of_other_user": of_sequence / (pairs - of_user),
    }


def test_one_group_may_hold_more_pairs_than_32_bits_count():
    users = np.repeat([3, 4], 100_000)
    keys = np.tile(np.array([[5, 6]], np.uint64), (200_000, 1))
    assert shared_rates(users, keys) == {
        "same_user_or_sequence": 1.0,
        "same_sequence_of_other_user": 1.0,
    }


def distinct(lists):
    keys, _ = list_keys(lists, "rows")
    return len(np.unique(keys, axis=0))


def test_order_length_and_every_bit_of_an_item_count():
    lists = [[1, 2], [2, 1], [1], [1, 2, 0], [1, 2**33 + 2], [-1, 2], [], [0]]
    assert distinct(pa.array(lists)) == len(lists)
    # Where one list ends and the next begins does not matter, what they hold does.
    keys, _ = list_keys(pa.array([[9, 9], [1, 2], [9], [1, 2]]), "rows")
    np.testing.assert_array_equal(keys[1], keys[3])


def test_both_halves_of_a_key_tell_sequences_apart():
    users = np.arange(3)
    keys = np.array([[1, 1], [1, 2], [2, 2]], np.uint64)
    assert shared_rates(users, keys)["same_sequence_of_other_user"] == 0.0


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.uint8())])
def test_the_same_numbers_of_another_integer_type_have_the_same_key(kind):
    lists = [[1, 2], [], None, [3]]
    keys, lengths = list_keys(pa.array(lists, kind), "rows")
    expected, _ = list_keys(pa.chunked_array([lists[:1], lists[1:]], pa.list_(pa.int64())), "rows")
    np.testing.assert_array_equal(keys, expected)
    assert lengths.tolist() == [2, 0, 0, 1]


@pytest.mark.parametrize("lists", [pa.array([[1, None]]), pa.array([["a"]])])
def test_lists_of_something_else_are_refused(lists):
    with pytest.raises(DataError, match=r"here, column `items`: expected .* Received: "):
        list_keys(lists, "here")


def test_shapes_that_do_not_fit_are_refused():
    keys = np.zeros((3, 2), np.uint64)
    for users, wrong in [(np.zeros(2), keys), (np.zeros(3), keys[:, :1]), (np.zeros((3, 1)), keys)]:
        with pytest.raises(ValueError, match=r"`keys` \[rows, 2\]. Received: "):
            shared_rates(users, wrong)
