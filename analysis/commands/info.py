"""`grokscope info`: what a run is, how far it got, and its milestones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro

from ...runs.milestones import Crossing, milestones
from ...runs.store import Run
from ...runs.verify import info
from .output import cell, print_json


def command(run: Annotated[Path, tyro.conf.Positional], /, *, json: bool = False) -> int:
    """Show the facts about a run: size, steps, milestones, hash, configuration.

    Args:
        run: folder of the run.
        json: print one JSON object.
    """
    found = facts(Run.open(run))
    if json:
        print_json(found)
        return 0
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name.ljust(width)}  {_line(value)}")
    return 0


def facts(run: Run) -> dict[str, Any]:
    """What `info` knows of a run, with its milestones.

    `memorized` and `generalized` are the steps of the sustained crossings (None: not reached); their
    intervals and confirmation steps stand in `milestones`, with the first crossings and the budget.
    """
    found = milestones(run)
    return info(run) | {
        "memorized": _step(found.memorized),
        "generalized": _step(found.generalized),
        "delay": found.delay,
        "milestones": {
            "memorized": found.memorized,
            "generalized": found.generalized,
            "first_memorized": found.first_memorized,
            "first_generalized": found.first_generalized,
            "budget": found.budget,
        },
    }


def _step(crossing: Crossing | None) -> int | None:
    return None if crossing is None else crossing.step


def _line(value: Any) -> str:
    if isinstance(value, Crossing):
        return f"after {cell(value.below)}, by {value.step}, confirmed at {value.confirmed}"
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_line(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "-"
    return cell(value)
