"""What stands beside a local learning coefficient: Monte Carlo error, mixing, noise, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from math import inf
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .llc_chains import Settings, num_cold
from .objective import Objective
from .stacked import sample_gradients

Array = NDArray[np.float64]
Verdict = Literal["ok", "suspect", "invalid"]

MAX_RHAT = 1.01
MIN_ESS = 100.0
MAX_STDERRS_APART = 2.0
MAX_NOISE_SHARE = 0.05
MAX_RELATIVE_ERROR = 0.05
RELAXATIONS = 5.0
MAX_STABILITY = 4.0


@dataclass(frozen=True)
class Mixing:
    """How well draws (C, D), the first C − C//2 chains started cold and the others hot, fix their mean."""

    mean: float
    stderr: float  # sd/sqrt(ESS)
    rhat: float  # rank-normalized and split; NaN for constant draws
    ess: float  # bulk ESS of the worse half
    stderrs_apart: float  # |cold mean − hot mean| in standard errors of the difference; NaN for one chain


def mixing(draws: Array) -> Mixing:
    """Mean, Monte Carlo standard error, R-hat and ESS of draws (C, D), by arviz-stats.

    Rank-normalized split R-hat and bulk ESS are those of Vehtari et al. (2021, arXiv:1903.08008). Fewer
    than four draws per chain, or draws that do not vary, have no R-hat and no ESS: NaN.
    """
    mean = float(draws.mean())
    if draws.shape[1] < 4 or not np.ptp(draws) > 0:
        return Mixing(mean, 0.0 if np.ptp(draws) == 0 else float("nan"), *[float("nan")] * 3)
    halves = [half for half in np.split(draws, [num_cold(len(draws))]) if len(half)]
    apart = float("nan")
    if len(halves) == 2:
        error = np.hypot(_stderr(halves[0]), _stderr(halves[1]))
        apart = float(abs(halves[0].mean() - halves[1].mean()) / error)
    return Mixing(mean, _stderr(draws), _rhat(draws), min(_bulk_ess(half) for half in halves), apart)


def _stderr(draws: Array) -> float:
    return float(_array_stats().mcse(draws, chain_axis=0, draw_axis=1, method="mean"))


def _bulk_ess(draws: Array) -> float:
    return float(_array_stats().ess(draws, chain_axis=0, draw_axis=1, method="bulk"))


