"""`grokscope compare`: two runs, or two folders of runs, against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ..compare import Comparison, Interval, compare
from .output import cell, print_json, print_table


def command(
    a: Annotated[Path, tyro.conf.Positional],
    b: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    confidence: float = 0.95,
    json: bool = False,
) -> int:
    """Show paired differences B - A of milestones and last metrics, with intervals.

    Runs are paired by the fields that vary within A or B, seeds among them.

    Args:
        a: a run, or a folder with runs below it.
        b: the same.
        confidence: of the intervals.
        json: print one JSON object.
    """
    found = compare(a, b, confidence=confidence)
    if json:
        print_json(found)
    else:
        _show(found)
    return 0


def _show(found: Comparison) -> None:
    for name, (one, other) in found.settings.items():
        print(f"{name}: {one} in A, {other} in B")
    print(f"{len(found.pairs)} pairs, {found.identical} of them identical at every common step")
    if len(found.pairs) == 1 and found.parted[0] is not None:
        print(f"the first common step at which they differ is {found.parted[0]}")
    for side, names in (("A", found.unpaired_a), ("B", found.unpaired_b)):
        if names:
            print(f"without a partner in {side}: {', '.join(names)}")
    rows = found.differences
    print_table(
        {
            "quantity": [row.quantity for row in rows],
            "pairs": [row.pairs for row in rows],
            "cells": [row.cells for row in rows],
            "only A": [row.only_a for row in rows],
            "only B": [row.only_b for row in rows],
            "mean A": [row.mean_a for row in rows],
            "mean B": [row.mean_b for row in rows],
            f"B - A ({found.confidence:.0%})": [_spelled(row.difference) for row in rows],
            f"B / A ({found.confidence:.0%})": [_spelled(row.ratio) for row in rows],
            "p (Holm)": [row.p_holm for row in rows],
        }
    )


def _spelled(value: Interval | float | None) -> str:
    if isinstance(value, Interval):
        return f"{cell(value.mean)} [{cell(value.low)}, {cell(value.high)}]"
    return cell(value)
