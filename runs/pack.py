"""A run as one plain HDF5 file for other programs."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py

from .durable import TEMPORARY, sync_folder
from .index import write_facts
from .segments import LIBVER
from .store import Run

PACKED_FORMAT = "grokscope packed run"


def pack(
    run: Run, path: str | Path, *, progress: Callable[..., Iterable[Any]] = lambda iterable, **_: iterable
) -> Path:
    """Write the run as one HDF5 file with contiguous `theta` (T, P) and `second_moment` (T', P).

    Everything else lies as in run.h5: step, hash, metrics/<name>/{step, value}, parameters, config. Rows
    are checked on the way; memory for one row. Returns the path.

    Raises:
        ValueError: a segment is damaged.
        OSError: the file exists, or the disk does not take it; no partial file stays.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(errno.EEXIST, "there is a file already; give another name", str(path))
    _require_space(run, path)
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with h5py.File(temporary, "w", libver=LIBVER) as file:
            write_facts(file, run.index, PACKED_FORMAT)
            _write_rows(file, run, "theta", len(run), run.theta, progress)
            _write_rows(file, run, "second_moment", len(run.second_moment_steps), run.second_moment, progress)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return path


def _write_rows(
    file: h5py.File,
    run: Run,
    name: str,
    count: int,
    row: Callable[[int], Any],
    progress: Callable[..., Iterable[int]],
) -> None:
    data = file.create_dataset(name, (count, run.table.size), run.dtype, fill_time="never")
    for i in progress(range(count), description=f"pack {name}", total=count):
        data[i] = row(i)


def _require_space(run: Run, path: Path) -> None:
    pieces = (*run.index.theta.pieces, *run.index.second_moment.pieces)
    needed, free = sum(piece.length for piece in pieces), shutil.disk_usage(path.parent).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes are needed, {free:,} are free", str(path))
