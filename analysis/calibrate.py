"""Renewing the delay predictor: runs to data, data to model, and every number that is quoted of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.calibration import LOCKBOX, Record, collect, load, lockbox, save, shipped
from ..runs.delay_model import file_digest, load_models, to_json
from ..runs.predictors import InverseDecay, LocalRateLaw, LogRatio
from ..runs.sweep import Entry, read_spec
from . import delay_score, delay_validation
from .delay_fit import RECIPES, fit_model

SEEDS = 5
BRANCHES = 8
BRANCHED = (1, 3, 5, 9, 12, 16, 20, 24, 31, 35, 39, 61)
"""Cells whose first run is branched for the noise ceiling; none of them in the lockbox."""


def collect_runs(spec: Path, runs: Path) -> dict[str, Any]:
    """Write the compact data file from a finished sweep, and the delays of its branches if there are any."""
    entries = read_spec(spec)
    records = collect(entries, runs, seeds=SEEDS)
    path = save(records, shipped())
    found: dict[str, Any] = {"file": str(path), "runs": len(records), "bytes": path.stat().st_size}
    delays = branch_delays(entries, runs)
    if delays:
        target = path.with_name("branches.json")
        target.write_text(json.dumps(delays, indent=1) + "\n", encoding="utf-8")
        found |= {"branches": sum(map(len, delays.values()))}
    return found


def branch_runs(spec: Path, runs: Path, *, jobs: int = 1) -> dict[str, Any]:
    """Train the branches from memorization, BRANCHES per cell, `jobs` at a time; finished ones are kept.

    Each continues the cell's first run from the state kept at its information time, with other batches.
    """
    from joblib import Parallel, delayed

    entries = read_spec(spec)
    calls = [(runs, entries[cell - 1], cell, k) for cell in BRANCHED for k in range(1, BRANCHES + 1)]
    Parallel(n_jobs=jobs, batch_size=1)(delayed(_branch)(*call) for call in calls)
    return {"branches": len(calls), "cells": len(BRANCHED)}


def _branch(runs: Path, entry: Entry, cell: int, k: int) -> None:
    from ..runs.branch import branch
    from ..runs.milestones import milestones
    from ..runs.store import Run

    parent = Run.open(runs / entry.name)
    memorized = milestones(parent).memorized
    if memorized is None:
        raise ValueError(f"cell={cell}: its first run did not memorize; branch another cell")
    branch(parent, branch_path(runs, entry, k), at=memorized.confirmed, batch_seed=10_000 * cell + k)


def branch_path(runs: Path, entry: Entry, k: int) -> Path:
    """The folder of branch k of a run, beside the sweep's folder."""
    return runs.with_name(f"{runs.name}-branches") / f"{entry.name}-{k}"


def branch_delays(entries: Sequence[Entry], runs: Path) -> dict[str, list[int | None]]:
    """The delay of each finished branch by parent cell, None where it was cut off."""
    from ..runs.milestones import milestones
    from ..runs.store import Run

    found: dict[str, list[int | None]] = {}
    for cell in BRANCHED:
        paths = [branch_path(runs, entries[cell - 1], k) for k in range(1, BRANCHES + 1)]
        done = [Run.open(path) for path in paths if (path / "run.h5").exists()]
        if done:
            found[str(cell)] = [milestones(run).delay for run in done if run.finished]
    return found


def fit_installed() -> dict[str, Any]:
    """Fit models and baselines to the shipped data outside the lockbox and write them beside it."""
    records = lockbox(load(), opened=False)
    models = [fit_model(records, recipe, calibration=file_digest(shipped())) for recipe in RECIPES]
    folder = shipped().parent
    (folder / "delay_models.json").write_text(to_json(models), encoding="utf-8")
    (folder / "baselines.json").write_text(json.dumps(fit_baselines(records), indent=1) + "\n", "utf-8")
    load_models.cache_clear()
    return {model.name: asdict(model) for model in models}


