"""`grokscope report`: runs and their results as one HTML page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import tyro

from ...runs.store import Run
from ..found import found
from ..report import Told, report
from ..synopsis import names_of
from .bar import progress
from .output import print_json


def command(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    *,
    out: Path,
    results: Path | None = None,
    figures: bool = True,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Write one HTML page that tells the story of a run, or sets several side by side.

    It needs no network and no other file. A stale result is named and left out; exit code 1 then.

    Args:
        runs: folders of the runs.
        out: the page, such as report.html.
        results: folder of the results, if not the run's.
        figures: put the figures into the page, under the tables.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    if not runs:
        raise ValueError("runs is empty; give the folder of at least one run")
    opened = zip(names_of(runs), runs, strict=True)
    told = {}
    for name, path in progress(quiet=quiet)(opened, description="report", total=len(runs)):
        run = Run.open(path)
        told[name] = Told(run, found(run, directory=results))
    words = ["grokscope", "report", *map(str, runs), "--out", str(out)]
    page = report(told, command=words, figures=figures)
    _write(out, page)
    stale = [message for one in told.values() for message in one.found.stale]
    for message in stale:
        print(f"grokscope: {message}", file=sys.stderr)
    if json:
        print_json({"page": out, "bytes": out.stat().st_size, "stale": stale})
    else:
        print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
    return 1 if stale else 0


def _write(out: Path, page: str) -> None:
    """The page appears whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        draft.write_text(page, encoding="utf-8")
        os.replace(draft, out)
    finally:
        draft.unlink(missing_ok=True)
