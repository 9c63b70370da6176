"""Processes of a pool that do not outlive the process which started them."""

import os
import threading
from multiprocessing import connection, parent_process


def end_with_parent() -> None:
    """For a pool's `initializer`: ends this process as soon as the one that started it is dead.

    A pool whose leader is killed would otherwise wait for work for ever, and finish what it is at
    beside the run that goes on.
    """
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    connection.wait([sentinel])
    # Not `sys.exit`: this is not the main thread, and nobody is left to tell.
    os._exit(1)
