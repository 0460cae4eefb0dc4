"""Curvatures at which optimizers lose stability, and the preconditioner that Adam measures curvature in.

All edges are those of the linear recurrence on a quadratic: an eigenvalue h of the (preconditioned) Hessian
grows without bound beyond the edge, in oscillations of period 2. They hold for full batches, without
clipping.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


def gradient_descent_edge(lr: float, *, l2: float = 0.0, decay: float = 0.0) -> float:
    """2/lr for x ← x − lr (h x + l2 x) − lr·decay·x: the edge is (2 − lr·decay)/lr − l2."""
    return _edge(lr, 0.0, 1.0, l2, decay)


def heavy_ball_edge(
    lr: float, momentum: float, *, dampening: float = 0.0, l2: float = 0.0, decay: float = 0.0
) -> float:
    """2(1 + b)/((1 − τ) lr) for v ← b v + (1 − τ) g, x ← x − lr v (torch.optim.SGD), b momentum, τ dampening.

    With g = (h + l2) x and decoupled decay: (1 + b)(2 − lr·decay)/((1 − τ) lr) − l2. Dampening of b gives
    momentum as an exponential mean.
    """
    return _edge(lr, momentum, 1 - dampening, l2, decay)


def nesterov_edge(
    lr: float, momentum: float, *, averaged: bool = False, l2: float = 0.0, decay: float = 0.0
) -> float:
    """2(1 + b)/((1 + 2b) lr) for v ← b v + g, x ← x − lr (g + b v) (torch.optim.SGD, nesterov=True).

    The averaged form, m ← b m + (1 − b) g, x ← x − lr (b m + (1 − b) g), has the edge over 1 − b.
    """
    gain = (1 + 2 * momentum) * (1 - momentum if averaged else 1.0)
    return _edge(lr, momentum, gain, l2, decay)


def adam_edge(lr: float, beta1: float = 0.9, *, decay: float = 0.0) -> float:
    """(1 + β₁)(2 − lr·decay)/((1 − β₁) lr): where λ_max(P⁻¹H) destabilizes Adam with a frozen P.

    38/lr at β₁ = 0.9 without decay; `decay` is the decoupled one of AdamW, the coupled one of Adam belongs
    into H. P moves, so at the edge the sharpness itself may go on rising. Cohen et al. 2022 (2207.14484);
    ours adds decay.
    """
    return _edge(lr, beta1, 1 - beta1, 0.0, decay)


def adam_preconditioner(
    second_moment: Tensor, step: int, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> Tensor:
    """P (P,) such that Adam's update after `step` steps is −lr P⁻¹m, for its raw moments m and v.

    P = (1 − β₁ᵗ)(sqrt(v/(1 − β₂ᵗ)) + eps) with v = second_moment (`exp_avg_sq`, without bias correction), t =
    step.

    Raises:
        ValueError: step is below 1, where Adam has no moments yet.
    """
    return (1 - betas[0] ** step) * (root_second_moment(second_moment, step, beta2=betas[1]) + eps)


def root_second_moment(second_moment: Tensor, step: int, *, beta2: float = 0.999) -> Tensor:
    """sqrt(v̂) = sqrt(v/(1 − β₂ᵗ)) (P,), Adam's bias-corrected root mean square gradient at t = step ≥ 1."""
    if step < 1:
        raise ValueError(f"step={step} must be at least 1; before it Adam has no second moments")
    return (second_moment / (1 - beta2**step)).sqrt()


class SpectralCeilings(NamedTuple):
    """(2/lr)(agg sqrt(v̂) + eps) for four aggregates of the vector of second moments."""

    mean: float
    median: float
    maximum: float
    along: float


def spectral_ceilings(root: Tensor, direction: Tensor, *, lr: float, eps: float) -> SpectralCeilings:
    """The ceilings of the spectral gate, λ_max(H) < (2/lr)(sqrt(v̂) + eps), for root = sqrt(v̂) (P,).

    The paper states one number for v̂ without saying which; `along` is uᵀ diag(root) u for the unit top
    eigenvector u = direction (P,). The gate takes gradient descent's edge for Adam's: it leaves out (1 +
    β₁)/(1 − β₁) = 19. arXiv 2603.15492, equation 5.
    """
    along = float((direction.double() ** 2 @ root.double()) / (direction.double() @ direction.double()))
    found = (float(root.double().mean()), float(root.double().median()), float(root.max()), along)
    return SpectralCeilings(*(2 / lr * (value + eps) for value in found))


def _edge(lr: float, momentum: float, gain: float, l2: float, decay: float) -> float:
    """Where the recurrence has the eigenvalue −1: (1 + b)(2 − lr·decay)/(gain·lr) − l2."""
    if not 0 <= momentum < 1 or gain <= 0:
        raise ValueError(f"momentum={momentum} must be in [0, 1) and dampening below 1")
    if not lr > 0 or not 0 <= lr * decay < 2:
        raise ValueError(f"lr={lr} must be positive and lr·decay={lr * decay:.3g} in [0, 2)")
    return (1 + momentum) * (2 - lr * decay) / (gain * lr) - l2
