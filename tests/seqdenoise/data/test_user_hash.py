import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdenoise.data.user_hash import user_buckets, user_fraction

int64 = st.integers(-(2**63), 2**63 - 1)


def split_mix_64(seed):
    """Output of SplitMix64 for a state, in Python's integers."""
    state = (seed + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def test_the_reference_agrees_with_published_outputs():
    # The first outputs of SplitMix64 seeded with 1234567, as listed with its implementations.
    gamma = 0x9E3779B97F4A7C15
    outputs = [split_mix_64((1234567 + i * gamma) % 2**64) for i in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(int64, max_size=20), st.integers(1, 2**31 - 1))
def test_equals_plain_integers(users, num_buckets):
    array = np.array(users, np.int64)
    buckets, fractions = user_buckets(array, num_buckets), user_fraction(array)
    assert buckets.dtype == np.int32
    for user, bucket, fraction in zip(users, buckets.tolist(), fractions.tolist(), strict=True):
        hashed = split_mix_64(user % 2**64)
        assert bucket == ((hashed >> 32) * num_buckets) >> 32
        assert fraction == (hashed >> 11) / 2**53
        assert 0 <= bucket < num_buckets
        assert 0 <= fraction < 1


@pytest.mark.parametrize("step", [1, 1000, 2**40])
def test_regular_ids_are_spread_evenly(step):
    counts = np.bincount(user_buckets(np.arange(100_000) * step, 20), minlength=20)
    # 5000 each, with a standard deviation of about 69.
    assert abs(counts - 5000).max() < 350
    assert abs((user_fraction(np.arange(100_000) * step) < 0.3).mean() - 0.3) < 0.01


@pytest.mark.parametrize("num_buckets", [0, 2**31])
def test_impossible_numbers_of_buckets_are_refused(num_buckets):
    with pytest.raises(ValueError, match=r"1 <= num_buckets < 2\*\*31. Received"):
        user_buckets(np.array([1]), num_buckets)
