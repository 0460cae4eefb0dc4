"""Stacks of localized Langevin chains on an objective, and what they record on the way.

A stack holds K coupled copies of C chains, theta (K, C, P). Chain c has a generator of its own, for its
minibatches and its noise; the copies of a chain, plain and tilted, share both, so that their difference
(the drift) has a smaller Monte Carlo error than two independent estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import sgld
from .objective import Objective
from .stacked import draw_batch, losses_and_gradients, sample_losses

Array = NDArray[np.float64]

ESCAPE = 10.0  # localization radii at which a chain counts as diverged
_THINNED = 16  # draws per run at which distance and energy error are taken


@dataclass(frozen=True)
class Settings:
    """How to sample: everything that decides a chain except where it starts and its random stream."""

    num_beta: float
    localization: float
    step_size: float
    batch_size: int | None = None  # None: full gradients
    method: sgld.Method = "sgld"
    averaged_noise: bool = False
    decay: float = 0.99
    damping: float | None = None  # None: sqrt(γ)/nβ, where curvature and localization weigh alike

    def __post_init__(self) -> None:
        for name in ("num_beta", "step_size"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)} must be positive and finite")
        if not 0 <= self.localization < float("inf"):
            raise ValueError(f"localization={self.localization} must be at least 0 and finite")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be at least 1, or None for full gradients")
        if self.method not in sgld.METHODS:
            raise ValueError(f"method={self.method!r} must be one of {', '.join(sgld.METHODS)}")
        if self.method == "rmsprop" and self.damping is None and self.localization == 0:
            raise ValueError("damping=None needs localization > 0 with method='rmsprop'; give a damping")

    @property
    def root_scale(self) -> float:
        """The root mean square gradient at which RMSprop halves the step."""
        return self.localization**0.5 / self.num_beta if self.damping is None else self.damping


@dataclass(frozen=True)
class Center:
    """The point w* that chains are tied to, with what control variates need to know there."""

    theta: Tensor  # (P,)
    sample_losses: Tensor  # (n,) float64
    gradient: Tensor  # (P,) of the full mean loss

    @property
    def loss(self) -> float:
        """Exact L_n(w*) over the whole data."""
        return float(self.sample_losses.mean())


@dataclass(frozen=True)
class Record:
    """What chains did in one run: K copies, C chains, T steps."""

    rises: Array  # (K, C, T) unbiased estimates of L_n(w) − L_n(w*) before each step
    slopes: Array  # (K, C, T) g·(w − w*), g the full gradient at w*
    squared_distance: Array  # (K, C) mean of ‖w − w*‖² over some of the steps
    energy_error: Array  # (K, C) mean of (ε/8) nβ g·G∇U over the same: first-order error of nβ E[L]
    failed_at: NDArray[np.int64]  # (C,) first step at which a chain was not finite; -1: never


def center(objective: Objective, theta: Tensor) -> Center:
    """Per-sample losses and full gradient at theta (P,): one forward pass and one gradient evaluation."""
    theta = theta.detach()
    return Center(theta, sample_losses(objective, theta), objective.gradient(theta))


class Sampled(NamedTuple):
    """Draws after burn-in, cold chains first, and the state they ended in."""

    state: sgld.State
    record: Record
    failed: dict[int, int]  # chain -> step, burn-in included, at which it was first seen to diverge


def num_cold(num_chains: int) -> int:
    """How many of the chains start at w*: the others, never more, start hot."""
    return num_chains - num_chains // 2


def sample(
    objective: Objective,
    settings: Settings,
    *,
    center: Center,
    generators: Sequence[torch.Generator],
    tilted: bool,
    burn_in: int,
    num_draws: int,
) -> Sampled:
    """Chains of which half start at w* and half where a pilot at nβ/4, as long as the burn-in, ended.

    The plain and the tilted copy have pilots of their own.
    """
    cold = num_cold(len(generators))
    start = center.theta.expand(1 + tilted, len(generators), -1)
    hotter = replace(settings, num_beta=settings.num_beta / 4)
    warm = partial(run, objective, center=center, num_steps=burn_in, adapting=settings.method == "rmsprop")
    hot = start[:, cold:]
    failed: dict[int, int] = {}
    if burn_in and cold < len(generators):
        own = generators[cold:]
        state, record = warm(begin(hot, hotter, own), hotter, generators=own)
        hot = state.theta
        failed = {cold + chain: step for chain, step in _failures(record, hotter, center).items()}
    state = begin(torch.cat([start[:, :cold], hot], 1), settings, generators)
    if burn_in:
        state, record = warm(state, settings, generators=generators)
        failed = _failures(record, settings, center) | failed
    state, record = run(objective, state, settings, center=center, generators=generators, num_steps=num_draws)
    late = {chain: burn_in + step for chain, step in _failures(record, settings, center).items()}
    return Sampled(state, record, late | failed)


def begin(theta: Tensor, settings: Settings, generators: Sequence[torch.Generator]) -> sgld.State:
    """Chains at theta (K, C, P), with a first draw of noise if it is averaged."""
    if not settings.averaged_noise:
        return sgld.init(theta)
    return sgld.init(theta, averaged_noise=sgld.draw_noise(generators, theta).expand_as(theta))


def _failures(record: Record, settings: Settings, center: Center) -> dict[int, int]:
    """Chains that were not finite or escaped from every distance that their potential allows."""
    gamma = settings.localization
    drift = settings.num_beta * float(center.gradient.norm())
    reach = inf if gamma == 0 else len(center.theta) / gamma + (drift / gamma) ** 2
    escaped = record.squared_distance.max(0) > ESCAPE**2 * reach
    found = {chain: int(step) for chain, step in enumerate(record.failed_at) if step >= 0}
    return dict.fromkeys(np.flatnonzero(escaped).tolist(), record.rises.shape[-1] - 1) | found


def run(
    objective: Objective,
    state: sgld.State,
    settings: Settings,
    *,
    center: Center,
    generators: Sequence[torch.Generator],
    num_steps: int,
    adapting: bool = False,
) -> tuple[sgld.State, Record]:
    """The chains num_steps ≥ 1 later, and their record; copy 0 feels the loss, copy 1 the tilted loss.

    state.theta (K, C, P) with K ≤ 2: the tilted loss is L(w) − g·(w − w*), stationary at w*. A run ends
    early when a chain is no longer finite. Cost: K C num_steps gradient evaluations on minibatches.
    """
    copies = len(state.theta)
    tilt = torch.stack([torch.zeros_like(center.gradient), center.gradient])[:copies, None]
    recorder = _Recorder(settings, center, num_steps, tilted=copies > 1)
    for _ in range(num_steps):
        indices = draw_batch(generators, objective.num_samples, settings.batch_size)
        losses, gradients = losses_and_gradients(objective, state.theta, indices)
        gradients = gradients - tilt if copies > 1 else gradients
        recorder.take(state, losses, gradients, indices)
        if not recorder.finite:
            break
        if adapting:
            state = sgld.adapt(state, gradients, decay=settings.decay, damping=settings.root_scale)
        state = sgld.step(
            state,
            gradients,
            sgld.draw_noise(generators, state.theta),
            center=center.theta,
            num_beta=settings.num_beta,
            localization=settings.localization,
            step_size=settings.step_size,
        )
    return state, recorder.record()


class _Recorder:
    """Collects what a run leaves behind."""

    def __init__(self, settings: Settings, center: Center, num_steps: int, *, tilted: bool) -> None:
        self.settings, self.center, self.tilted = settings, center, tilted
        self.every = min(num_steps, max(4, -(-num_steps // _THINNED)))
        self.rises: list[Tensor] = []
        self.slopes: list[Tensor] = []
        self.distances: list[Tensor] = []
        self.energies: list[Tensor] = []
        self.finite = True

    def take(self, state: sgld.State, losses: Tensor, gradients: Tensor, indices: Tensor | None) -> None:
        base = self.center.sample_losses
        here = base.mean() if indices is None else base[indices].mean(-1)
        self.finite = bool(losses.isfinite().all())
        if len(self.rises) % self.every == self.every - 1 or not self.finite:
            self._look(state, gradients)
        self.rises.append(losses.double() - here)
        if self.tilted:
            self.slopes.append((state.theta @ self.center.gradient).double())

    def _look(self, state: sgld.State, gradients: Tensor) -> None:
        settings = self.settings
        offset = state.theta - self.center.theta
        force = torch.add(settings.localization * offset, gradients, alpha=settings.num_beta)
        force = force if state.preconditioner is None else force * state.preconditioner
        energy = settings.step_size / 8 * settings.num_beta * torch.linalg.vecdot(gradients, force)
        self.distances.append(offset.square().sum(-1).double())
        self.energies.append(energy.double())

    def record(self) -> Record:
        rises = torch.stack(self.rises, -1)
        bad = ~rises.isfinite().all(0)
        origin = (self.center.theta @ self.center.gradient).double()
        slopes = torch.stack(self.slopes, -1) - origin if self.tilted else torch.zeros_like(rises)
        return Record(
            rises=rises.cpu().numpy(),
            slopes=slopes.cpu().numpy(),
            squared_distance=torch.stack(self.distances, -1).mean(-1).cpu().numpy(),
            energy_error=torch.stack(self.energies, -1).mean(-1).cpu().numpy(),
            failed_at=torch.where(bad.any(-1), bad.int().argmax(-1), -1).cpu().numpy(),
        )
