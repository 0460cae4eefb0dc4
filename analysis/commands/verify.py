"""`grokscope verify`: check every byte of a run against its hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ...runs.store import Run
from ...runs.verify import verify
from .bar import progress
from .output import print_json, print_table


def command(run: Annotated[Path, tyro.conf.Positional], /, *, json: bool = False, quiet: bool = False) -> int:
    """Read every byte of a run and name the files that are not as they were committed.

    Exit code 1 if anything is damaged.

    Args:
        run: folder of the run.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    opened = Run.open(run)
    report = verify(opened, progress=progress(quiet=quiet))
    if json:
        print_json(report, hash=opened.hash)
    elif report.ok:
        print(f"{run}: {report.rows} rows are as committed; hash {opened.hash}")
        if report.duplicates:
            print(
                f"snapshots equal to the one before them, at steps {', '.join(map(str, report.duplicates))}"
            )
    else:
        names = ("file", "kind", "detail")
        print_table({name: [getattr(problem, name) for problem in report.problems] for name in names})
    return 0 if report.ok else 1
