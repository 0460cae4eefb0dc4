"""`grokscope table`: one row per run below a folder."""

from __future__ import annotations

import csv as comma_separated
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from ...runs.sweep import Summary, summarize, varying
from .output import print_json, print_table

_MEASURED = ("last_step", "finished", "memorized", "generalized", "delay")
_FINAL = ("train_loss", "test_loss", "squared_norm")


def command(
    directory: Annotated[Path, tyro.conf.Positional], /, *, csv: bool = False, json: bool = False
) -> int:
    """Show what varies between the runs below DIRECTORY and what came out of each.

    Columns: the fields of the configuration that differ, milestones and their delay in steps (`-`: not
    reached), and the last logged losses and squared norm.

    Args:
        directory: folder that holds runs at any depth.
        csv: print comma-separated values instead of a table.
        json: print one JSON object instead of a table.
    """
    rows = summarize(directory)
    columns = _columns(rows)
    if json:
        print_json({"columns": list(columns), "rows": list(zip(*columns.values(), strict=True))})
    elif csv:
        writer = comma_separated.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(
            [["" if v is None else v for v in row] for row in zip(*columns.values(), strict=True)]
        )
    else:
        print_table(columns)
    return 0


def _columns(rows: tuple[Summary, ...]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"run": [row.name for row in rows]}
    for name in varying([row.config for row in rows]):
        columns[name] = [getattr(row.config, name, None) for row in rows]
    columns |= {name: [getattr(row, name) for row in rows] for name in _MEASURED}
    columns |= {name: [row.final.get(name) for row in rows] for name in _FINAL}
    if any(row.problem for row in rows):
        columns["problem"] = [row.problem or None for row in rows]
    return columns
