"""Whether a loss is a function of theta at all, found out before any curvature is computed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .objective import Objective, gradient

# Sums in another order differ by rounding: up to this many units of eps per gradient norm.
ROUNDING = 1e3
PAIRS = 8


class Determinism(NamedTuple):
    """What the probe found; `cause` is empty when the loss is sound.

    `difference` is the relative difference of two gradients at the same point, `partition` that of gradients
    over two partitions of the samples; `draws` says whether an evaluation moved torch's random state.
    """

    deterministic: bool
    difference: float
    partition: float
    draws: bool
    cause: str


def probe_determinism(objective: Objective, theta: Tensor) -> Determinism:
    """Gradients at theta (P,) under the same and other random states, and over other chunks of the samples.

    Costs four gradient evaluations of the full loss; random states are put back. Differences are relative to
    the gradients of the full loss or of pairs of samples, whichever are larger, so that a loss of 1e-8 is
    judged like any other and a minimum is no false alarm.
    """
    with torch.random.fork_rng():
        state = torch.get_rng_state()
        first = objective.gradient(theta)
        draws = not torch.equal(state, torch.get_rng_state())
        second = objective.gradient(theta)
        replayed = _from_state(state, objective, theta)
        halves = _from_state(state, objective.with_chunk_size(_half(objective)), theta)
        scale = max(_norm(first), _pair_scale(objective, theta))
    difference, replay, partition = (
        _norm(first - other) / scale if scale > 0 else 0.0 for other in (second, replayed, halves)
    )
    limit = ROUNDING * torch.finfo(theta.dtype).eps
    cause = _cause(difference > limit, replay > limit, partition > limit, draws)
    return Determinism(not cause, difference, partition, draws, cause)


def require_deterministic(objective: Objective, theta: Tensor) -> None:
    """Nothing if the loss is sound.

    Raises:
        ValueError: it is not; the message says what causes it.
    """
    found = probe_determinism(objective, theta)
    if not found.deterministic:
        size = max(found.difference, found.partition)
        raise ValueError(f"objective has no Hessian: {found.cause} (gradients differ by {size:.1e})")


def _cause(differs: bool, replay_differs: bool, partition_differs: bool, draws: bool) -> str:
    if differs and not replay_differs and draws:
        return "it draws random numbers, as dropout in training mode does; call model.eval() first"
    if differs:
        return (
            "it changes from call to call beside torch's random state: running statistics, shuffled or "
            "augmented data, NumPy's random numbers, or a non-deterministic kernel"
        )
    if partition_differs:
        return (
            "it is no mean over samples, its value depends on their split into chunks: batch statistics "
            "(batch norm in training mode; call model.eval()), a sum reduction, or a loss over pairs"
        )
    return ""


def _from_state(state: Tensor, objective: Objective, theta: Tensor) -> Tensor:
    torch.set_rng_state(state)
    return objective.gradient(theta)


def _half(objective: Objective) -> int:
    return -(-min(objective.chunk_size, objective.num_samples) // 2)


def _pair_scale(objective: Objective, theta: Tensor) -> float:
    """Mean gradient norm over a few pairs of samples; batch norm refuses single ones."""
    count = min(2 * PAIRS, objective.num_samples - objective.num_samples % 2)
    if count < 2:
        return 0.0
    pairs = torch.arange(count, device=objective.device).reshape(-1, 2)
    return sum(_norm(gradient(objective.on(pair), theta)) for pair in pairs) / len(pairs)


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))
