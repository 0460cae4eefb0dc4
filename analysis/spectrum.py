"""Curvature of the loss along a run, and whether a spectral gate opens before it generalizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..geometry.operators import hessian_operator
from ..geometry.parameters import Matrix, ParameterTable
from ..geometry.probe import require_deterministic
from ..geometry.spectrum import spectral_density
from ..runs.milestones import milestones
from ..runs.streams import generator
from .brief import brief
from .edge import clipped_fractions, edge_of, optimizer_of, with_moments
from .gate import gate_opening
from .objectives import aligned
from .result import walk
from .rows import Progress, identity
from .snapshots import at_most
from .spectrum_row import CEILINGS, Question, SpectrumOptions

if TYPE_CHECKING:
    from ..geometry.objective import Objective
    from ..runs.store import Run

Array = NDArray[np.float64]
COUNT = 10
GATES = ("adaptive edge", "adaptive edge, batches", *(f"paper, {name}" for name in CEILINGS))


@dataclass(frozen=True)
class SpectrumCurve:
    """Extreme curvature of the full training loss at the snapshots `steps`, each value with its evidence.

    The loss has no weight-decay term. Columns of `residuals`, `converged`, `extremal` and `edges` are those
    of `largest`, then of `smallest`; see `geometry.eigenpairs.Eigenpairs` for what they prove. The lower end
    is dense, and converges in hundreds of products only: λ_min lies between `smallest` and its edge all the
    same. Nothing below `roundoff` is resolved. Ratios of curvature to ceiling are `gates`; the first, in
    `gate` too, is primary, all others are exploratory.
    """

    KIND: ClassVar[str] = "spectrum"
    REVISION: ClassVar[int] = 1

    __repr__ = brief

    steps: NDArray[np.int64]  # (S,)
    largest: Array  # (S, k) descending
    smallest: Array  # (S, j) ascending
    residuals: Array  # (S, k + j)
    converged: NDArray[np.bool_]  # (S, k + j)
    extremal: NDArray[np.bool_]  # (S, k + j)
    edges: Array  # (S, k + j) 95 % limits
    bound: Array  # (S,) Kuczyński-Woźniakowski gap of both ends, relative to λ_max − λ_min
    roundoff: Array  # (S,)
    trace: Array  # (S,)
    trace_stderr: Array  # (S,)
    squared_norm: Array  # (S,) ‖θ‖²
    scale_aware: Array  # (S,) λ_max(D H D), D = diag|θ|
    scale_aware_residual: Array
    scale_aware_edge: Array
    scale_aware_extremal: NDArray[np.bool_]
    matrices: tuple[str, ...]  # M
    matrix_scale_aware: Array  # (S, M) ‖W‖² λ_max(H_WW); its evidence is scaled alike
    matrix_scale_aware_residual: Array
    matrix_scale_aware_edge: Array
    matrix_scale_aware_extremal: NDArray[np.bool_]
    gauss_newton: Array  # (S,) λ_max(G) of H = G + R
    gauss_newton_residual: Array
    gauss_newton_edge: Array
    gauss_newton_extremal: NDArray[np.bool_]
    gauss_newton_along: Array  # (S,) uᵀGu for the top eigenvector u of H; uᵀRu is largest[:, 0] less this
    batch_sharpness: Array  # (S,) mean of gᵀHg/‖g‖² over batches
    batch_sharpness_stderr: Array
    preconditioned: Array  # (S,) λ_max(P⁻¹H) with Adam's own P; NaN where it is not stored
    preconditioned_residual: Array
    preconditioned_edge: Array
    preconditioned_extremal: NDArray[np.bool_]
    preconditioned_batch_sharpness: Array
    preconditioned_batch_sharpness_stderr: Array
    gate: Array  # (S,) curvature over the optimizer's own edge: the primary gate
    gates: Array  # (S, G) the same, and the other definitions
    gate_names: tuple[str, ...]  # G
    gate_verdicts: tuple[str, ...]  # G
    gate_closed: NDArray[np.int64]  # (G,) last closed snapshot before the opening, -1 for none
    gate_opened: NDArray[np.int64]  # (G,) first open snapshot at or after memorization, -1 for none
    since_memorized: Array  # (G,) steps from memorization to the opening
    before_generalized: Array  # (G,) steps from the opening to generalization
    edge: float  # curvature at which the optimizer loses stability, full batch, unclipped
    edge_rule: str
    ceilings: Array  # (S, 4) of the paper's gate, by CEILINGS
    clipped: Array  # (S,) share of logged steps with clipped gradients since the snapshot before
    density_steps: NDArray[np.int64]  # (D,)
    density_nodes: Array  # (D, probes, m)
    density_weights: Array  # (D, probes, m)
    matvecs: NDArray[np.int64]  # (S,) products of H or G
    num_samples: int
    data: str
    tolerance: float


def spectrum_along(
    run: Run,
    *,
    objective: Objective | None = None,
    snapshots: Sequence[int] | NDArray[np.int64] | None = None,
    matrices: str | Sequence[str] = "heaviest",
    density_nodes: int = 20,
    density_probes: int = 2,
    name: str | None = None,
    directory: str | Path | None = None,
    progress: Progress = identity,
    jobs: int = 1,
    **options: Any,
) -> SpectrumCurve:
    """The spectrum at snapshots of a run (indices; by default ten, spread over those with second moments).

    `options` are the fields of `SpectrumOptions`: numbers of pairs at both ends, tolerance, budget of
    products. Every problem starts at random, with `warm` mixed with the pairs of the snapshot before, which
    saves little where the proof of the end is what costs (see `lanczos`): none on the default run.
    `matrices` are those that get ‖W‖² λ_max(H_WW), by name pattern or group: `heaviest` is the one with the
    largest norm at the first snapshot, `all` costs about ten products for each. The density is taken before
    memorization, midway to generalization and at the end, from density_probes·density_nodes products each (0:
    none). In all about 70 products a snapshot. `objective` is needed for a run without a configuration.

    Raises:
        ValueError: the loss is no function of theta (the message says why), or an option is out of bounds.
    """
    settings = SpectrumOptions(**options)
    objective = _objective(run, settings) if objective is None else aligned(objective, run.table)
    chosen = _snapshots(run) if snapshots is None else np.unique(np.asarray(snapshots, dtype=np.int64))
    first = _theta(run, int(chosen[0]), settings)
    require_deterministic(objective, first)
    picked = _matrices(run.table, first.numpy(), matrices)
    optimizer = optimizer_of(run)
    question = Question(run, objective, settings, optimizer, edge_of(optimizer), picked)
    named = {
        **asdict(settings),
        "matrices": [matrix.name for matrix in picked],
        "loss": objective.description,
    }
    rows = walk(
        run,
        chosen,
        question,
        kind=SpectrumCurve.KIND,
        options=named,
        revision=SpectrumCurve.REVISION,
        name=name,
        directory=directory,
        progress=progress,
        jobs=jobs,
    )
    found: dict[str, Any] = {**rows, **_gates(run, run.steps[chosen], rows)}
    found |= _density(run, objective, settings, chosen, density_probes, density_nodes, progress)
    found.pop("batch_gate")
    return SpectrumCurve(
        steps=run.steps[chosen],
        **found,
        matrices=tuple(matrix.name for matrix in picked),
        edge=question.edge.value,
        edge_rule=question.edge.rule,
        clipped=clipped_fractions(run, run.steps[chosen]),
        num_samples=objective.num_samples,
        data="training samples" if run.config is not None else objective.description,
        tolerance=settings.tolerance,
    )


def _objective(run: Run, settings: SpectrumOptions) -> Objective:
    from ..runs.rebuild import rebuild

    return rebuild(run, dtype=None if settings.dtype is None else getattr(torch, settings.dtype))


def _theta(run: Run, index: int, settings: SpectrumOptions) -> torch.Tensor:
    theta = torch.from_numpy(run.theta(index))
    return theta if settings.dtype is None else theta.to(getattr(torch, settings.dtype))


def _snapshots(run: Run) -> NDArray[np.int64]:
    return with_moments(run, at_most(run, COUNT))


def _matrices(table: ParameterTable, theta: NDArray[Any], chosen: str | Sequence[str]) -> tuple[Matrix, ...]:
    """The matrices asked for: all that begin within the named groups or patterns."""
    known = table.matrices()
    if not known or not chosen:
        return ()
    if chosen == "all":
        return known
    if chosen == "heaviest":
        norms = [np.linalg.norm(theta[m.start : m.start + m.rows * m.columns]) for m in known]
        return (known[int(np.argmax(norms))],)
    coords = table.select(chosen)
    return tuple(matrix for matrix in known if matrix.start in coords)


def _gates(run: Run, steps: NDArray[np.int64], rows: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """All gate ratios (S, G), and when each gate opens."""
    paper = rows["largest"][:, :1] / rows["ceilings"]
    gates = np.column_stack([rows["gate"], rows["batch_gate"], paper])
    marks = milestones(run)
    memorized = None if marks.memorized is None else marks.memorized.step
    openings = [gate_opening(steps, ratios, memorized) for ratios in gates.T]
    opened = np.array([opening.opened for opening in openings])
    known = np.where(opened < 0, np.nan, opened)
    return {
        "gates": gates,
        "gate_names": GATES,
        "gate_verdicts": tuple(opening.verdict for opening in openings),
        "gate_closed": np.array([opening.closed for opening in openings]),
        "gate_opened": opened,
        "since_memorized": known - (np.nan if memorized is None else memorized),
        "before_generalized": (np.nan if marks.generalized is None else marks.generalized.step) - known,
    }


def _density(
    run: Run,
    objective: Objective,
    settings: SpectrumOptions,
    chosen: NDArray[np.int64],
    probes: int,
    nodes: int,
    progress: Progress,
) -> dict[str, Any]:
    """Spectral densities before memorization, on the plateau and at the end (or first, middle, last)."""
    moments = _moments(run, chosen) if probes and nodes else chosen[:0]
    found = [
        spectral_density(
            hessian_operator(objective, _theta(run, int(index), settings)),
            probes=probes,
            nodes=nodes,
            generator=generator(settings.seed, "probes", len(run.steps) + int(index)),
        )
        for index in progress(moments, description="density", total=len(moments))
    ]
    return {
        "density_steps": run.steps[moments],
        "density_nodes": np.array([density.nodes for density in found]),
        "density_weights": np.array([density.weights for density in found]),
    }


def _moments(run: Run, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    steps, marks = run.steps[chosen], milestones(run)
    if marks.memorized is None or marks.generalized is None:
        return np.unique(chosen[[0, len(chosen) // 2, -1]])
    middle = (marks.memorized.step + marks.generalized.step) / 2
    early = np.flatnonzero(steps < marks.memorized.step)
    before = int(early[len(early) // 2]) if len(early) else 0
    return np.unique(chosen[[before, int(abs(steps - middle).argmin()), -1]])