def fit_baselines(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """The constants of every other predictor, by name."""
    at_risk = [record for record in records if record.at_risk]
    return {
        "inverse_decay": asdict(InverseDecay.fit(at_risk)),
        "inverse_decay_task": asdict(InverseDecay.fit(at_risk, with_task=True)),
        "log_ratio": asdict(LogRatio.fit(at_risk)),
        "local_rate": asdict(LocalRateLaw.fit(at_risk)),
    }


def report(*, open_lockbox: bool = False, figures: Path | None = None) -> dict[str, Any]:
    """Every quoted number by title, recomputed from the shipped data; rows are dataclasses."""
    everything = load()
    records = lockbox(everything, opened=False)
    cells = delay_validation.held_out_cells(records)
    seeds, tasks = delay_validation.held_out_seeds(records), delay_validation.held_out_tasks(records)
    other = [record for record in records if record.fields["task"] != "add"]
    found: dict[str, Any] = {
        "runs": census(everything),
        "held-out cells": delay_score.score(records, cells, reference="model"),
        "held-out seeds": delay_score.score(records, seeds, reference="cell mean and evidence"),
        "held-out tasks": delay_score.score(other, tasks, reference="model"),
        "interval, nested cross-validation": delay_validation.nested_coverage(records),
        "within budget, nested cross-validation": delay_validation.nested_calls(records),
        "necessity": necessity(everything),
    }
    path = shipped().with_name("branches.json")
    if path.exists():
        found["noise ceiling"] = delay_score.noise_ceiling(json.loads(path.read_text("utf-8")))
    if open_lockbox:
        found |= lockbox_report(records, lockbox(everything, opened=True))
    if figures is not None:
        _draw(found, records, cells, figures)
    return found


def lockbox_report(fit: Sequence[Record], test: Sequence[Record]) -> dict[str, Any]:
    """Scores and coverage on the lockbox by what was fitted outside it."""
    predictions = delay_validation.fitted_predictions(fit, delay_score.scored(test))
    model = fit_model(fit, calibration="")
    at_risk = [record for record in test if record.at_risk]
    logs = np.array([model.log_delay(r.evidence.features()) for r in at_risk if r.evidence is not None])
    inside = delay_score.lies_inside(at_risk, logs, model.margin)
    widths = np.full(len(at_risk), model.margin)
    return {
        f"lockbox, {len(LOCKBOX)} cells": delay_score.score(test, predictions, reference="model"),
        "lockbox, interval": delay_score.coverage_of(at_risk, inside, widths),
    }


def census(records: Sequence[Record]) -> str:
    """How many runs there are, and why some are not scored."""
    memorized = [record for record in records if record.milestones.memorized is not None]
    early = sum(not record.at_risk for record in memorized)
    censored = sum(record.delay is None for record in memorized)
    never = len(records) - len(memorized)
    return (
        f"{len(records)} runs in {len({r.cell for r in records})} cells; {never} never memorized, "
        f"{early} generalized before their information time, {censored} not within their budget"
    )


def necessity(records: Sequence[Record]) -> str:
    """The claim V_mem > V_post, checked over all runs that generalized after memorization."""
    kept = [r for r in records if r.delay is not None and r.delay > 0 and r.evidence is not None]
    fell = 0
    for record in kept:
        generalized, known = record.milestones.generalized, record.evidence
        if generalized is not None and known is not None:
            fell += known.norm > record.norm_at(generalized.step)
    return (
        f"V at memorization exceeds V at generalization in {fell} of {len(kept)} runs with a positive delay"
    )


def _draw(
    found: Mapping[str, Any], records: Sequence[Record], cells: Mapping[str, Any], folder: Path
) -> None:
    from .figures.delay import calibration_figures
    from .figures.style import paper, save_figure

    test = delay_score.scored(records)
    actual = np.array([float(record.delay or 0) for record in test])
    ceiling = found.get("noise ceiling")
    with paper("double"):
        drawn = calibration_figures(
            test,
            actual,
            cells["model"],
            found["held-out cells"],
            margin=load_models()[0].margin,
            ceiling=None if ceiling is None else ceiling.mean_log_error,
        )
        for name, figure in drawn.items():
            save_figure(figure, folder / name)
