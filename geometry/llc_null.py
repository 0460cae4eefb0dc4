"""The quadratic null of a local learning coefficient: what the Hessian alone predicts."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import finite_beta
from .objective import Objective
from .operators import hessian_operator
from .spectrum import Estimate, SpectralDensity, spectral_density

Array = NDArray[np.float64]

PROBES, NODES = 2, 24


def hessian_density(
    objective: Objective,
    theta: Tensor,
    *,
    probes: int = PROBES,
    nodes: int = NODES,
    generator: torch.Generator | None = None,
) -> SpectralDensity:
    """Spectral density of the Hessian at theta (P,), as fine as a null needs (probes·nodes products).

    The integrand of the null varies on the scale γ/nβ, so few nodes suffice; its ends, from which
    stability and relaxation follow, are those of Lanczos after that many products.
    """
    operator = hessian_operator(objective, theta)
    return spectral_density(operator, probes=probes, nodes=nodes, generator=generator)


def quadratic_null(
    density: SpectralDensity,
    *,
    num_beta: float,
    localization: float,
    step_size: float = 0.0,
    absolute: bool = False,
) -> Estimate:
    """λ_quad = P ∫ρ(a) ½ nβa/(h(1 − εh/4)) da, h = nβa + γ, without sampling; NaN where some h ≤ 0.

    nβ = num_beta, γ = localization; ε = step_size of the Euler scheme, 0 for averaged noise, which has
    no such error. `absolute` takes |a| for a: the scale of λ where curvatures cancel. The standard error
    sqrt(2 P ∫ρ f²/probes), f the integrand, is that of Gaussian probes and holds for a single one.
    """
    values = np.abs(density.nodes) if absolute else density.nodes
    parts = finite_beta.quadratic_parts(
        values, num_beta=num_beta, localization=localization, step_size=step_size
    )
    mean = density.dim * float((density.weights * parts).sum(1).mean())
    square = density.dim * float((density.weights * parts**2).sum(1).mean())
    return Estimate(mean, float(np.sqrt(2 * square / len(parts))))


def energy_time(density: SpectralDensity, *, num_beta: float, localization: float, step_size: float) -> float:
    """Draws per independent draw of nβL in a quadratic: Σ f²(1 + ρ²)/(1 − ρ²) / Σ f², at least one.

    f = nβa/h and ρ = 1 − εh/2 with h = nβa + γ: direction i has variance f²/2 in nβL and autocorrelations
    ρ^(2k). An upper estimate for minibatches, whose noise in L is independent from draw to draw. The slowest
    direction counts alone where no curvature is positive.
    """
    curvatures = np.maximum(density.nodes, 0.0)
    h = num_beta * curvatures + localization
    squares = (1 - step_size * h / 2) ** 2
    weights = density.weights * (num_beta * curvatures / h) ** 2
    weights = weights if weights.any() else density.weights
    with np.errstate(divide="ignore"):
        times = np.where(squares < 1, (1 + squares) / (1 - squares), np.inf)
    return max(1.0, float((weights * times)[weights > 0].sum() / weights.sum()))
