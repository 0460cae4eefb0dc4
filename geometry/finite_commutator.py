"""The published finite-step commutator, with the rounding that it is made of made visible."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan, sqrt

import torch
from torch import Tensor

from .objective import Loss, gradient


@dataclass(frozen=True)
class FiniteCommutator:
    """θ_AB − θ_BA over η² from parameters that were really stored, and what rounding did to it.

    Where `below_floor` holds, `raw` and `defect` are rounding noise and no measurement.
    """

    vector: Tensor  # (P,) (θ_AB − θ_BA) / η²
    raw: float  # ‖vector‖
    defect: float  # D = raw / (‖g_A‖ ‖g_B‖); nan if a gradient is zero
    step_size: float  # η, after the adaptive rule
    gradient_norms: tuple[float, float]
    compensated_raw: float  # the same from differences of gradients: no parameter is ever subtracted
    noise_floor: float  # norm of the rounding error of this value, in units of raw
    noise_floor_bound: float  # sqrt(Σ ulp(θ_i)²/3) / η²: were the four roundings independent
    defect_floor: float  # noise_floor / (‖g_A‖ ‖g_B‖)
    stagnant_fraction: float  # coordinates that a step leaves exactly where they are, mean of both batches
    below_floor: bool  # raw ≤ 2 noise_floor


def finite_commutator(
    loss_a: Loss,
    loss_b: Loss,
    theta: Tensor,
    *,
    step_size: float = 1e-3,
    adaptive: bool = False,
    min_step_norm: float = 1e-6,
) -> FiniteCommutator:
    """‖θ_AB − θ_BA‖ / (η² ‖g_A‖ ‖g_B‖) by four gradients at theta (P,), in the precision of theta.

    θ_AB takes a plain gradient step of η = step_size on A, then on B; θ_BA the other way round (Xu 2026,
    arXiv 2602.16746). `adaptive` is the rule of Xu 2026, arXiv 2602.16967: where a step is shorter than
    min_step_norm, η becomes min(min_step_norm / min(‖g_A‖, ‖g_B‖), 1). Ours differs: no 1e-12 is added to
    the denominator, norms are summed in float64, and the result carries its rounding error.

    With g' the gradients after the other batch's step, exact arithmetic gives
    θ_AB − θ_BA = η[(g'_A − g_A) − (g'_B − g_B)]. This `compensated_raw` involves no parameters; its
    difference to the stored one is the rounding error, `noise_floor`. The bound for independent roundings
    is several times too high where the bracket moves a coordinate by less than one ulp, for then the
    roundings of the two orders cancel.

    Raises:
        ValueError: step_size or min_step_norm is not positive and finite.
    """
    for name, value in (("step_size", step_size), ("min_step_norm", min_step_norm)):
        if not 0 < value < inf:
            raise ValueError(f"{name}={value} must be positive and finite")
    theta = theta.detach()
    grad_a, grad_b = gradient(loss_a, theta), gradient(loss_b, theta)
    norms = _norm(grad_a), _norm(grad_b)
    eta = _adapted(step_size, min(norms), min_step_norm) if adaptive else step_size
    after_a, after_b = theta - eta * grad_a, theta - eta * grad_b
    later_b, later_a = gradient(loss_b, after_a), gradient(loss_a, after_b)
    stored = ((after_a - eta * later_b) - (after_b - eta * later_a)).double() / eta**2
    compensated = ((later_a.double() - grad_a.double()) - (later_b.double() - grad_b.double())) / eta
    raw, floor, scale = _norm(stored), _norm(stored - compensated), norms[0] * norms[1]
    stagnant = [stagnant_fraction(theta, eta * grad) for grad in (grad_a, grad_b)]
    return FiniteCommutator(
        vector=stored.to(theta.dtype),
        raw=raw,
        defect=raw / scale if scale != 0 else nan,
        step_size=eta,
        gradient_norms=norms,
        compensated_raw=_norm(compensated),
        noise_floor=floor,
        noise_floor_bound=noise_floor_bound(theta, step_size=eta),
        defect_floor=floor / scale if scale != 0 else nan,
        stagnant_fraction=sum(stagnant) / 2,
        below_floor=raw <= 2 * floor,
    )


def noise_floor_bound(theta: Tensor, *, step_size: float) -> float:
    """sqrt(Σ_i ulp(θ_i)²/3) / η²: rounding of raw if all four roundings were independent.

    Each of the four subtractions rounds by a uniform error of variance ulp²/12. Needs no gradient.
    """
    return _norm(ulp(theta)) / sqrt(3) / step_size**2


def stagnant_fraction(theta: Tensor, step: Tensor) -> float:
    """Share of coordinates with |step_i| < ulp(θ_i)/2, which rounding leaves where they are."""
    return float((step.abs() < ulp(theta) / 2).double().mean())


def ulp(theta: Tensor) -> Tensor:
    """Distance from |θ_i| to the next larger number of the same type (P,)."""
    size = theta.abs()
    return torch.nextafter(size, torch.full_like(size, inf)) - size


def _adapted(step_size: float, smallest: float, min_step_norm: float) -> float:
    if step_size * smallest >= min_step_norm:
        return step_size
    return min(min_step_norm / smallest, 1.0) if smallest > 0 else 1.0


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
