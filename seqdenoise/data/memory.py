"""Blocks of memory that serve again once nothing refers to them any more."""

import itertools
import math
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# TensorFlow takes an array that starts at a multiple of this over without a copy.
_ALIGNMENT = 64


class Recycler:
    """Hands out arrays whose memory comes back by itself.

    New memory costs more than filling it: the system clears each page when it is first touched, and
    for a dense batch that takes longer than decoding the rows. So a block is kept and handed out
    again after the last array in it has gone, wherever it was: in a loop, a queue or a tensor.

    Args:
        keep: How many unused blocks to keep.

    Example:
        >>> recycler = Recycler()
        >>> a, b = recycler.arrays([((2, 3), np.int64), ((4,), np.float32)])
        >>> a.shape, b.shape, a.ctypes.data % 64, b.ctypes.data % 64
        ((2, 3), (4,), 0, 0)
    """

    def __init__(self, keep: int = 4):
        self._unused: deque[Array] = deque(maxlen=keep)

    def arrays(self, shapes: Sequence[tuple[tuple[int, ...], Any]]) -> list[Array]:
        """Arrays of these shapes and types in one block, with arbitrary content."""
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes]
        stops = list(itertools.accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
        block = self._block(stops[-1] if stops else 0).data
        return [
            np.ndarray(shape, dtype, block, start)
            for (shape, dtype), start in zip(shapes, [0, *stops], strict=False)
        ]

    def _block(self, size: int) -> Array:
        memory = None
        # The last one given back may still be in the cache. What is too small now will be too small
        # again: sizes hardly vary, or grow.
        while self._unused and (memory is None or len(memory) < size + _ALIGNMENT):
            memory = self._unused.pop()
        if memory is None or len(memory) < size + _ALIGNMENT:
            memory = np.empty(size + size // 8 + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        # Through a memoryview, or the arrays cut from the block would refer to `memory` itself and
        # not to the object whose end tells that they have gone.
        block = np.frombuffer(memory.data[start : start + size], np.uint8)
        weakref.finalize(block, self._unused.append, memory).atexit = False
        return block
