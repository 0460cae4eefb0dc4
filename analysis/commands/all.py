"""`grokscope analyze all`: every analysis, one after the other."""

from __future__ import annotations

import contextlib
import io
import json as text
import os
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import tyro

from ...runs.store import Run
from .main import ANALYSES, available
from .output import print_json


def command(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Run every analysis that applies, with its default options; one that fails doesn't stop the others.

    Exit code 1 if one failed.

    Args:
        run: folder of the run.
        out: folder of the results; by default the run's.
        json: print one JSON object, with one entry per analysis.
        quiet: show no progress bar.
    """
    opened = Run.open(run)  # a folder without a run is wrong input, not nine failures
    found: dict[str, Any] = {}
    failed = {}
    for name in available(ANALYSES):
        if name == "all" or not _applies(name, opened):
            continue
        try:
            found[name] = _one(name, run, {"out": out, "json": json, "quiet": quiet})
        except Exception as error:
            if os.environ.get("GROKSCOPE_TRACEBACK"):
                raise
            failed[name] = str(error)
            print(f"grokscope: analyze {name} failed: {error}", file=sys.stderr)
    if json:
        print_json({**found, "failed": failed})
    return 1 if failed else 0


def _applies(name: str, run: Run) -> bool:
    """Whether an analysis makes sense for a run; those of some tasks only have a function that says so."""
    module = import_module(f".{name}", __package__)
    return bool(module.applies(run)) if hasattr(module, "applies") else True


def _one(name: str, run: Path, options: dict[str, Any]) -> Any:
    """Run one analysis: its JSON object, or None if it printed a table.

    Raises:
        RuntimeError: it ended with another exit code than 0.
    """
    command = import_module(f".{name}", __package__).command
    known = {key: value for key, value in options.items() if key in signature(command).parameters}
    printed = io.StringIO()
    if not options["json"]:
        print(f"== {name}", flush=True)
    with contextlib.redirect_stdout(printed) if options["json"] else contextlib.nullcontext():
        code = command(run, **known)
    if code:
        raise RuntimeError(f"exit code {code}")
    return text.loads(printed.getvalue()) if options["json"] else None
