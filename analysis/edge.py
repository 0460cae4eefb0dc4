"""The stability edge of a run's own optimizer, and the preconditioner it had at a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..geometry.stability import (
    adam_edge,
    adam_preconditioner,
    heavy_ball_edge,
    nesterov_edge,
    root_second_moment,
)

if TYPE_CHECKING:
    from ..runs.store import Run

_ADAPTIVE = ("adam", "adamw")


@dataclass(frozen=True)
class Optimizer:
    """What the edge depends on. `factors` are those on the learning rate, by parameter group or name."""

    name: str  # adam, adamw, sgd, or another one
    lr: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    factors: Mapping[str, float] = field(default_factory=dict)
    varies: bool = False  # the factors change during the run


@dataclass(frozen=True)
class Edge:
    """The curvature at which an optimizer loses stability, and in which metric it is measured.

    `value` is NaN where it is not known; `rule` says what it is, or why not. `l2` is the coupled penalty that
    belongs into the Hessian.
    """

    value: float
    rule: str
    preconditioned: bool = False
    l2: float = 0.0


@dataclass(frozen=True)
class Moments:
    """Adam's second moments at a snapshot: P (P,) such that a step is −lr P⁻¹m, and sqrt(v̂) (P,)."""

    diagonal: Tensor
    root: Tensor


def optimizer_of(run: Run) -> Optimizer | None:
    """From the configuration, or from what a Recorder wrote down of somebody else's optimizer."""
    config = run.config
    if config is None:
        return _recorded(run.provenance.get("optimizer"), run.table.names)
    return Optimizer(
        name=config.optimizer,
        lr=config.lr,
        weight_decay=config.weight_decay,
        betas=config.betas,
        eps=config.eps,
        momentum=config.momentum,
        factors=config.group_lr,
        varies=bool(config.adaptive_embedding_lr),
    )


def edge_of(optimizer: Optimizer | None) -> Edge:
    """The edge for full batches without clipping, at the learning rate that the run began with."""
    if optimizer is None:
        return Edge(np.nan, "unknown: the run does not say how it was trained")
    if optimizer.name == "sgd":
        return _sgd_edge(optimizer)
    if optimizer.name not in _ADAPTIVE:
        return Edge(np.nan, f"unknown for {optimizer.name}")
    if optimizer.varies:
        return Edge(np.nan, "unknown: the embedding's learning rate changes during the run")
    coupled = optimizer.name == "adam"
    value = adam_edge(optimizer.lr, optimizer.betas[0], decay=0.0 if coupled else optimizer.weight_decay)
    rule = "λ_max(P⁻¹H) against (1 + β₁)(2 − lr·λ)/((1 − β₁) lr)"
    return Edge(value, rule, preconditioned=True, l2=optimizer.weight_decay if coupled else 0.0)


def _sgd_edge(optimizer: Optimizer) -> Edge:
    lr, momentum, l2 = optimizer.lr, optimizer.momentum, optimizer.weight_decay
    if optimizer.nesterov:
        return Edge(
            nesterov_edge(lr, momentum, l2=l2), "λ_max(H) against Nesterov 2(1 + b)/((1 + 2b) lr) − λ"
        )
    value = heavy_ball_edge(lr, momentum, dampening=optimizer.dampening, l2=l2)
    return Edge(value, "λ_max(H) against heavy ball 2(1 + b)/((1 − τ) lr) − λ")


def moments_at(run: Run, optimizer: Optimizer | None, index: int) -> Moments | None:
    """Second moments at snapshot `index`; None where none are stored, or at step 0."""
    step = int(run.steps[index])
    if optimizer is None or optimizer.name not in _ADAPTIVE or step == 0:
        return None
    found = np.flatnonzero(run.second_moment_steps == step)
    if not len(found):
        return None
    second = torch.from_numpy(run.second_moment(int(found[0])))
    diagonal = adam_preconditioner(second, step, betas=optimizer.betas, eps=optimizer.eps)
    root = root_second_moment(second, step, beta2=optimizer.betas[1])
    return Moments(diagonal / _factors(optimizer, run), root)


def with_moments(run: Run, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The chosen snapshots, each moved to the nearest one that has second moments, where there are any.

    Step 0 has none and stays out, and so do doubles.
    """
    stored = np.flatnonzero(np.isin(run.steps, run.second_moment_steps) & (run.steps > 0))
    if not len(stored):
        return chosen
    distances = abs(run.steps[stored][None, :] - run.steps[chosen][:, None])
    return np.unique(stored[distances.argmin(axis=1)])


def clipped_fractions(run: Run, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Share of logged steps with clipped gradients up to each of `steps` (S,), since the one before it.

    Zero without clipping; NaN where it is not known, or nothing was logged in between.
    """
    series = run.metrics.get("gradient_norm")
    bound = None if run.config is None else run.config.clip
    if bound is None or series is None:
        return np.full(len(steps), np.nan if run.config is None else 0.0)
    ends = np.searchsorted(series.step, steps, side="right")
    pieces = np.split(series.value > bound, ends)[:-1]
    return np.array([piece.mean() if len(piece) else np.nan for piece in pieces])


def _factors(optimizer: Optimizer, run: Run) -> Tensor:
    """Factor on the learning rate per coordinate (P,); a factor of zero freezes, which P = ∞ expresses."""
    factors = torch.ones(run.table.size)
    for name, factor in optimizer.factors.items():
        factors[torch.from_numpy(run.table.select(name))] = factor
    return factors


def _recorded(facts: Any, names: tuple[str, ...]) -> Optimizer | None:
    """An optimizer from a Recorder's facts: its name, and settings and parameter names per group."""
    if not facts or not facts.get("groups") or "lr" not in facts["groups"][0]:
        return None
    first, *others = facts["groups"]
    lr = float(first["lr"])
    return Optimizer(
        name=str(facts["name"]).lower(),
        lr=lr,
        weight_decay=float(first.get("weight_decay", 0.0)),
        betas=tuple(first.get("betas", (0.9, 0.999))),
        eps=float(first.get("eps", 1e-8)),
        momentum=float(first.get("momentum", 0.0)),
        dampening=float(first.get("dampening", 0.0)),
        nesterov=bool(first.get("nesterov", False)),
        factors={n: float(g["lr"]) / lr for g in others for n in g["parameters"] if n in names},
    )
