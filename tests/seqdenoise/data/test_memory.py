import gc

import numpy as np
import pytest

from seqdenoise.data.memory import Recycler

SHAPES = [((3, 5), np.int64), ((7,), np.float32), ((0,), np.int32), ((2,), np.int32)]


def address(array):
    return array.__array_interface__["data"][0]


def test_arrays_have_their_shapes_and_do_not_overlap():
    arrays = Recycler().arrays(SHAPES)
    assert [(array.shape, array.dtype) for array in arrays] == SHAPES
    for number, array in enumerate(arrays):
        array[...] = number
    for number, array in enumerate(arrays):
        assert (array == number).all()
        assert address(array) % 64 == 0
    assert Recycler().arrays([]) == []


def test_memory_serves_again_only_after_the_last_array_has_gone():
    recycler = Recycler()
    first = recycler.arrays(SHAPES)
    place = address(first[0])
    view = first[0][1:2]
    del first
    gc.collect()
    second = recycler.arrays(SHAPES)
    assert address(second[0]) != place
    del view
    third = recycler.arrays(SHAPES)
    assert address(third[0]) == place


def test_blocks_that_are_too_small_are_replaced():
    recycler = Recycler()
    del recycler.arrays([((10,), np.int64)])[:]
    (large,) = recycler.arrays([((10_000,), np.int64)])
    large[:] = 1
    assert large.sum() == 10_000


@pytest.mark.parametrize("keep", [1, 3])
def test_only_so_many_unused_blocks_are_kept(keep):
    recycler = Recycler(keep)
    held = [recycler.arrays(SHAPES) for _ in range(5)]
    held.clear()
    gc.collect()
    assert len(recycler._unused) == keep
