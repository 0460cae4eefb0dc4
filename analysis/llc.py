"""Local learning coefficients along a run, each with its evidence and beside what the Hessian explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..geometry.llc import default_num_beta
from ..geometry.llc_calibration import Calibration, affordable_localization
from ..geometry.llc_null import quadratic_null
from ..geometry.spectrum import SpectralDensity
from .brief import brief
from .llc_row import Densities, LLCOptions, Question, calibrated, estimate
from .result import walk
from .rows import Progress, identity
from .snapshots import at_most

if TYPE_CHECKING:
    from ..geometry.objective import Objective
    from ..runs.store import Run

Array = NDArray[np.float64]
COUNT = 8
FACTORS = (0.25, 1.0, 4.0)  # of step size and localization in the sensitivity panel


@dataclass(frozen=True)
class LLCCurve:
    """λ̂ at the snapshots `steps`, on the training data; see `geometry.llc.LLC` for each quantity.

    One set of hyperparameters serves the whole trajectory (`mode` 'snapshot': one each), so that values
    compare. A snapshot of a run with weight decay is no minimum: `tilted` is what its curvature says,
    `drift` what the published `llc` adds by walking downhill, `excess` what tilted chains know beyond
    the Hessian (`quadratic`). `scaled_*` are at the γ that keeps γ‖θ‖²/P = `scale` as the norm changes.
    """

    KIND: ClassVar[str] = "llc"
    REVISION: ClassVar[int] = 2

    __repr__ = brief

    steps: NDArray[np.int64]  # (S,)
    llc: Array  # (S,) as published
    stderr: Array  # (S,)
    tilted: Array  # (S,)
    tilted_stderr: Array  # (S,)
    drift: Array  # (S,) llc − tilted
    drift_stderr: Array  # (S,)
    quadratic: Array  # (S,) λ_quad; NaN where a direction has no local law
    quadratic_stderr: Array  # (S,)
    excess: Array  # (S,) tilted − quadratic
    excess_stderr: Array  # (S,)
    rhat: Array  # (S,)
    ess: Array  # (S,) of the worse half
    verdict: tuple[str, ...]  # S: ok, suspect or invalid
    reason: tuple[str, ...]  # S
    num_beta: float
    localization: Array  # (S,) γ
    step_size: Array  # (S,) ε
    burn_in: NDArray[np.int64]  # (S,)
    num_chains: int
    num_draws: int
    batch_size: int
    method: str
    averaged_noise: bool
    loss: Array  # (S,) L_n(w*), exact
    gradient_norm: Array  # (S,)
    squared_norm: Array  # (S,) ‖θ‖²
    distance: Array  # (S,) root mean square ‖w − w*‖
    radius: Array  # (S,) sqrt(P/γ)
    failed_chains: NDArray[np.int64]  # (S,)
    noise_share: Array  # (S,)
    energy_error: Array  # (S,) first-order part of λ̂ that step size and minibatches add
    relaxation: Array  # (S,) steps
    smallest_curvature: Array  # (S,)
    largest_curvature: Array  # (S,)
    scale: float  # γ‖θ‖²/P of the scaled estimates
    scaled_llc: Array  # (S,) as published; empty if not asked for, likewise below
    scaled_stderr: Array
    scaled_quadratic: Array
    scaled_quadratic_stderr: Array
    scaled_rhat: Array
    scaled_ess: Array
    scaled_verdict: tuple[str, ...]
    scaled_reason: tuple[str, ...]
    scaled_localization: Array
    scaled_step_size: Array  # follows the norm too, as far as it is stable
    traces: NDArray[np.float32]  # (S, chains, draws) nβ(L − L*) of plain chains, cold ones first
    density_nodes: Array  # (S, probes, m) of the Hessian
    density_weights: Array  # (S, probes, m)
    dimension: int  # P
    mode: str
    calibrated_at: int  # step
    calibration: tuple[str, ...]  # what was chosen and why
    sensitivity_at: int  # step
    sensitivity_step_size: Array  # (k,)
    sensitivity_localization: Array  # (j,)
    sensitivity_llc: Array  # (k, j) as published; NaN if not asked for
    sensitivity_stderr: Array  # (k, j)
    sensitivity_quadratic: Array  # (k, j)


def llc_along(
    run: Run,
    *,
    objective: Objective | None = None,
    snapshots: Sequence[int] | NDArray[np.int64] | None = None,
    sensitivity: bool = False,
    name: str | None = None,
    directory: str | Path | None = None,
    progress: Progress = identity,
    jobs: int = 1,
    **options: Any,
) -> LLCCurve:
    """Local learning coefficients at snapshots (indices; by default eight, milestones among them).

    First the spectral density of the Hessian at each snapshot, then one calibration at the stiffest of
    them (or, in `LLCOptions.mode` 'snapshot', one each), then the chains, from the run's stream 'chains' at
    the snapshot's index. `options` are the fields of `LLCOptions`. `sensitivity` repeats the last
    snapshot's estimate over a grid of step sizes and localizations. Resumes where it was interrupted.

    Cost per snapshot by default: 12 Hessian products and about 4,000 minibatch gradients.

    Raises:
        ValueError: an option out of bounds, a run whose loss can't be rebuilt, or no step size that passes.
    """
    chosen = at_most(run, COUNT) if snapshots is None else np.asarray(snapshots)
    settings = LLCOptions(**options)
    objective = objective or _objective(run)
    settings = replace(settings, batch_size=_batch_size(run, settings, objective))
    common: dict[str, Any] = {"name": name, "directory": directory, "progress": progress, "jobs": jobs}
    named = asdict(settings) | {"loss": objective.description}
    densities = walk(run, chosen, Densities(objective, settings), kind="llc_density", options=named, **common)
    by_index = {
        int(i): SpectralDensity(nodes, weights, len(run.theta(int(i))), int(count))
        for i, nodes, weights, count in zip(
            chosen, densities["nodes"], densities["weights"], densities["matvecs"], strict=True
        )
    }
    at, calibration = _calibration(run, objective, settings, by_index)
    last = run.theta(int(chosen[-1])).astype(np.float64)
    scale = calibration.settings.localization * float(last @ last) / len(last)
    question = Question(objective, settings, by_index, calibration, scale)
    named |= {"calibration": asdict(calibration.settings), "reasons": calibration.reasons}
    rows = walk(
        run, chosen, question, kind=LLCCurve.KIND, options=named, revision=LLCCurve.REVISION, **common
    )
    found: dict[str, Any] = {key: _texts(values) for key, values in rows.items()}
    return LLCCurve(
        steps=run.steps[chosen],
        **found,
        **_unscaled(settings),
        **_sensitivity(run, question, int(chosen[-1]), measured=sensitivity),
        num_beta=calibration.settings.num_beta,
        num_chains=settings.num_chains,
        num_draws=calibration.num_draws,
        batch_size=calibration.settings.batch_size or objective.num_samples,
        method=settings.method,
        averaged_noise=settings.averaged_noise,
        scale=scale,
        density_nodes=densities["nodes"],
        density_weights=densities["weights"],
        dimension=len(last),
        mode=settings.mode,
        calibrated_at=int(run.steps[at]),
        calibration=calibration.reasons,
    )


def _objective(run: Run) -> Objective:
    from ..runs.rebuild import rebuild

    return rebuild(run)


def _texts(values: NDArray[Any]) -> Any:
    """A tuple of texts for an array of them; numbers as they are."""
    return tuple(map(str, values)) if values.dtype.kind in "US" else values


def _batch_size(run: Run, settings: LLCOptions, objective: Objective) -> int:
    """As asked for, else that of training, else 512; all samples at most."""
    trained = run.config.batch_size if run.config is not None else 512
    usual = 512 if trained == "full" else int(trained)
    return min(usual if settings.batch_size is None else settings.batch_size, objective.num_samples)


def _calibration(
    run: Run, objective: Objective, settings: LLCOptions, densities: dict[int, SpectralDensity]
) -> tuple[int, Calibration]:
    """Localization from the last snapshot's norm; step size where the loss is stiffest, lengths for all.

    A thorough run calibrates at every snapshot and takes the smallest step.
    """
    first = settings
    if settings.localization is None:
        last = run.theta(max(densities)).astype(np.float64)
        base = len(last) / (settings.relative_radius**2 * float(last @ last))
        reason = (
            f"localization {base:.4g}: radius {settings.relative_radius:g} of the norm of the last snapshot"
        )
        gamma, raised = affordable_localization(
            base,
            list(densities.values()),
            num_beta=settings.num_beta or default_num_beta(objective.num_samples),
            num_chains=settings.num_chains,
            max_gradients=settings.budget,
        )
        first = replace(settings, localization=gamma)
    stiffest = max(densities, key=lambda index: float(densities[index].nodes.max()))
    found = {
        index: calibrated(objective, torch.from_numpy(run.theta(index)), densities, first, index)
        for index in (densities if settings.thorough else [stiffest])
    }
    at = min(found, key=lambda index: found[index].settings.step_size)
    if settings.localization is None:
        return at, replace(found[at], reasons=(reason, *raised, *found[at].reasons[1:]))
    return at, found[at]


def _unscaled(settings: LLCOptions) -> dict[str, Any]:
    """Empty fields of the scaled estimates, if they were not asked for."""
    if settings.scaled:
        return {}
    fields = ("llc", "stderr", "quadratic", "quadratic_stderr", "rhat", "ess", "localization", "step_size")
    empty: dict[str, Any] = {f"scaled_{name}": np.empty(0) for name in fields}
    return empty | {"scaled_verdict": (), "scaled_reason": ()}


def _sensitivity(run: Run, question: Question, index: int, *, measured: bool) -> dict[str, Any]:
    """λ̂ and λ_quad at one snapshot over a grid around the calibrated step size and localization."""
    base = question.calibration
    steps = base.settings.step_size * np.array(FACTORS)
    gammas = base.settings.localization * np.array(FACTORS)
    shape = (len(steps), len(gammas))
    found = {name: np.full(shape, np.nan) for name in ("llc", "stderr", "quadratic")}
    theta = torch.from_numpy(run.theta(index))
    for k, step in enumerate(steps):
        for j, gamma in enumerate(gammas):
            settings = replace(base.settings, step_size=float(step), localization=float(gamma))
            found["quadratic"][k, j] = quadratic_null(
                question.densities[index],
                num_beta=settings.num_beta,
                localization=settings.localization,
                step_size=0.0 if settings.averaged_noise else settings.step_size,
            ).value
            if measured:
                chosen = replace(base, settings=settings)
                options, density = question.options, question.densities[index]
                one = estimate(question.objective, theta, chosen, options, density, index, tilt=False)
                found["llc"][k, j], found["stderr"][k, j] = one.llc, one.stderr
    named = {f"sensitivity_{name}": values for name, values in found.items()}
    return named | {
        "sensitivity_at": int(run.steps[index]),
        "sensitivity_step_size": steps,
        "sensitivity_localization": gammas,
    }
