"""`grokscope pack`: write a run as one contiguous HDF5 file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ...runs.pack import pack
from ...runs.store import Run
from .bar import progress
from .output import print_json


def command(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Write a run as one HDF5 file with contiguous `theta` (T, P), for h5py, MATLAB, Julia, HDFView.

    Args:
        run: folder of the run.
        out: the file, by default packed.h5 in the run's folder.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    written = pack(Run.open(run), out or run / "packed.h5", progress=progress(quiet=quiet))
    size = written.stat().st_size
    if json:
        print_json({"path": written, "bytes": size})
    else:
        print(f"{written}: {size} bytes")
    return 0