def _rhat(draws: Array) -> float:
    """R-hat of one chain is that of its two halves."""
    halves = draws if len(draws) > 1 else draws[:, : draws.shape[1] // 2 * 2].reshape(2, -1)
    return float(_array_stats().rhat(halves, chain_axis=0, draw_axis=1, method="rank"))


def _array_stats() -> Any:
    return import_module("arviz_stats.base").array_stats  # a second of import that only chains should cost


def noise_share(
    objective: Objective,
    theta: Tensor,
    settings: Settings,
    *,
    generator: torch.Generator,
    preconditioner: Tensor | None = None,
    num_samples: int = 64,
) -> float:
    """(ε/4)(nβ)² λ_max(G Cov g_i)/b: variance that minibatches add to that of the injected noise.

    0 for full gradients. λ_max is that of `num_samples` per-sample gradients at theta (P,), which
    overestimates by about tr(Cov)/num_samples. Cost: num_samples per-sample gradients, held in memory.
    """
    if settings.batch_size is None:
        return 0.0
    count = min(num_samples, objective.num_samples)
    order = torch.randperm(objective.num_samples, generator=generator, device=generator.device)
    gradients = sample_gradients(objective, theta, order[:count])
    gradients = gradients - gradients.mean(0)
    if preconditioner is not None:
        gradients = gradients * preconditioner.sqrt()
    gram = (gradients @ gradients.T).double() / max(count - 1, 1)
    top = float(torch.linalg.eigvalsh(gram)[-1])
    return settings.step_size / 4 * settings.num_beta**2 * top / settings.batch_size


@dataclass(frozen=True)
class Evidence:
    """What the verdict on an estimate is made from."""

    published: Mixing
    tilted: Mixing
    num_chains: int
    failed_at: tuple[int, ...]  # first bad step of each chain that diverged
    burn_in: int
    relaxation: float  # steps
    smallest_curvature: float
    stability: float  # ε(nβ λ_max + γ) at w*, stable below 4; NaN with an adapted preconditioner
    noise_share: float
    step_error: float  # first-order share of the value that step size and minibatches add; 0 if unbiased
    drift: Mixing

    @property
    def at_minimum(self) -> bool:
        """Whether the drift is within two standard errors of zero, or below 5 % of the tilted value."""
        bound = max(2 * self.drift.stderr, MAX_RELATIVE_ERROR * abs(self.tilted.mean))
        return not abs(self.drift.mean) > bound

    @property
    def rhat(self) -> float:
        """The worse R-hat of plain and tilted draws."""
        return float(np.max([self.published.rhat, self.tilted.rhat]))

    @property
    def ess(self) -> float:
        """The worse bulk ESS of plain and tilted draws, in the worse half."""
        return float(np.min([self.published.ess, self.tilted.ess]))


class Judgment(NamedTuple):
    """A verdict, every reason against it, and whether longer chains are all that it lacks."""

    verdict: Verdict
    reason: str
    unfinished: bool


def judge(evidence: Evidence, settings: Settings) -> Judgment:
    """The verdict on a local learning coefficient, and every reason against it.

    `ok` asks for all of: halves that agree within 2 standard errors, R-hat ≤ 1.01, bulk ESS ≥ 100 in each
    half, burn-in of 5 relaxation times, minibatch noise share < 0.05, Monte Carlo error ≤ 5 %, a step
    error ≤ 5 %, a value that is not negative. `invalid`: a diverged chain, a step that is unstable at w*,
    or no local posterior because nβ λ_min + γ ≤ 0. A point that is no minimum is named so in any case.
    """
    fatal = list(filter(None, _fatal(evidence, settings)))
    if fatal:
        return Judgment("invalid", "; ".join(fatal), False)
    short, lasting = (list(filter(None, doubts)) for doubts in (_short(evidence), _lasting(evidence)))
    notes = [] if evidence.at_minimum else [f"not at a minimum: drift {evidence.drift.mean:.3g}"]
    verdict: Verdict = "suspect" if short or lasting else "ok"
    return Judgment(verdict, "; ".join(short + lasting + notes), bool(short) and not lasting)


def _fatal(evidence: Evidence, settings: Settings) -> list[str]:
    failed, smallest = evidence.failed_at, evidence.smallest_curvature
    threshold = settings.localization / settings.num_beta
    unstable = f"unstable step: step_size (n beta lambda_max + gamma) = {evidence.stability:.2g} exceeds 4"
    diverged = (
        f"{len(failed)} of {evidence.num_chains} chains diverged, first at step {min(failed, default=0)}"
    )
    unbound = f"-lambda_min = {-smallest:.3g} exceeds gamma/(n beta) = {threshold:.3g}"
    return [
        diverged if failed else "",
        unstable if evidence.stability >= MAX_STABILITY else "",
        f"no local posterior: {unbound}" if smallest <= -threshold else "",
    ]


def _lasting(evidence: Evidence) -> list[str]:
    """Doubts that longer chains do not mend."""
    share, error = evidence.noise_share, evidence.step_error
    return [
        f"minibatch noise share {share:.2g}" if not share < MAX_NOISE_SHARE else "",
        f"step size adds {100 * error:.0f} %" if not error <= MAX_RELATIVE_ERROR else "",
        "one chain: no hot half to compare with" if evidence.num_chains < 2 else "",
        "negative" if evidence.published.mean < 0 else "",
    ]


def _short(evidence: Evidence) -> list[str]:
    """Doubts that longer chains may mend."""
    needed = RELAXATIONS * evidence.relaxation
    burn_in = f"burn-in {evidence.burn_in} of {needed:.0f} steps" if evidence.burn_in < needed else ""
    if np.isnan(evidence.rhat):
        return [burn_in, "draws do not vary or are too few: frozen chains or a constant loss"]
    both = (evidence.published, evidence.tilted)
    apart, error = max(each.stderrs_apart for each in both), max(map(_relative_error, both))
    return [
        burn_in,
        f"cold and hot halves {apart:.1f} standard errors apart" if apart > MAX_STDERRS_APART else "",
        f"R-hat {evidence.rhat:.3f}" if not evidence.rhat <= MAX_RHAT else "",
        f"ESS {evidence.ess:.0f} in a half" if not evidence.ess >= MIN_ESS else "",
        f"Monte Carlo error {100 * error:.0f} %" if not error <= MAX_RELATIVE_ERROR else "",
    ]


def _relative_error(mixing: Mixing) -> float:
    return mixing.stderr / abs(mixing.mean) if mixing.mean else inf
