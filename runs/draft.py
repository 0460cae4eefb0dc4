"""A segment while rows still come: under a temporary name, and whole before it gets its own."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .durable import TEMPORARY, byte_view, explained, sync_folder, write_at
from .segments import Piece, contiguous_header, segment_name

START_BYTES = (
    16 * 2**20
)  # sent on their way to the disk together, so that a commit's fsync finds little to do


class Draft:
    """Segment number `number`: rows (P,) of the dataset `name`, each written at its place as it comes."""

    def __init__(self, folder: Path, number: int, name: str, size: int, dtype: str) -> None:
        self._file, self._name, self._size, self._dtype = segment_name(number), name, size, np.dtype(dtype)
        self._path = folder / self._file
        self._temporary = self._path.with_name(self._path.name + TEMPORARY)
        self._offset = self._sent = len(self._header(1))
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._descriptor = os.open(self._temporary, flags, 0o666)
        except OSError as error:
            raise explained(error, self._path, size * self._dtype.itemsize) from error

    def write(self, k: int, row: NDArray[Any]) -> None:
        """Write row k, in a thread of its own.

        Raises:
            OSError: the disk does not take it; names the segment and the bytes of the row.
        """
        try:
            write_at(self._descriptor, byte_view(row), self._offset + k * row.nbytes)
            end = self._offset + (k + 1) * row.nbytes
            if end - self._sent >= START_BYTES:
                _start_writing(self._descriptor, self._sent, end)
                self._sent = end
        except OSError as error:
            raise explained(error, self._path, row.nbytes) from error

    def finish(self, rows: int, *, first_row: int) -> Piece:
        """Make the rows a segment, durably.

        Raises:
            OSError: the disk does not take it.
        """
        header, length = self._header(rows), rows * self._size * self._dtype.itemsize
        try:
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

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1  # never used again: its number may be another's
        if descriptor >= 0:
            os.close(descriptor)

    def _header(self, rows: int) -> bytes:
        return contiguous_header(self._name, (rows, self._size), self._dtype)


def _start_writing(descriptor: int, start: int, end: int) -> None:
    """Begin to bring a range to disk without waiting: what this advice does to pages that are dirty."""
    if hasattr(os, "posix_fadvise"):  # Linux
        os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
