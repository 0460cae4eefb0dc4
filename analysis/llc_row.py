"""What is measured of the learning coefficient at one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..geometry.llc import LLC, estimate_llc
from ..geometry.llc_calibration import Calibration, calibrate_llc
from ..geometry.llc_diagnostics import MAX_NOISE_SHARE
from ..geometry.llc_null import hessian_density
from ..geometry.objective import Objective
from ..geometry.sgld import Method
from ..geometry.spectrum import SpectralDensity
from ..runs.streams import generator

Row = dict[str, Any]

_TRIES = 4
_COLUMNS = (
    "llc", "stderr", "tilted", "tilted_stderr", "drift", "drift_stderr", "quadratic", "quadratic_stderr",
    "excess", "excess_stderr", "rhat", "ess", "verdict", "reason", "loss", "localization", "step_size",
    "burn_in", "distance", "radius", "failed_chains", "noise_share", "energy_error", "relaxation",
    "smallest_curvature", "largest_curvature", "gradient_norm",
)  # fmt: skip
_SCALED = (
    "llc", "stderr", "quadratic", "quadratic_stderr", "rhat", "ess", "verdict", "reason", "localization",
    "step_size",
)  # fmt: skip


@dataclass(frozen=True)
class LLCOptions:
    """How chains are run; None is for calibration to choose.

    `max_gradients` minibatch gradients per estimate bound the default run, which raises its localization to
    fit in; with `thorough` there is no such bound, and estimates whose chains are only too short, or whose
    steps are too noisy, are repeated with twice as many draws or half the step, three times at most. Two
    chains, since each pays for a burn-in of its own. With `mode` 'snapshot' each snapshot is calibrated on
    its own, and values do not compare.
    """

    num_beta: float | None = None  # None: n/log n
    localization: float | None = None
    relative_radius: float = 0.1
    step_size: float | None = None
    burn_in: int | None = None
    num_draws: int | None = None
    num_chains: int = 2
    batch_size: int | None = None  # None: that of training
    method: Method = "sgld"
    averaged_noise: bool = True
    mode: Literal["trajectory", "snapshot"] = "trajectory"
    scaled: bool = True
    max_gradients: int = 1600
    thorough: bool = False
    density_probes: int = 1
    density_nodes: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("burn_in", 0), ("num_draws", 1), ("num_chains", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value} must be at least {least}")

    @property
    def budget(self) -> float:
        """Minibatch gradients per estimate."""
        return inf if self.thorough else self.max_gradients


@dataclass(frozen=True)
class Densities:
    """Measures the spectral density of the Hessian at snapshot `index` with parameters theta (P,)."""

    objective: Objective
    options: LLCOptions

    def __call__(self, index: int, theta: NDArray[Any], previous: Mapping[str, Any] | None) -> Row:
        """Nodes and weights (probes, m), padded to the same m at every snapshot."""
        options = self.options
        width = min(options.density_nodes, len(theta))
        found = hessian_density(
            self.objective,
            torch.from_numpy(theta),
            probes=options.density_probes,
            nodes=width,
            generator=generator(options.seed, "probes", index),
        )
        missing = ((0, 0), (0, width - found.nodes.shape[1]))
        return {
            "nodes": np.pad(found.nodes, missing, "edge"),
            "weights": np.pad(found.weights, missing),
            "matvecs": found.matvecs,
        }


def calibrated(
    objective: Objective,
    theta: Tensor,
    densities: Mapping[int, SpectralDensity],
    options: LLCOptions,
    index: int,
) -> Calibration:
    """Calibration at snapshot `index` that serves all of `densities`; what options fix is kept."""
    found = calibrate_llc(
        objective,
        theta,
        density=densities[index],
        others=[density for other, density in densities.items() if other != index],
        num_beta=options.num_beta,
        localization=options.localization,
        relative_radius=options.relative_radius,
        batch_size=options.batch_size,
        method=options.method,
        averaged_noise=options.averaged_noise,
        num_chains=options.num_chains,
        max_gradients=options.budget,
        generator=generator(options.seed, "chains", 2 * index + 1),
    )
    if options.step_size is not None:
        found = replace(found, settings=replace(found.settings, step_size=options.step_size))
    return replace(
        found,
        burn_in=found.burn_in if options.burn_in is None else options.burn_in,
        num_draws=found.num_draws if options.num_draws is None else options.num_draws,
    )


@dataclass(frozen=True)
class Question:
    """An objective with all that one row needs; calling it measures a snapshot."""

    objective: Objective
    options: LLCOptions
    densities: Mapping[int, SpectralDensity]
    calibration: Calibration  # of the trajectory; lengths of all snapshots follow it
    scale: float  # γ‖θ‖²/P that the scaled estimates keep

    def __call__(self, index: int, theta: NDArray[Any], previous: Mapping[str, Any] | None) -> Row:
        """One row: the estimate at the trajectory's γ, and at the γ that keeps γ‖θ‖²/P."""
        point = torch.from_numpy(theta)
        chosen = self.calibration
        if self.options.mode == "snapshot":
            alone = {index: self.densities[index]}
            own = calibrated(self.objective, point, alone, self.options, index)
            chosen = replace(own, burn_in=chosen.burn_in, num_draws=chosen.num_draws)
        found = self._until_ok(point, chosen, index, tilt=True)
        row = {name: getattr(found, name) for name in _COLUMNS}
        row["squared_norm"] = squared = float(point.double().square().sum())
        row["traces"] = _resampled(found.num_beta * (found.losses - found.loss), chosen.num_draws)
        return row | self._scaled(point, squared, chosen, found, index)

    def _scaled(self, theta: Tensor, squared: float, chosen: Calibration, found: LLC, index: int) -> Row:
        """The estimate in units of the norm: γ falls with ‖θ‖², and ε rises with it while it is stable."""
        if not self.options.scaled:
            return {}
        base = chosen.settings
        gamma = self.scale * len(theta) / squared
        if not np.isclose(gamma, base.localization, rtol=1e-9):
            stiffest = max(0.0, float(self.densities[index].nodes.max()))
            stable = max(base.step_size, 2 / (base.num_beta * stiffest + gamma))
            step_size = min(base.step_size * base.localization / gamma, stable)
            settings = replace(base, localization=gamma, step_size=step_size)
            found = self._until_ok(theta, replace(chosen, settings=settings), index, tilt=False)
        return {f"scaled_{name}": getattr(found, name) for name in _SCALED}

    def _until_ok(self, theta: Tensor, chosen: Calibration, index: int, *, tilt: bool) -> LLC:
        for _ in range(_TRIES if self.options.thorough else 1):
            found = estimate(
                self.objective, theta, chosen, self.options, self.densities[index], index, tilt=tilt
            )
            noisy = found.verdict == "suspect" and found.noise_share >= MAX_NOISE_SHARE
            if not (found.unfinished or noisy):
                break
            burn_in = max(chosen.burn_in, int(5 * min(found.relaxation, 1e6)) + 1)
            chosen = replace(chosen, burn_in=burn_in * (1 + noisy), num_draws=2 * chosen.num_draws)
            if noisy:  # pilots are short, and see less of it
                halved = chosen.settings.step_size / 2
                chosen = replace(chosen, settings=replace(chosen.settings, step_size=halved))
        return found


def estimate(
    objective: Objective,
    theta: Tensor,
    chosen: Calibration,
    options: LLCOptions,
    density: SpectralDensity,
    index: int,
    *,
    tilt: bool,
) -> LLC:
    """The estimate that a calibration asks for, on the snapshot's own random stream."""
    settings = chosen.settings
    return estimate_llc(
        objective,
        theta,
        localization=settings.localization,
        step_size=settings.step_size,
        num_beta=settings.num_beta,
        num_chains=options.num_chains,
        num_draws=chosen.num_draws,
        burn_in=chosen.burn_in,
        batch_size=settings.batch_size,
        method=settings.method,
        averaged_noise=settings.averaged_noise,
        tilt=tilt,
        density=density,
        generator=generator(options.seed, "chains", 2 * index),
    )


def _resampled(draws: NDArray[np.float64], length: int) -> NDArray[np.float32]:
    """Every so many draws of (C, D), (C, length) at every snapshot; NaN after the end of a chain."""
    kept = draws[:, :: -(-draws.shape[1] // length)][:, :length]
    return np.pad(kept, ((0, 0), (0, length - kept.shape[1])), constant_values=np.nan).astype(np.float32)
