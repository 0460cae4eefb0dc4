"""One writer per run: an advisory lock that the system drops when the process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = "run.lock"


def acquire(folder: Path) -> int:
    """The descriptor that holds the folder's lock; closing it, or the end of the process, frees the run.

    Raises:
        BlockingIOError: another writer holds the lock.
        OSError: the folder can't be written to, or its file system has no locks.
    """
    path = folder / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OSError(
            error.errno, f"{error.strerror}; a run needs a folder that it may write to", str(folder)
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise _explained(error, folder) from error
    return descriptor


@contextmanager
def held(folder: Path, *, wanted: bool = True) -> Iterator[int | None]:
    """The lock as by `acquire` (None if not wanted), freed if what follows fails, else left to be released.

    Raises:
        OSError: as `acquire`.
    """
    descriptor = acquire(folder) if wanted else None
    try:
        yield descriptor
    except BaseException:
        release(descriptor)
        raise


def release(descriptor: int | None) -> None:
    """Free the run that `acquire` locked; nothing for None."""
    if descriptor is not None:
        os.close(descriptor)


def _explained(error: OSError, folder: Path) -> OSError:
    if isinstance(error, BlockingIOError):
        reason = "another process is writing this run; wait until it ends, or give another folder"
    else:
        reason = (
            f"{error.strerror}: this file system has no locks; pass lock=False and see to one writer yourself"
        )
    return OSError(error.errno, reason, str(folder))
