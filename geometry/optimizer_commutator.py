"""Two steps of the real optimizer in either order, from the same state: momentum, Adam and AdamW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from .objective import Loss, gradient


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer remembers between steps; zeros of shape (P,) and count 0 at the start."""

    first_moment: Tensor  # (P,) momentum buffer, or Adam's mean gradient
    second_moment: Tensor  # (P,) Adam's mean squared gradient
    count: int  # steps taken so far

    @classmethod
    def start(cls, theta: Tensor) -> OptimizerState:
        """The state before the first step at theta (P,)."""
        return cls(torch.zeros_like(theta), torch.zeros_like(theta), 0)


Step = Callable[[Tensor, Tensor, OptimizerState], tuple[Tensor, OptimizerState]]
"""(theta (P,), gradient (P,), state) -> (new theta, new state): one optimizer step as a pure function."""


@dataclass(frozen=True)
class OptimizerCommutator:
    """δ = θ_AB − θ_BA of an optimizer, with normalizations that need no step size.

    u_A = θ_A − θ is the first step on A, and e_B = (θ_AB − θ_A) − (θ_B − θ) how the step on B changes
    because A came first; δ = e_B − e_A. For plain gradient steps u = −ηg and e_B = η² H_B g_A + O(η³), so
    that `defect` and `scale_free` become those of the bracket.
    """

    vector: Tensor  # (P,) δ
    raw: float  # ‖δ‖
    defect: float  # ‖δ‖ / (‖u_A‖ ‖u_B‖)
    relative: float  # ‖δ‖ / mean(‖u_A‖, ‖u_B‖), the share of a step that depends on the order
    scale_free: float  # ‖δ‖ / (‖e_A‖ + ‖e_B‖), in [0, 1]
    update_norms: tuple[float, float]  # ‖u_A‖, ‖u_B‖


def optimizer_commutator(
    loss_a: Loss, loss_b: Loss, theta: Tensor, *, step: Step, state: OptimizerState
) -> OptimizerCommutator:
    """θ_AB − θ_BA at theta (P,) in float64, θ_AB by `step` on loss_a, then on loss_b, both from `state`.

    Momentum and second moment are carried along each order. Weight decay and memory alone do not commute
    trivially either: identical batches give δ = 0. Costs four gradient evaluations.

    Raises:
        ValueError: theta is not float64; float32 would drown δ in rounding (see `finite_commutator`).
    """
    if theta.dtype != torch.float64:
        raise ValueError(f"theta is {theta.dtype}; optimizer commutators need float64, pass theta.double()")
    theta = theta.detach()
    after_a, state_a = step(theta, gradient(loss_a, theta), state)
    after_b, state_b = step(theta, gradient(loss_b, theta), state)
    step_a, step_b = after_a - theta, after_b - theta
    then_b, _ = step(after_a, gradient(loss_b, after_a), state_a)
    then_a, _ = step(after_b, gradient(loss_a, after_b), state_b)
    vector = then_b - then_a
    change_b, change_a = then_b - after_a - step_b, then_a - after_b - step_a
    norms = _norm(step_a), _norm(step_b)
    raw = _norm(vector)
    return OptimizerCommutator(
        vector=vector,
        raw=raw,
        defect=_ratio(raw, norms[0] * norms[1]),
        relative=_ratio(raw, sum(norms) / 2),
        scale_free=_ratio(raw, _norm(change_a) + _norm(change_b)),
        update_norms=norms,
    )


def sgd(
    *,
    lr: float | Tensor,
    momentum: float = 0.0,
    weight_decay: float | Tensor = 0.0,
    clip: float | None = None,
) -> Step:
    """θ ← θ − lr·m with m ← momentum·m + g + weight_decay·θ, as torch.optim.SGD.

    `clip` bounds ‖g‖ first, as clip_grad_norm_ does. lr and weight_decay are numbers or one value per
    coordinate (P,).
    """

    def step(theta: Tensor, grad: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState]:
        grad = grad if clip is None else clipped(grad, clip)
        mean = momentum * state.first_moment + grad + weight_decay * theta
        return theta - lr * mean, OptimizerState(mean, state.second_moment, state.count + 1)

    return step


def adam(
    *,
    lr: float | Tensor,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float | Tensor = 0.0,
    decoupled: bool = True,
    clip: float | None = None,
) -> Step:
    """Adam with bias correction; AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) if decoupled.

    θ ← (1 − lr·weight_decay)·θ − lr·m̂/(√v̂ + eps), as torch.optim.AdamW; not decoupled, weight_decay·θ joins
    the gradient instead, as torch.optim.Adam. `clip` bounds ‖g‖ first, as clip_grad_norm_ does. lr and
    weight_decay are numbers or one value per coordinate (P,).
    """
    beta1, beta2 = betas

    def step(theta: Tensor, grad: Tensor, state: OptimizerState) -> tuple[Tensor, OptimizerState]:
        count = state.count + 1
        grad = grad if clip is None else clipped(grad, clip)
        grad = grad if decoupled else grad + weight_decay * theta
        mean = beta1 * state.first_moment + (1 - beta1) * grad
        square = beta2 * state.second_moment + (1 - beta2) * grad**2
        direction = (mean / (1 - beta1**count)) / ((square / (1 - beta2**count)).sqrt() + eps)
        kept = theta * (1 - lr * weight_decay) if decoupled else theta
        return kept - lr * direction, OptimizerState(mean, square, count)

    return step


def clipped(grad: Tensor, bound: float) -> Tensor:
    """The gradient (P,) scaled to norm at most bound; the 1e-6 is PyTorch's, kept to be the same map."""
    return grad * torch.clamp(bound / (grad.norm() + 1e-6), max=1.0)


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator != 0 else nan
