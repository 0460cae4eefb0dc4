"""The stability edge of a run's own optimizer, and the preconditioner it had at a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..geometry.stability import adam_edge, adam_preconditioner, heavy_ball_edge, root_second_moment

if TYPE_CHECKING:
    from ..runs.config import RunConfig
    from ..runs.store import Run


@dataclass(frozen=True)
class Edge:
    """The curvature at which a run's optimizer loses stability, and in which metric it is measured.

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


def edge_of(run: Run) -> Edge:
    """The edge for full batches without clipping, from the run's configuration."""
    config = run.config
    if config is None:
        return Edge(np.nan, "unknown: the run has no configuration")
    if config.optimizer == "sgd":
        value = heavy_ball_edge(config.lr, config.momentum, l2=config.weight_decay)
        return Edge(value, "λ_max(H) against heavy ball 2(1 + b)/lr − λ")
    if config.adaptive_embedding_lr:
        return Edge(np.nan, "unknown: the embedding's learning rate changes during the run")
    coupled = config.optimizer == "adam"
    decay = 0.0 if coupled else config.weight_decay
    value = adam_edge(config.lr, config.betas[0], decay=decay)
    rule = "λ_max(P⁻¹H) against (1 + β₁)(2 − lr·λ)/((1 − β₁) lr)"
    return Edge(value, rule, preconditioned=True, l2=config.weight_decay if coupled else 0.0)


def moments_at(run: Run, index: int) -> Moments | None:
    """Second moments at snapshot `index`; None where none are stored, or at step 0."""
    config, step = run.config, int(run.steps[index])
    found = np.flatnonzero(run.second_moment_steps == step)
    if config is None or config.optimizer == "sgd" or step == 0 or not len(found):
        return None
    second = torch.from_numpy(run.second_moment(int(found[0])))
    diagonal = adam_preconditioner(second, step, betas=config.betas, eps=config.eps)
    root = root_second_moment(second, step, beta2=config.betas[1])
    return Moments(diagonal / _lr_factors(config, run), root)


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

    Zero without clipping; NaN where nothing was logged in between.
    """
    series = run.metrics.get("gradient_norm")
    bound = None if run.config is None else run.config.clip
    if bound is None or series is None:
        return np.full(len(steps), np.nan if run.config is None else 0.0)
    ends = np.searchsorted(series.step, steps, side="right")
    pieces = np.split(series.value > bound, ends)[:-1]
    return np.array([piece.mean() if len(piece) else np.nan for piece in pieces])


def _lr_factors(config: RunConfig, run: Run) -> Tensor:
    """Factor on the learning rate per coordinate (P,); a factor of zero freezes, which P = ∞ expresses."""
    factors = torch.ones(run.table.size)
    for group, factor in config.group_lr.items():
        factors[torch.from_numpy(run.table.select(group))] = factor
    return factors
