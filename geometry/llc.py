"""The local learning coefficient of a point, from localized Langevin chains, and when to trust it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isnan, log, nan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import llc_chains, llc_diagnostics, sgld
from .llc_chains import Center, Sampled, Settings
from .llc_diagnostics import Evidence, Mixing, Verdict, judge, mixing
from .llc_null import hessian_density, quadratic_null
from .objective import Objective
from .spectrum import Estimate, SpectralDensity

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LLC:
    """λ̂ = nβ(E[L_n(w)] − L_n(w*)) under exp(−nβ L_n(w) − (γ/2)‖w − w*‖²), with its evidence.

    `llc` is the published estimate, `tilted` the same for L_n(w) − g·(w − w*), of which w* is a
    stationary point, and `drift` = llc − tilted what the chain gains by walking downhill from a w* that
    is no minimum. `excess` = tilted − λ_quad is what it knows beyond the Hessian. Standard errors are
    Monte Carlo errors from the effective sample size, that of the excess with the error of λ_quad.
    """

    llc: float
    stderr: float
    tilted: float
    tilted_stderr: float
    drift: float
    drift_stderr: float
    quadratic: float  # λ_quad; NaN if a direction has no law
    quadratic_stderr: float
    excess: float
    excess_stderr: float
    verdict: Verdict
    reason: str
    unfinished: bool  # suspect for nothing but the length of its chains
    rhat: float  # of all chains; the worse of plain and tilted
    ess: float  # bulk, of the worse half; the worse of plain and tilted
    loss: float  # L_n(w*), exact
    losses: Array  # (chains, draws) unbiased estimates of L_n(w); cold chains first, burn-in excluded
    tilted_losses: Array  # (chains, draws) the same for the tilted loss
    settings: Settings
    burn_in: int
    distance: float  # root mean square ‖w − w*‖
    radius: float  # sqrt(P/γ), that of a flat loss
    failed_chains: int
    noise_share: float
    energy_error: float  # first-order part of llc that step size and minibatches add
    relaxation: float  # steps of the slowest direction
    smallest_curvature: float
    largest_curvature: float
    gradient_norm: float

    @property
    def num_beta(self) -> float:
        """nβ, the inverse temperature of the sum over all samples."""
        return self.settings.num_beta

    @property
    def localization(self) -> float:
        """γ."""
        return self.settings.localization

    @property
    def step_size(self) -> float:
        """ε."""
        return self.settings.step_size


def estimate_llc(
    objective: Objective,
    theta: Tensor,
    *,
    localization: float,
    step_size: float,
    num_beta: float | None = None,
    num_chains: int = 4,
    num_draws: int = 1000,
    burn_in: int = 500,
    batch_size: int | None = None,
    method: sgld.Method = "sgld",
    averaged_noise: bool = True,
    tilt: bool = True,
    density: SpectralDensity | None = None,
    generator: torch.Generator | None = None,
) -> LLC:
    """Local learning coefficient at theta (P,), by chains of which half start cold and half hot.

    Lau et al. (2023, arXiv:2308.12108) with n = objective.num_samples (never the batch size) and nβ =
    num_beta = n/log n unless given. Ours differs: L_n(w*) is exact, and a draw is L_m(w) − L_m(w*) on the
    chain's own minibatch m, which has the mean of L_n(w) − L_n(w*) and far less variance; chains are
    independent; hot chains start where a pilot of `burn_in` steps at nβ/4 ended, cold ones at w*.
    `tilt=False` spares the coupled tilted chains; tilted and drift are then NaN, unless g = 0.
    `density` is the spectral density of the Hessian at theta, taken here unless given. With method
    'rmsprop' the preconditioner adapts in the burn-in and is then fixed.

    Cost: (2 − ½) burn_in + num_draws gradient evaluations per chain, twice that with the tilt, and 48
    Hessian products for the density.

    Raises:
        ValueError: an option out of bounds; n < 3 with num_beta unset.
    """
    settings = Settings(
        num_beta=default_num_beta(objective.num_samples) if num_beta is None else num_beta,
        localization=localization,
        step_size=step_size,
        batch_size=None if batch_size is not None and batch_size >= objective.num_samples else batch_size,
        method=method,
        averaged_noise=averaged_noise,
    )
    for name, value, least in (
        ("num_chains", num_chains, 1),
        ("num_draws", num_draws, 1),
        ("burn_in", burn_in, 0),
    ):
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    root = torch.Generator(theta.device).manual_seed(0) if generator is None else generator
    generators = sgld.spawn(root, num_chains)
    density = hessian_density(objective, theta) if density is None else density
    center = llc_chains.center(objective, theta)
    sampled = llc_chains.sample(
        objective,
        settings,
        center=center,
        generators=generators,
        tilted=tilt and bool(center.gradient.any()),
        burn_in=burn_in,
        num_draws=num_draws,
    )
    share = _noise_share(objective, center, sampled, settings, root)
    return _assemble(center, sampled, settings, density, share, burn_in=burn_in)


def default_num_beta(num_samples: int) -> float:
    """nβ = n/log n, the inverse temperature at which nβ E[L_n] has the learning coefficient as its limit.

    Raises:
        ValueError: n < 3, where it says nothing.
    """
    if num_samples < 3:
        raise ValueError(f"num_samples={num_samples} is too few for n/log n; give num_beta")
    return num_samples / log(num_samples)


def _noise_share(
    objective: Objective, center: Center, sampled: Sampled, settings: Settings, generator: torch.Generator
) -> float:
    """The larger of the shares at w* and at the last draw of a chain: interpolated data are quiet at w*."""
    if sampled.failed:
        return nan
    state = sampled.state
    scale = None if state.preconditioner is None else state.preconditioner[0, 0]
    return max(
        llc_diagnostics.noise_share(objective, theta, settings, generator=generator, preconditioner=scale)
        for theta in (center.theta, state.theta[-1, 0])
    )


def _assemble(
    center: Center,
    sampled: Sampled,
    settings: Settings,
    density: SpectralDensity,
    share: float,
    *,
    burn_in: int,
) -> LLC:
    record = sampled.record
    tilted_rises = record.rises[-1] - record.slopes[-1]
    plain, tilted, drift = _estimates(center, sampled, settings.num_beta)
    judged = plain if isnan(tilted.mean) else tilted
    null = _null(settings, density)
    energy_error = float(record.energy_error[-1].mean())
    evidence = Evidence(
        published=plain,
        tilted=judged,
        num_chains=record.rises.shape[1],
        failed_at=tuple(sampled.failed.values()),
        burn_in=burn_in,
        relaxation=_relaxation(settings, density, sampled.state),
        smallest_curvature=float(density.nodes.min()),
        stability=_stability(settings, density),
        noise_share=share,
        step_error=0.0 if settings.averaged_noise else energy_error / (abs(judged.mean) or inf),
        drift=drift,
    )
    judgment = judge(evidence, settings)
    return LLC(
        llc=plain.mean,
        stderr=plain.stderr,
        tilted=tilted.mean,
        tilted_stderr=tilted.stderr,
        drift=drift.mean,
        drift_stderr=drift.stderr,
        quadratic=null.value,
        quadratic_stderr=null.stderr,
        excess=tilted.mean - null.value,
        excess_stderr=float(np.hypot(tilted.stderr, null.stderr)),
        verdict=judgment.verdict,
        reason=judgment.reason,
        unfinished=judgment.unfinished,
        rhat=evidence.rhat,
        ess=evidence.ess,
        loss=center.loss,
        losses=center.loss + record.rises[0],
        tilted_losses=center.loss + tilted_rises,
        settings=settings,
        burn_in=burn_in,
        distance=float(np.sqrt(record.squared_distance[0].mean())),
        radius=(len(center.theta) / settings.localization) ** 0.5 if settings.localization else inf,
        failed_chains=len(sampled.failed),
        noise_share=share,
        energy_error=energy_error,
        relaxation=evidence.relaxation,
        smallest_curvature=evidence.smallest_curvature,
        largest_curvature=float(density.nodes.max()),
        gradient_norm=float(center.gradient.norm()),
    )


def _estimates(center: Center, sampled: Sampled, num_beta: float) -> tuple[Mixing, Mixing, Mixing]:
    """Published, tilted and drift; NaN when a chain diverged, for survivors' means are no estimates."""
    if sampled.failed:
        lost = Mixing(nan, nan, nan, nan, nan)
        return lost, lost, lost
    record = sampled.record
    tilted_rises = record.rises[-1] - record.slopes[-1]
    plain, tilted = mixing(num_beta * record.rises[0]), mixing(num_beta * tilted_rises)
    drift = mixing(num_beta * (record.rises[0] - tilted_rises))
    if len(record.rises) == 1 and bool(center.gradient.any()):  # the tilted chains were not run
        tilted, drift = replace(plain, mean=nan, stderr=nan), replace(drift, mean=nan, stderr=nan)
    return plain, tilted, drift


def _null(settings: Settings, density: SpectralDensity) -> Estimate:
    """λ_quad with the step error of the Euler scheme, which an adapted preconditioner leaves unknown."""
    exact = settings.averaged_noise or settings.method == "rmsprop"
    return quadratic_null(
        density,
        num_beta=settings.num_beta,
        localization=settings.localization,
        step_size=0.0 if exact else settings.step_size,
    )


def _relaxation(settings: Settings, density: SpectralDensity, state: sgld.State) -> float:
    """2/(ε G_min (nβ λ_min + γ)), in steps: an upper bound of the slowest direction's relaxation time."""
    least = 1.0 if state.preconditioner is None else float(state.preconditioner.min())
    slowest = settings.num_beta * float(density.nodes.min()) + settings.localization
    return 2 / (settings.step_size * least * slowest) if slowest > 0 else inf


def _stability(settings: Settings, density: SpectralDensity) -> float:
    if settings.method == "rmsprop":
        return nan
    return settings.step_size * (settings.num_beta * float(density.nodes.max()) + settings.localization)
