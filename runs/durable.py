"""Files that are whole or absent: written under a temporary name, fsynced, renamed, the folder fsynced."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

TEMPORARY = ".tmp"


def write_file(path: Path, data: bytes) -> None:
    """Write a file that appears whole and for good, or not at all.

    Raises:
        OSError: nothing was written, the temporary file is gone again; the message names the path, the
            bytes needed and what to do.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        _write_synced(temporary, memoryview(data))
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise explained(error, path, len(data)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def byte_view(data: bytes | NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array or a bytes object, not copied."""
    return memoryview(data).cast("B")  # type: ignore[arg-type]  # NumPy's stubs do not call arrays buffers


def read_file(path: Path, limit: int = 2**40) -> bytes:
    """The bytes of a plain file of at most `limit` bytes; no link is followed, no pipe waited for.

    Raises:
        OSError: it can't be opened.
        ValueError: it is no plain file, or larger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise ValueError(f"{path} is no plain file of at most {limit:,} bytes")
        return file.read()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, if missing, so that their names survive a power loss.

    Raises:
        OSError: it can't be made.
    """
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for made in missing:
            sync_folder(made.parent)
    except OSError as error:
        reason = f"{error.strerror}; a run needs a folder that it may write to"
        raise OSError(error.errno, reason, str(folder)) from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_at(descriptor: int, view: memoryview, position: int) -> None:
    """Write all bytes of a view at a position of a file; one system call writes 2 GiB at most.

    Raises:
        OSError: the disk does not take them.
    """
    while view.nbytes:
        count = os.pwrite(descriptor, view, position)
        view, position = view[count:], position + count


def explained(error: OSError, path: Path, needed: int) -> OSError:
    """The error of a write, naming the path, the bytes needed and what to do."""
    advice = (
        "what was committed before is whole; make room or permit writing, then run the same command again"
    )
    return OSError(error.errno, f"{error.strerror} ({needed:,} bytes are needed; {advice})", str(path))


def _write_synced(path: Path, view: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_at(descriptor, view, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
