"""What the execution-manifold study measures of single runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...geometry.commutator import commutator
from ...geometry.finite_commutator import finite_commutator
from ...geometry.inside import inside_basis
from ...runs.branch import branch
from ...runs.interventions import disturbance
from ...runs.milestones import milestones
from ...runs.rebuild import rebuild
from ...runs.store import Run
from ...runs.streams import generator
from ..trajectory import trajectory_along

Array = NDArray[np.float64]

DIRECTIONS: dict[str, Any] = {
    "kind": "project_gradient",
    "directions": "trajectory",
    "parameters": "attention",
    "rank": 2,
}
KICK = 0.015
ARMS: Mapping[str, Mapping[str, Any]] = {
    "other batches": {},
    "s = 1": {**DIRECTIONS},
    "s = 1, random in the same matrices": {**DIRECTIONS, "directions": "matched"},
    "s = 1, decay frozen": {**DIRECTIONS, "freeze_decay": True},
    "s = 1, in the matrices only": {**DIRECTIONS, "scope": "matrices"},
    "s = .75": {**DIRECTIONS, "strength": 0.75},
    "s = .75, random directions": {**DIRECTIONS, "directions": "random", "strength": 0.75},
    "update, s = .75": {**DIRECTIONS, "kind": "project_update", "strength": 0.75},
    "kick": {"kind": "kick", "displacement": KICK, "push": "commutator"},
    "kick, random": {"kind": "kick", "displacement": KICK, "directions": "matched"},
}
"""Branches of one run from the same state; the first shows what another batch order alone does."""


class Component(NamedTuple):
    """First components of a run's attention matrices, and what nulls give."""

    explained: float  # mean over matrices
    walk: float  # a random walk with the same step lengths, mean over matrices
    without_decay: float  # of all parameters, after e^{-ηλt} θ_0 is taken off
    share_of_decay: float  # variance of e^{-ηλt} θ_0 over that of the whole trajectory


def first_components(path: Path) -> Component:
    """PC1 of each attention matrix by the paper's definition: even snapshots up to generalization."""
    run = Run.open(path)
    end = generalized(run, 0.98)
    end = run.steps[-1] if np.isnan(end) else end
    spacing = int(np.diff(run.steps).max())
    rows = np.flatnonzero((run.steps <= end) & (run.steps % spacing == 0))
    found = trajectory_along(run, snapshots=rows, rank=1, weighting="equal")
    inside = [k for k, name in enumerate(found.matrices) if _is_attention(name)]
    return Component(
        float(found.matrix_explained[inside, 0].mean()),
        float(found.matrix_null[inside, 0].mean()),
        float(found.without_decay[0]),
        float(found.decay_share),
    )


def initial_defects(path: Path, *, pairs: int = 9) -> tuple[float, float]:
    """Median float32 defect at the first snapshot as published, and the median exact one."""
    run = Run.open(path)
    objective, theta = rebuild(run), torch.from_numpy(run.theta(0))
    double, exactly = rebuild(run, dtype=torch.float64), theta.double()
    single, exact = [], []
    for a, b in _pairs(run, 0, pairs, objective.num_samples):
        single.append(finite_commutator(objective.on(a), objective.on(b), theta, step_size=1e-3).defect)
    for a, b in _pairs(run, 0, 3, objective.num_samples):
        exact.append(commutator(double.on(a), double.on(b), exactly).defect)
    return float(np.median(single)), float(np.median(exact))


def orthogonality(path: Path, other: Path, *, points: int = 6) -> Array:
    """(points, 4): ρ, and energy inside over k/P: of the run's directions, of the null, of another seed's."""
    run = Run.open(path)
    basis, stranger = _directions(run), _directions(Run.open(other))
    objective = rebuild(run)
    end = generalized(run, 0.98)
    known = np.flatnonzero(run.steps <= (run.steps[-1] if np.isnan(end) else end))
    found = []
    for row in known[np.unique(np.linspace(1, len(known) - 1, points).round().astype(int))]:
        theta = torch.from_numpy(run.theta(int(row)))
        ((a, b),) = _pairs(run, int(run.steps[row]), 1, objective.num_samples)
        bracket = commutator(objective.on(a), objective.on(b), theta).vector.double().numpy()
        own, theirs = (inside_basis(bracket, rows, run.table) for rows in (basis, stranger))
        found.append(
            (
                np.sqrt(1 - own.fraction),
                own.fraction / own.chance,
                own.null / own.chance,
                theirs.fraction / theirs.chance,
            )
        )
    return np.array(found)


def intervened(parent: Path, name: str, at: int, steps: int, home: Path) -> tuple[float, float]:
    """Generalization step of one arm (nan for none) and its dose, see `dose`; its run is kept in `home`."""
    run, changes = Run.open(parent), dict(ARMS[name])
    folder = home / f"{parent.name}-{''.join(c if c.isalnum() else '-' for c in name)}"
    if (folder / "run.h5").exists() and Run.open(folder).finished:
        return generalized(Run.open(folder), 0.98), dose(Run.open(folder), run, at)
    settings: dict[str, Any] = {"steps": steps, "snapshot_every": steps}
    if changes:
        settings["intervention"] = {"start": at, **changes}
    seed = None if changes or run.config is None else run.config.seed + 10_000
    found = branch(run, folder, at=at, changes=settings, batch_seed=seed)
    return generalized(found, 0.98), dose(found, run, at)


def dose(arm: Run, parent: Run, at: int, *, window: int = 200) -> float:
    """Mean displacement ‖Δθ‖ per step in the window after the branch, over that of the parent."""
    lengths = []
    for run in (arm, parent):
        steps, values = run.metrics["update_norm"]
        lengths.append(float(np.mean(values[(steps > at) & (steps <= at + window)])))
    return lengths[0] / lengths[1]


def generalized(run: Run, threshold: float) -> float:
    """First step at which the test accuracy was reached for good; nan for none."""
    found = milestones(run, threshold=threshold).generalized
    return np.nan if found is None else float(found.step)


def _directions(run: Run) -> Array:
    assert run.config is not None
    config = replace(run.config, intervention={**DIRECTIONS, "start": 0})
    found, _ = disturbance(config, run.table, parent={"path": str(run.path)})
    assert found is not None
    return found.basis.double().numpy()


def _pairs(run: Run, step: int, count: int, total: int) -> list[tuple[Any, Any]]:
    assert run.config is not None
    size = total // 2 if run.config.batch_size == "full" else run.config.batch_size
    stream = generator(run.config.seed, "probes", step)
    picks = torch.randint(total, (count, 2, size), generator=stream)
    return [(a, b) for a, b in picks]


def _is_attention(name: str) -> bool:
    return "attn" in name or "attention" in name
