"""`grokscope rank`: which signals tell early whether a run will generalize, on one set of runs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from ...runs.store import Run
from ..early_warning import SOURCES, against_controls, analysis_readings, base_readings, setting, user_reading
from ..early_warning_page import page
from ..parallel import each
from ..signals import Outcome, Reading, SignalScores, outcome, score_signals
from .bar import Progress, progress
from .output import print_json, print_table


def command(
    directory: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    controls: Path | None = None,
    signal: tuple[str, ...] = (),
    analyses: tuple[str, ...] = tuple(SOURCES),
    draws: int = 4999,
    jobs: int = 1,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Rank signals by how early they tell the runs below DIRECTORY that generalize from those that don't.

    The runs of a cell differ in their seeds only; make them with
    `grokscope sweep docs/configs/sweeps/early_warning.toml --out DIRECTORY`. A signal is read at 1, 1.5 and
    2 times the memorization time. What counts beside its own AUC is the increment over train loss, gradient
    norm and squared norm together. What an analysis finds at these snapshots is kept beside each run.

    Args:
        directory: folder of the runs.
        controls: folder of runs on random labels, a second contrast.
        signal: your own signals: module:function, called with each Run, returns (steps, values); or a folder
            with <run>.csv (columns step, value) or <run>.npz (steps, values) for each run.
        analyses: the analyses whose signals are ranked.
        draws: permutations, and bootstrap samples.
        jobs: runs analyzed at a time.
        out: markdown file for the whole table.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    show = progress(quiet=quiet)
    runs, others = _runs(directory), [] if controls is None else _runs(controls)
    columns = _all(runs, directory, analyses, signal, jobs, show)
    outcomes = [outcome(run) for run in runs]
    scores = score_signals(outcomes, columns, draws=draws)
    control = np.full(scores.auc.shape, np.nan)
    if others and controls is not None:
        beside = _all(others, controls, analyses, signal, jobs, show, control=True)
        settings, theirs = ([setting(run) for run in group] for group in (runs, others))
        control_outcomes = [outcome(run) for run in others]
        control = np.array(
            [
                against_controls(columns[n], outcomes, settings, beside[n], control_outcomes, theirs)
                if n in beside
                else np.full(len(scores.landmarks), np.nan)
                for n in scores.names
            ]
        )
    if out is not None:
        out.write_text(page(scores, outcomes, control, words=_words(signal, analyses)), encoding="utf-8")
    if json:
        print_json(scores, control_auc=control, runs=len(runs), controls=len(others))
    else:
        _show(scores, outcomes, control)
    return 0


def _runs(directory: Path) -> list[Run]:
    found = [Run.open(path.parent) for path in sorted(directory.rglob("run.h5"))]
    if not found:
        raise ValueError(f"directory={str(directory)!r} holds no run; give a folder with runs below it")
    unfinished = [run for run in found if not run.finished]
    if unfinished:
        raise ValueError(f"run={str(unfinished[0].path)!r} is not finished; run the sweep again")
    return found


def _all(
    runs: list[Run],
    folder: Path,
    analyses: tuple[str, ...],
    signal: tuple[str, ...],
    jobs: int,
    show: Progress,
    *,
    control: bool = False,
) -> dict[str, list[Reading]]:
    """Readings by signal, one per run."""
    rows = each(_one, ((run.path, folder, analyses, signal, control) for run in runs), jobs=jobs)
    found = list(show(rows, description="runs", total=len(runs)))
    return {name: [row[name] for row in found] for name in found[0]}


def _one(
    path: Path, folder: Path, analyses: tuple[str, ...], signal: tuple[str, ...], control: bool
) -> dict[str, Reading]:
    run = Run.open(path)
    found = base_readings(run)
    for kind in analyses:
        try:
            found |= analysis_readings(run, kind)
        except ValueError:
            if not control or kind not in SOURCES:  # some know no random labels
                raise
    return found | {name: user_reading(run, name, folder) for name in signal}


def _show(scores: SignalScores, outcomes: list[Outcome], control: Any) -> None:
    generalized = sum(one.generalized is not None for one in outcomes)
    print(
        f"{len(outcomes)} runs in {len({one.cell for one in outcomes})} cells, {generalized} generalize; "
        f"bootstrap over {scores.resampled}, p by permutation, Holm over {scores.auc.size} tests"
    )
    order = np.argsort(-np.abs(np.nan_to_num(scores.increment[:, -1])))
    for k, multiple in enumerate(scores.landmarks):
        table: dict[str, Any] = {"signal": [scores.names[i] for i in order]}
        for field in fields(scores):
            values = getattr(scores, field.name)
            if isinstance(values, np.ndarray) and values.shape == scores.auc.shape:
                table[field.name.replace("_", " ")] = [values[i, k].item() for i in order]
        if np.isfinite(control).any():
            table["against random labels"] = [float(control[i, k]) for i in order]
        print_table(table, title=f"\nat {multiple:g} times the memorization time")


def _words(signal: tuple[str, ...], analyses: tuple[str, ...]) -> str:
    chosen = "" if analyses == tuple(SOURCES) else f" --analyses {' '.join(analyses)}"
    return chosen + "".join(f" --signal {name}" for name in signal)
