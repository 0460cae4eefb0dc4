"""Choosing step size, localization and length of chains on the point at hand, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import llc_chains, sgld
from .llc import default_num_beta
from .llc_chains import Center, Settings
from .llc_diagnostics import MAX_NOISE_SHARE, MAX_RELATIVE_ERROR, MIN_ESS, RELAXATIONS, mixing, noise_share
from .llc_null import hessian_density, quadratic_null
from .objective import Objective
from .spectrum import SpectralDensity

Array = NDArray[np.float64]

_PILOT_CHAINS, _PILOT_STEPS = 2, 40
_TRIALS = 16
_SPARE = 1.05  # of the burn-in: other snapshots relax a little more slowly
_BURN_IN_SHARE = 2 / 3  # of a budget, at most
_MARGIN = 0.7  # of the bounds: pilots are short, and the noise share rests on a few samples
_ESS = 4 * MIN_ESS  # per half: R-hat comes below 1.01 at about four times the ESS that is asked for
# Largest first-order energy error over the value. Averaged noise cancels that order for quadratic losses,
# so there it bounds what is left of second order. A pilot that starts at w* sees less than the whole error.
_MAX_ENERGY_ERROR = {False: 0.5 * MAX_RELATIVE_ERROR, True: 0.25}


@dataclass(frozen=True)
class Calibration:
    """Hyperparameters for chains, and the pilots that they rest on (one entry per step size tried)."""

    settings: Settings
    burn_in: int
    num_draws: int
    relative_radius: float  # sqrt(P/γ)/‖theta‖
    step_sizes: Array  # (trials,) largest first
    energy_errors: Array  # (trials,) first-order error over the value; inf for a diverged pilot
    noise_shares: Array  # (trials,)
    drifts: Array  # (trials,) rise of the loss over the last two quarters, in standard errors
    reasons: tuple[str, ...]


def calibrate_llc(
    objective: Objective,
    theta: Tensor,
    *,
    density: SpectralDensity | None = None,
    num_beta: float | None = None,
    localization: float | None = None,
    relative_radius: float = 0.1,
    batch_size: int | None = None,
    method: sgld.Method = "sgld",
    averaged_noise: bool = True,
    num_chains: int = 4,
    max_gradients: float = inf,
    generator: torch.Generator | None = None,
) -> Calibration:
    """Step size, localization and lengths for `estimate_llc` at theta (P,), from short pilot chains.

    - γ = P/(relative_radius ‖theta‖)², so that a flat loss lets chains go that far from theta on the
      scale of theta; at least 2 nβ |λ_min|, so that the local posterior exists. Or as given.
    - ε: the largest of up to 16 halvings from 2/(nβ λ_max + γ) whose pilots stay finite, with a
      minibatch noise share below 0.035 and an energy error (ε/8) nβ E[∇L·∇U] below 0.025 of the value
      (0.25 with averaged noise, which has no first-order error for quadratic losses).
    - burn-in: five relaxation times 2/(ε(nβ λ_min + γ)), and as long as the pilot still drifts by more than
      3 standard errors, twice that; draws for a bulk ESS of 400 in each half, if the loss relaxes as w
      does: R-hat ≤ 1.01 asks for about four times the 100 that the verdict names.
    - `max_gradients`, per estimate with its tilted chains: where two thirds of it don't pay for the burn-in,
      a larger step that only the noise share speaks against is taken; then draws are cut to what is left.

    `density` is the spectral density of the Hessian at theta, taken here unless given.

    Cost per trial: 4 × 40 gradient evaluations and 128 per-sample gradients.

    Raises:
        ValueError: an option out of bounds, theta = 0 with localization unset, or no trial passes.
    """
    if num_chains < 1:
        raise ValueError(f"num_chains={num_chains} must be at least 1")
    num_beta = default_num_beta(objective.num_samples) if num_beta is None else num_beta
    density = hessian_density(objective, theta) if density is None else density
    reasons: list[str] = []
    gamma = _localization(theta, density, num_beta, localization, relative_radius, reasons)
    first = 2 / (num_beta * max(float(density.nodes.max()), 0.0) + gamma)
    full = batch_size is None or batch_size >= objective.num_samples
    settings = Settings(num_beta, gamma, first, None if full else batch_size, method, averaged_noise)
    generator = torch.Generator(theta.device).manual_seed(0) if generator is None else generator
    center = llc_chains.center(objective, theta)
    scale = quadratic_null(density, num_beta=num_beta, localization=gamma, absolute=True).value
    trials = _trials(objective, center, settings, generator, scale)
    slowest = num_beta * float(density.nodes.min()) + gamma
    budget = max_gradients / (2 * num_chains)
    best = _affordable(trials, slowest, budget, averaged_noise, reasons)
    chosen = replace(settings, step_size=best.step_size)
    burn_in, num_draws = _lengths(best, slowest, num_chains, budget, reasons)
    return Calibration(
        settings=chosen,
        burn_in=burn_in,
        num_draws=num_draws,
        relative_radius=(theta.numel() / gamma) ** 0.5 / float(theta.norm()) if bool(theta.any()) else inf,
        step_sizes=np.array([trial.step_size for trial in trials]),
        energy_errors=np.array([trial.energy_error for trial in trials]),
        noise_shares=np.array([trial.noise_share for trial in trials]),
        drifts=np.array([trial.drift for trial in trials]),
        reasons=tuple(reasons),
    )


def _localization(
    theta: Tensor,
    density: SpectralDensity,
    num_beta: float,
    localization: float | None,
    relative_radius: float,
    reasons: list[str],
) -> float:
    if localization is not None:
        reasons.append(f"localization {localization:.4g} as given")
        return localization
    squared_norm = float(theta.double().square().sum())
    if squared_norm == 0:
        raise ValueError("theta=0 has no scale of its own; give localization")
    gamma = theta.numel() / (relative_radius**2 * squared_norm)
    least = -2 * num_beta * float(density.nodes.min())
    if least > gamma:
        reasons.append(f"localization {least:.4g}: twice what lambda_min = {density.nodes.min():.3g} needs")
        return least
    reasons.append(f"localization {gamma:.4g}: radius {relative_radius:g} of the norm of theta")
    return gamma


class _Trial(NamedTuple):
    step_size: float
    energy_error: float
    noise_share: float
    drift: float

    def exact(self, averaged_noise: bool) -> bool:
        """Whether the step size alone adds little."""
        return self.energy_error <= _MAX_ENERGY_ERROR[averaged_noise]


def _trials(
    objective: Objective, center: Center, settings: Settings, generator: torch.Generator, scale: float
) -> list[_Trial]:
    """The pilots of ever smaller steps, of which the last one passed."""
    found: list[_Trial] = []
    for halving in range(_TRIALS):
        trial = replace(settings, step_size=settings.step_size / 2**halving)
        found.append(_pilot(objective, center, trial, generator, scale))
        if found[-1].exact(settings.averaged_noise) and found[-1].noise_share < _MARGIN * MAX_NOISE_SHARE:
            return found
    raise ValueError(
        f"no step size from {settings.step_size:.3g} down to {found[-1].step_size:.3g} passes (energy error "
        f"{found[-1].energy_error:.3g}, noise share {found[-1].noise_share:.3g}); "
        "raise localization or batch_size"
    )


def _affordable(
    trials: list[_Trial], slowest: float, budget: float, averaged_noise: bool, reasons: list[str]
) -> _Trial:
    """The last trial, or a larger step if the burn-in would take too much of the budget of steps."""
    best = trials[-1]
    for trial in reversed(trials[:-1]):
        if 1.5 * RELAXATIONS * 2 / (best.step_size * slowest) <= _BURN_IN_SHARE * budget:
            break
        if trial.exact(averaged_noise):
            best = trial
    reason = f"step size {best.step_size:.3g}: energy error {best.energy_error:.2g}, noise share "
    reasons.append(reason + f"{best.noise_share:.2g}")
    if best is not trials[-1]:
        reasons.append(f"step size {trials[-1].step_size:.3g} would be quieter but max_gradients too few")
    return best


def _pilot(
    objective: Objective, center: Center, settings: Settings, generator: torch.Generator, scale: float
) -> _Trial:
    """What short tilted chains from w* say of a step size.

    The energy error is relative to the pilot's value, or to what the Hessian predicts with all curvatures
    positive if that is larger; the drift compares the last two quarters; the noise share is the larger
    of those at w* and at the end of a chain.
    """
    generators = sgld.spawn(generator, _PILOT_CHAINS)
    start = llc_chains.begin(center.theta.expand(2, _PILOT_CHAINS, -1), settings, generators)
    end, record = llc_chains.run(
        objective,
        start,
        settings,
        center=center,
        generators=generators,
        num_steps=_PILOT_STEPS,
        adapting=settings.method == "rmsprop",
    )
    if (record.failed_at >= 0).any():
        return _Trial(settings.step_size, inf, inf, inf)
    draws = settings.num_beta * (record.rises[-1] - record.slopes[-1])[:, _PILOT_STEPS // 2 :]
    early, late = (mixing(half) for half in np.split(draws, 2, axis=1))
    points = (center.theta, end.theta[-1, 0])
    return _Trial(
        step_size=settings.step_size,
        energy_error=float(record.energy_error[-1].mean()) / max(scale, float(draws.mean())),
        noise_share=max(noise_share(objective, point, settings, generator=generator) for point in points),
        drift=float((late.mean - early.mean) / np.hypot(early.stderr, late.stderr)),
    )


def _lengths(
    trial: _Trial, slowest: float, num_chains: int, budget: float, reasons: list[str]
) -> tuple[int, int]:
    """Steps of burn-in and draws, of which the budget pays 1.5 times the first and once the second."""
    relaxation = 2 / (trial.step_size * slowest)
    drifting = trial.drift > 3
    burn_in = ceil(_SPARE * RELAXATIONS * relaxation) * (2 if drifting else 1)
    num_draws = ceil(_ESS * max(relaxation, 1.0) / max(num_chains // 2, 1))
    reasons.append(
        f"burn-in {burn_in}: five relaxation times of {relaxation:.0f} steps" + ", twice" * drifting
    )
    if 1.5 * burn_in + num_draws > budget:
        wanted = f"{burn_in} + {num_draws}"
        burn_in = max(1, min(burn_in, int(_BURN_IN_SHARE * budget / 1.5)))
        num_draws = max(1, min(num_draws, int(budget - 1.5 * burn_in)))
        reasons.append(f"cut from {wanted} to {burn_in} + {num_draws} steps by max_gradients")
    return burn_in, num_draws
