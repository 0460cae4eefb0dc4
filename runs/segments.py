"""Segments: immutable HDF5 files of contiguous rows, read by offset and length without HDF5."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t
from numpy.typing import NDArray

from .durable import byte_view

FOLDER = "segments"
SEGMENT_NAME = re.compile(r"segments/\d{8}\.h5", re.ASCII)
LIBVER = ("v110", "v110")  # readable by every HDF5 since 1.10, written the same by every later one


class Piece(NamedTuple):
    """Rows `first_row ... first_row + rows` of a series: `length` bytes at `offset` of a segment file."""

    file: str
    offset: int
    length: int
    rows: int
    first_row: int
    header_hash: str  # SHA-256 of the file's bytes before `offset`


class Rows(NamedTuple):
    """What run.h5 lists of one series of row vectors: R steps, R SHA-256 in hex, and where the rows lie."""

    steps: NDArray[np.int64]
    hashes: tuple[str, ...]
    pieces: tuple[Piece, ...]

    def until(self, step: float) -> Rows:
        """The same without the rows after `step`."""
        count = int(np.searchsorted(self.steps, step, side="right"))
        pieces = tuple(_cut(piece, count) for piece in self.pieces if piece.first_row < count)
        return Rows(self.steps[:count], self.hashes[:count], pieces)


NO_ROWS = Rows(np.empty(0, np.int64), (), ())


def segment_name(number: int) -> str:
    """The path of a segment relative to its run."""
    return f"{FOLDER}/{number:08d}.h5"


def segment_number(name: str) -> int:
    """The number in a segment's path; -1 for any other file of a run."""
    return int(name[-11:-3]) if SEGMENT_NAME.fullmatch(name) else -1


def contiguous_header(name: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> bytes:
    """The bytes that make an HDF5 file of one contiguous dataset when its raw data follow them.

    HDF5 itself writes no row, so that a full disk is an error of `write` and never a half-closed library.
    """
    image = BytesIO()
    with h5py.File(image, "w", libver=LIBVER) as file:
        layout = h5p.create(h5p.DATASET_CREATE)
        layout.set_layout(h5d.CONTIGUOUS)
        layout.set_fill_time(h5d.FILL_TIME_NEVER)
        h5d.create(file.id, name.encode(), h5t.py_create(dtype), h5s.create_simple(shape), layout)
        file.flush()
        file[name][0, 0] = 0  # space is given at the first write: behind everything else
        offset: int = file[name].id.get_offset()
    if len(image.getvalue()) != offset + dtype.itemsize:
        raise RuntimeError(
            "this version of HDF5 lays out a contiguous dataset as none before; please report it"
        )
    return image.getvalue()[:offset]


class DamageError(ValueError):
    """A file of a run is not what run.h5 says: `kind` is missing, truncated, altered, or swapped."""

    def __init__(self, folder: Path, file: str, kind: str, detail: str) -> None:
        super().__init__(f"{file} of {folder} is {kind}: {detail}; `grokscope verify` lists all damage")
        self.file, self.kind, self.detail = file, kind, detail


@contextmanager
def opened(folder: Path, piece: Piece, *, whole: bool = True) -> Iterator[int]:
    """A descriptor on a piece's file, which is there, a plain file, and (if `whole`) long enough.

    Descriptors are opened for one read and closed again: nothing to inherit by a forked worker, no limit
    on their number to meet. Rows are read, not mapped: a mapped file that shrinks kills its reader.

    Raises:
        DamageError: the file can't be opened, is no plain file, or too short.
    """
    try:
        descriptor = os.open(folder / piece.file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise DamageError(folder, piece.file, "missing", str(error.strerror)) from error
    try:
        status, end = os.fstat(descriptor), piece.offset + piece.length
        if not stat.S_ISREG(status.st_mode):
            raise DamageError(folder, piece.file, "missing", "what bears its name is no plain file")
        if whole and status.st_size < end:
            raise DamageError(
                folder, piece.file, "truncated", f"{status.st_size:,} of {end:,} bytes are there"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def read_into(descriptor: int, out: NDArray[Any], offset: int) -> None:
    """Fill a contiguous array from a position in a file.

    Raises:
        OSError: the file ends before the array is full.
    """
    view = byte_view(out)
    while view.nbytes:
        count = os.preadv(descriptor, [view], offset)
        if not count:
            raise OSError(errno.EIO, "a segment ended while it was read")
        view, offset = view[count:], offset + count


def _cut(piece: Piece, total: int) -> Piece:
    rows = min(piece.rows, total - piece.first_row)
    return piece._replace(rows=rows, length=piece.length // piece.rows * rows)
