"""`grokscope lead`: how far onsets of the commutator lead generalization, over runs and with nulls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

from ...runs.store import Run
from ..commutator import CommutatorCurve
from ..lead_time import (
    THRESHOLD,
    Course,
    LeadTime,
    calibrate,
    course,
    lead_times,
    onset_curve,
    published_alarms,
)
from ..lead_time_page import page
from ..parallel import each
from .bar import Progress, progress
from .output import print_json, print_table

T = TypeVar("T")


def command(
    directory: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    calibration: bool = False,
    rate: float = 0.05,
    jobs: int = 1,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Onsets of the commutator over the runs below DIRECTORY: power law, constant-onset null, regression.

    Make runs over learning rates with `grokscope sweep docs/configs/sweeps/lead_time.toml --out DIRECTORY`.
    The commutators of each run are kept beside it.

    Args:
        directory: folder of the runs.
        calibration: the runs cannot generalize: find the factor that each exact signal needs for an onset.
        rate: bound on the false alarms that the factor leaves.
        jobs: runs analyzed at a time.
        out: markdown file for the tables.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    show = progress(quiet=quiet)
    paths = sorted(path.parent for path in directory.rglob("run.h5"))
    if not paths:
        raise ValueError(f"directory={str(directory)!r} holds no run; give a folder with runs below it")
    if calibration:
        curves = _read(_curve, paths, jobs, show)
        factors, alarms = calibrate(curves, rate=rate), published_alarms(curves)
        if json:
            print_json({"factors": [asdict(one) for one in factors], "published_alarms": alarms})
        else:
            names = list(asdict(factors[0]))
            print_table({name: [getattr(one, name) for one in factors] for name in names})
            print(f"the published rule sounds in {alarms} of {len(curves)} controls")
        return 0
    courses = _read(_course, paths, jobs, show)
    found = lead_times(courses)
    if out is not None:
        out.write_text(page(found, courses), encoding="utf-8")
    if json:
        print_json({"rules": [asdict(one) for one in found], "runs": [asdict(one) for one in courses]})
    else:
        _show(found)
    return 0


def _read(work: Callable[[Path], T], paths: list[Path], jobs: int, show: Progress) -> list[T]:
    rows = each(work, ((path,) for path in paths), jobs=jobs)
    return list(show(rows, description="runs", total=len(paths)))


def _curve(path: Path) -> CommutatorCurve:
    return onset_curve(_opened(path))


def _course(path: Path) -> Course:
    return course(_opened(path))


def _opened(path: Path) -> Run:
    run = Run.open(path)
    if not run.finished:
        raise ValueError(f"run={str(path)!r} is not finished; run the sweep again")
    return run


def _show(found: tuple[LeadTime, ...]) -> None:
    laws, within = [one.law for one in found], [one.within for one in found]
    print_table(
        {
            "onset": [one.rule for one in found],
            "leads": [f"{one.leads} of {one.runs}" for one in found],
            "exponent": [None if law is None else law.exponent for law in laws],
            "R²": [None if law is None else law.r_squared for law in laws],
            "null exponent": [None if law is None else law.null_exponent for law in laws],
            "null R²": [None if law is None else law.null_r_squared for law in laws],
            "onset on t": [None if law is None else law.onset_slope for law in laws],
            "within cells": [None if fit is None else fit.slope for fit in within],
            "low": [None if fit is None else fit.low for fit in within],
            "high": [None if fit is None else fit.high for fit in within],
            "shuffled low": [one.shuffled[0] for one in found],
            "shuffled high": [one.shuffled[1] for one in found],
        },
        title=f"leads to test accuracy {THRESHOLD:g}; within cells 0 is the null, 1 a fixed fraction of t",
    )
