"""A segment while rows still come: under a temporary name, and whole before it gets its own."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .durable import TEMPORARY, byte_view, explained, sync_folder, write_at
from .segments import Piece, contiguous_header, segment_name

STAGE_BYTES = 4 * 2**20  # written together; a multiple of every file system's block
_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux


class Draft:
    """Segment number `number`: rows (P,) of the dataset `name`, one after the other.

    They are gathered in blocks that go to the disk past the page cache, where the system can: that takes
    a tenth of the processor's time, does not wait for the threads by which the system empties its cache
    (on a busy machine ten times the speed), and leaves a commit's fsync nothing to do.
    """

    def __init__(self, folder: Path, number: int, name: str, size: int, dtype: str) -> None:
        self._file, self._name, self._size, self._dtype = segment_name(number), name, size, np.dtype(dtype)
        self._path = folder / self._file
        self._temporary = self._path.with_name(self._path.name + TEMPORARY)
        self._stage, self._filled, self._position = mmap.mmap(-1, STAGE_BYTES), len(self._header(1)), 0
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._descriptor = os.open(self._temporary, flags, 0o666)
        except OSError as error:
            raise explained(error, self._path, size * self._dtype.itemsize) from error
        self._switch(direct=True)

    def write(self, row: NDArray[Any]) -> None:
        """Write the next row, in a thread of its own.

        Raises:
            OSError: the disk does not take it; names the segment and the bytes of the row.
        """
        rest = byte_view(row)
        try:
            while rest.nbytes:
                count = min(rest.nbytes, STAGE_BYTES - self._filled)
                self._stage[self._filled : self._filled + count] = rest[:count]
                rest, self._filled = rest[count:], self._filled + count
                if self._filled == STAGE_BYTES:
                    self._empty_stage()
        except OSError as error:
            raise explained(error, self._path, row.nbytes) from error

    def finish(self, rows: int, *, first_row: int) -> Piece:
        """Make the rows a segment, durably.

        Raises:
            OSError: the disk does not take it.
        """
        header, length = self._header(rows), rows * self._size * self._dtype.itemsize
        try:
            self._switch(direct=False)
            self._empty_stage()
            write_at(self._descriptor, memoryview(header), 0)
            os.fsync(self._descriptor)
            os.replace(self._temporary, self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            raise explained(error, self._path, length) from error
        self._close()
        return Piece(self._file, len(header), length, rows, first_row, hashlib.sha256(header).hexdigest())

    def discard(self) -> None:
        """Delete what was written."""
        self._close()
        with suppress(OSError):
            os.unlink(self._temporary)

    def _empty_stage(self) -> None:
        with memoryview(self._stage) as stage, stage[: self._filled] as view:
            try:
                write_at(self._descriptor, view, self._position)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._switch(direct=False)  # this file system can't, or not to an end between two blocks
                write_at(self._descriptor, view, self._position)
        self._position, self._filled = self._position + self._filled, 0

    def _switch(self, *, direct: bool) -> None:
        """Write past the page cache from now on, where that can be had, or through it."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~_DIRECT
        with suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (_DIRECT if direct else 0))

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1  # never used again: its number may be another's
        if descriptor >= 0:
            os.close(descriptor)

    def _header(self, rows: int) -> bytes:
        return contiguous_header(self._name, (rows, self._size), self._dtype)
