"""`grokscope sweep`: train every run of a specification."""

from __future__ import annotations

from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import tyro

from ...runs.cluster import on_cluster
from ...runs.sweep import read_spec, sweep
from .bar import progress
from .output import print_json, print_table


def command(
    spec: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    out: Path,
    jobs: int = 1,
    scheduler: str | None = None,
    only: str = "*",
    list_runs: bool = False,
    trust_run: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Train the runs of a TOML specification, one folder each; finished ones are skipped.

    Args:
        spec: TOML file with [base], [grid], [[runs]] and seeds.
        out: folder that receives a folder for each run.
        jobs: runs at a time, each with one thread.
        scheduler: address of a Dask scheduler (tcp://...) whose workers do the work instead.
        only: shell-style pattern of run names; others are left out.
        list_runs: print the names and train nothing.
        trust_run: import `module:function` tasks and models that the specification names.
        quiet: show no progress bar.
        json: print one JSON object instead of a table.
    """
    chosen = [entry for entry in read_spec(spec) if fnmatchcase(entry.name, only)]
    if not chosen:
        raise ValueError(f"only={only!r} matches no run; --list-runs shows the names")
    if list_runs:
        print("\n".join(entry.name for entry in chosen))
        return 0
    with on_cluster(scheduler) if scheduler else nullcontext():
        outcomes = sweep(chosen, out, jobs=jobs, trust=trust_run, progress=progress(quiet=quiet))
    counts = {status: sum(o.status == status for o in outcomes) for status in ("done", "skipped", "failed")}
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if json:
        print_json({"runs": len(outcomes), **counts, "failures": failed})
    else:
        print(f"{len(outcomes)} runs in {out}: " + ", ".join(f"{n} {status}" for status, n in counts.items()))
        if failed:
            print_table({"failed": [o.name for o in failed], "message": [o.message for o in failed]})
    return 1 if failed else 0
