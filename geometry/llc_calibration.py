"""Choosing step size, localization and length of chains on the point at hand, with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
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
from .llc_null import energy_time, hessian_density, quadratic_null
from .objective import Objective
from .spectrum import SpectralDensity

Array = NDArray[np.float64]

_PILOT_CHAINS, _PILOT_STEPS = 2, 40
_TRIALS = 16
_SPARE = 1.05  # of the burn-in: densities know the slowest direction from few nodes
_BURN_IN_SHARE = 2 / 3  # of a budget, at most
_MARGIN = 0.7  # of the bounds: pilots are short, and the noise share rests on a few samples
_ESS, _LEAST_ESS = 2 * MIN_ESS, 1.3 * MIN_ESS  # of each chain: split R-hat comes below 1.01 from about 100
_STRONGER, _STRONGEST = 1.25, 16.0  # steps and limit in which a budget raises the localization
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
    others: Sequence[SpectralDensity] = (),
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
    - `max_gradients`, per estimate with its tilted chains: γ is raised by factors of 1.25, up to 16 times,
      if chains with the largest step below and an ESS of 130 each then fit in. A budget buys resolution:
      what γ hides is hidden from the quadratic null too.
    - ε: the largest of up to 16 halvings from 2/(nβ λ_max + γ) whose pilots stay finite, with a
      minibatch noise share below 0.035 and an energy error (ε/8) nβ E[∇L·∇U] below 0.025 of the value
      (0.25 with averaged noise, which has no first-order error for quadratic losses). Where only the noise
      share speaks against a step and half of it is too dear, that step is taken.
    - burn-in: five relaxation times 2/(ε(nβ λ_min + γ)), and as long as the pilot still drifts by more than
      3 standard errors, twice that; draws for an ESS of 200 in each chain by `energy_time`. Both are cut
      where the budget is too small for them.

    `density` is the spectral density of the Hessian at theta, taken here unless given; `others` are those
    of further points that the same settings are to serve, so that λ_max, λ_min and lengths are the worst
    of all.

    Cost per trial: 4 × 40 gradient evaluations and 128 per-sample gradients.

    Raises:
        ValueError: an option out of bounds, theta = 0 with localization unset, or no trial passes.
    """
    num_beta = default_num_beta(objective.num_samples) if num_beta is None else num_beta
    density = hessian_density(objective, theta) if density is None else density
    plan = _Plan((density, *others), num_beta, _steps(max_gradients, num_chains))
    gamma = _localization(theta, plan, localization, relative_radius)
    full = batch_size is None or batch_size >= objective.num_samples
    first = Settings(
        num_beta, gamma, plan.first_step(gamma), None if full else batch_size, method, averaged_noise
    )
    generator = torch.Generator(theta.device).manual_seed(0) if generator is None else generator
    center = llc_chains.center(objective, theta)
    scale = quadratic_null(density, num_beta=num_beta, localization=gamma, absolute=True).value
    trials = _trials(objective, center, first, generator, scale, plan)
    burn_in, num_draws = plan.cut_lengths(trials[-1], gamma)
    return Calibration(
        settings=replace(first, step_size=trials[-1].step_size),
        burn_in=burn_in,
        num_draws=num_draws,
        relative_radius=(theta.numel() / gamma) ** 0.5 / float(theta.norm()) if bool(theta.any()) else inf,
        step_sizes=np.array([trial.step_size for trial in trials]),
        energy_errors=np.array([trial.energy_error for trial in trials]),
        noise_shares=np.array([trial.noise_share for trial in trials]),
        drifts=np.array([trial.drift for trial in trials]),
        reasons=tuple(plan.reasons),
    )


def affordable_localization(
    localization: float,
    densities: Sequence[SpectralDensity],
    *,
    num_beta: float,
    num_chains: int = 4,
    max_gradients: float,
) -> tuple[float, tuple[str, ...]]:
    """The least γ from `localization` upward, 16 times that at most, at which chains fit in, and why.

    The chains are those that `calibrate_llc` would run at points with these spectral densities.

    Raises:
        ValueError: γ = localization leaves none of the points a local posterior.
    """
    plan = _Plan(densities, num_beta, _steps(max_gradients, num_chains))
    return plan.raised(localization), tuple(plan.reasons)


class _Trial(NamedTuple):
    step_size: float
    energy_error: float
    noise_share: float
    drift: float


