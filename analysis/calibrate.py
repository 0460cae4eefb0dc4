"""Renewing the delay predictor: runs to data, data to model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..runs.calibration import Record, collect, load, lockbox, save, shipped
from ..runs.delay_model import file_digest, load_models, to_json
from ..runs.predictors import InverseDecay, LocalRateLaw, LogRatio
from ..runs.sweep import Entry, read_spec
from .delay_fit import RECIPES, fit_model
from .parallel import each

Groups = dict[str, list[int | None]]
SEEDS = 5
BRANCHES = 8
BRANCHED = (1, 3, 5, 9, 12, 16, 20, 24, 31, 35, 39, 61)
"""Cells whose first run is branched for the noise ceiling; none of them in the lockbox."""
SOURCED = (12, 31, 40)
"""Cells that delay_sources.toml repeats with one split, and with one initialization."""


def collect_runs(spec: Path, runs: Path) -> dict[str, Any]:
    """Write the compact data file from a finished sweep, and the delays of its branches if there are any."""
    entries = read_spec(spec)
    records = collect(entries, runs, seeds=SEEDS)
    path = save(records, shipped())
    found: dict[str, Any] = {"file": str(path), "runs": len(records), "bytes": path.stat().st_size}
    repeats = branch_delays(entries, runs) | source_delays(spec, runs)
    if repeats:
        path.with_name("repeats.json").write_text(json.dumps(repeats, indent=1) + "\n", encoding="utf-8")
        found |= {name: sum(map(len, groups.values())) for name, groups in repeats.items()}
    return found


def branch_runs(spec: Path, runs: Path, *, jobs: int = 1) -> dict[str, Any]:
    """Train the branches from memorization, BRANCHES per cell, `jobs` at a time; finished ones are kept.

    Each continues the cell's first run from the state kept at its information time, with other batches.
    """
    entries = read_spec(spec)
    calls = [(runs, entries[cell - 1], cell, k) for cell in BRANCHED for k in range(1, BRANCHES + 1)]
    made = sum(1 for _ in each(_branch, calls, jobs=jobs))
    return {"branches": made, "cells": len(BRANCHED)}


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


def branch_delays(entries: Sequence[Entry], runs: Path) -> dict[str, Groups]:
    """The delays of finished branches by parent cell, None for one that was cut off."""
    found: Groups = {}
    for cell in BRANCHED:
        paths = [branch_path(runs, entries[cell - 1], k) for k in range(1, BRANCHES + 1)]
        found[str(cell)] = _delays(paths)
    known = {cell: delays for cell, delays in found.items() if delays}
    return {"batches": known} if known else {}


def source_delays(spec: Path, runs: Path) -> dict[str, Groups]:
    """The delays of the sweep `delay_sources.toml` beside `spec`, by what its runs do not share.

    A group is named by what its runs share: the seed of their split or of their initialization.
    """
    sources, home = spec.with_name("delay_sources.toml"), runs.with_name(f"{runs.name}-sources")
    if not home.exists():
        return {}
    found: dict[str, Groups] = {"initializations": {}, "splits": {}}
    for entry in read_spec(sources):
        shared = entry.config.split_seed
        differs = "splits" if shared == entry.config.seed else "initializations"
        seed = entry.config.init_seed if differs == "splits" else shared
        found[differs].setdefault(str(seed), []).extend(_delays([home / entry.name]))
    return found


def _delays(paths: Sequence[Path]) -> list[int | None]:
    from ..runs.milestones import milestones
    from ..runs.store import Run

    done = [Run.open(path) for path in paths if (path / "run.h5").exists()]
    return [milestones(run).delay for run in done if run.finished]


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
