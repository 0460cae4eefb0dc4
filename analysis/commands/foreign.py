"""Errors that a user's own module raised: where, in one line."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_OURS = __name__.partition(".")[0]


def place(error: BaseException) -> str | None:
    """`file:line` of the innermost frame that is neither ours nor a library's; None if there is none."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] != _OURS and not _of_a_library(frame.f_code.co_filename):
            found = f"{frame.f_code.co_filename}:{line}"
    return found


def _of_a_library(file: str) -> bool:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    return file.startswith("<") or any(Path(file).is_relative_to(folder) for folder in folders)