class _Plan:
    """What chains at all of the points need, what of it the budget of steps pays for, and the reasons."""

    def __init__(self, densities: Sequence[SpectralDensity], num_beta: float, budget: float) -> None:
        self.densities, self.num_beta, self.budget = densities, num_beta, budget
        self.smallest = [float(density.nodes.min()) for density in densities]
        self.largest = max(0.0, *(float(density.nodes.max()) for density in densities))
        self.reasons: list[str] = []

    def first_step(self, gamma: float) -> float:
        """Half of the largest stable step: the stiffest direction relaxes at once."""
        return 2 / (self.num_beta * self.largest + gamma)

    def relaxation(self, step_size: float, gamma: float) -> float:
        """Steps in which the slowest direction relaxes, at the points that have a local posterior.

        Raises:
            ValueError: none has.
        """
        slowest = [h for least in self.smallest if (h := self.num_beta * least + gamma) > 0]
        if not slowest:
            raise ValueError(
                f"localization={gamma:g} does not bind lambda_min = {min(self.smallest):.3g} at "
                f"num_beta={self.num_beta:g}; give more than {-self.num_beta * min(self.smallest):.3g}"
            )
        return 2 / (step_size * min(slowest))

    def lengths(self, step_size: float, gamma: float, ess: float = _ESS) -> tuple[int, int]:
        """Steps of burn-in, and draws for that ESS in each chain."""
        times = [
            energy_time(density, num_beta=self.num_beta, localization=gamma, step_size=step_size)
            for density in self.densities
        ]
        burn_in = ceil(_SPARE * RELAXATIONS * self.relaxation(step_size, gamma))
        return burn_in, ceil(ess * max(times))

    def affordable(self, step_size: float, gamma: float) -> bool:
        """Whether the budget pays for the least the verdict asks for; half of the chains burn in twice."""
        burn_in, num_draws = self.lengths(step_size, gamma, _LEAST_ESS)
        return 1.5 * burn_in + num_draws <= self.budget

    def raised(self, gamma: float) -> float:
        """The least localization up to 16 gamma at which chains are affordable; gamma if there is none."""
        factor = 1.0
        while not self.affordable(self.first_step(factor * gamma), factor * gamma):
            factor *= _STRONGER
            if factor > _STRONGEST:
                return gamma
        if factor > 1:
            self.reasons.append(f"raised {factor:.3g} times by max_gradients, to {factor * gamma:.4g}")
        return factor * gamma

    def cut_lengths(self, trial: _Trial, gamma: float) -> tuple[int, int]:
        """Steps of burn-in and draws within the budget."""
        burn_in, num_draws = self.lengths(trial.step_size, gamma)
        drifting = trial.drift > 3
        burn_in = burn_in * 2 if drifting else burn_in
        relaxation = self.relaxation(trial.step_size, gamma)
        self.reasons.append(
            f"burn-in {burn_in}: five relaxation times of {relaxation:.1f} steps" + ", twice" * drifting
        )
        if 1.5 * burn_in + num_draws > self.budget:
            wanted = f"{burn_in} + {num_draws}"
            burn_in = max(1, min(burn_in, int(_BURN_IN_SHARE * self.budget / 1.5)))
            num_draws = max(1, min(num_draws, int(self.budget - 1.5 * burn_in)))
            self.reasons.append(f"cut from {wanted} to {burn_in} + {num_draws} steps by max_gradients")
        return burn_in, num_draws


def _steps(max_gradients: float, num_chains: int) -> float:
    """Steps of all chains and their tilted copies."""
    if num_chains < 1:
        raise ValueError(f"num_chains={num_chains} must be at least 1")
    return max_gradients / (2 * num_chains)


def _localization(theta: Tensor, plan: _Plan, localization: float | None, relative_radius: float) -> float:
    if localization is not None:
        plan.reasons.append(f"localization {localization:.4g} as given")
        return localization
    squared_norm = float(theta.double().square().sum())
    if squared_norm == 0:
        raise ValueError("theta=0 has no scale of its own; give localization")
    gamma = theta.numel() / (relative_radius**2 * squared_norm)
    least = -2 * plan.num_beta * min(plan.smallest)
    if least > gamma:
        plan.reasons.append(
            f"localization {least:.4g}: twice what lambda_min = {min(plan.smallest):.3g} needs"
        )
    else:
        plan.reasons.append(f"localization {gamma:.4g}: radius {relative_radius:g} of the norm of theta")
    return plan.raised(max(gamma, least))


def _trials(
    objective: Objective,
    center: Center,
    settings: Settings,
    generator: torch.Generator,
    scale: float,
    plan: _Plan,
) -> list[_Trial]:
    """The pilots of ever smaller steps, of which the last one is taken."""
    found: list[_Trial] = []
    for halving in range(_TRIALS):
        trial = replace(settings, step_size=settings.step_size / 2**halving)
        found.append(_pilot(objective, center, trial, generator, scale))
        last = found[-1]
        if last.energy_error > _MAX_ENERGY_ERROR[settings.averaged_noise]:
            continue
        quiet = last.noise_share < _MARGIN * MAX_NOISE_SHARE
        if quiet or not plan.affordable(last.step_size / 2, settings.localization):
            plan.reasons.append(
                f"step size {last.step_size:.3g}: energy error {last.energy_error:.2g}, "
                f"noise share {last.noise_share:.2g}"
                + ("" if quiet else "; smaller ones would be quieter but max_gradients too few")
            )
            return found
    raise ValueError(
        f"no step size from {settings.step_size:.3g} down to {found[-1].step_size:.3g} passes (energy error "
        f"{found[-1].energy_error:.3g}, noise share {found[-1].noise_share:.3g}); "
        "raise localization or batch_size"
    )


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
