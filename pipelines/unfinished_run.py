"""The work folder of a training run, which a killed one leaves to the next."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.work_lock import alone_in, clear
from seqdenoise.data.atomic import atomic_file, remove_folder, remove_leftovers
from seqdenoise.errors import DataError

logger = logging.getLogger(__name__)

BACKUPS = "backups"
_STAMP = "fingerprint.txt"


@contextmanager
def unfinished_run(folder: Path, fingerprint: str, run: str) -> Iterator[Path]:
    """The folder to work in, beside the run's folder and kept until the block ends well.

    A block that ends badly leaves it too, if there is something in its folder `BACKUPS`.

    Args:
        folder: The run's folder.
        fingerprint: Of the run: what another run has left there is removed.
        run: What messages call the run.

    Yields:
        The work folder, `.{name of folder}.unfinished`.

    Raises:
        FolderInUseError: Another process is at the same run.
    """
    work = folder.with_name(f".{folder.name}.unfinished")
    with alone_in(work):
        remove_leftovers(folder)
        stamp = work / _STAMP
        is_same = stamp.is_file() and stamp.read_text(encoding="utf-8") == fingerprint
        if not is_same:
            if any(work.iterdir()):
                logger.info("%s: what an unfinished run of something else left is removed", run)
            clear(work, stamp)
            with atomic_file(stamp) as aside:
                aside.write_text(fingerprint, encoding="utf-8")
        try:
            yield work
        except BaseException as error:
            # With other data it will be another run; and without a backup there is nothing to keep.
            if isinstance(error, DataError) or not any((work / BACKUPS).glob("*")):
                remove_folder(work)
            raise
        remove_folder(work)
