"""Exact nβ E[L] at finite nβ under exp(−nβ L(w)) times a localizing density: what a sampler should find.

Learning coefficients are limits that chains never reach; these are the numbers to test samplers against.
Quadrature is by Gauss-Legendre panels in the logarithm of each variable, where every scale is alike.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

_NODES = 28  # per panel of unit length in log x: relative error below 1e-12 up to exponents 6
_DEPTH = 45.0  # e^-45 of the largest scale: what lies below weighs less than roundoff
_REACH = 10.0  # standard deviations of the localizing Gaussian that are integrated over


class Drift(NamedTuple):
    """λ̂ of a quadratic loss whose center is no minimum: `llc` = `tilted` + `drift`."""

    llc: float
    tilted: float
    drift: float


def quadratic(
    curvatures: ArrayLike, *, num_beta: float, localization: float, step_size: float = 0.0
) -> float:
    """½ Σ_i nβ a_i/(h_i(1 − ε h_i/4)), h_i = nβ a_i + γ: what SGLD finds for a quadratic loss.

    a = curvatures (k,), nβ = num_beta, γ = localization; ε = step_size is that of the Euler scheme, 0
    for the exact law. NaN if some h_i ≤ 0 (no such law exists) or ε h_i ≥ 4 (the scheme is unstable).
    """
    parts = quadratic_parts(curvatures, num_beta=num_beta, localization=localization, step_size=step_size)
    return float(parts.sum())


def quadratic_parts(
    curvatures: ArrayLike, *, num_beta: float, localization: float, step_size: float = 0.0
) -> Array:
    """The summands of `quadratic`, in the shape of curvatures; all NaN if one direction has no law."""
    a = np.asarray(curvatures, dtype=float)
    h = num_beta * a + localization
    if np.any(h <= 0) or np.any(step_size * h >= 4):
        return np.full_like(a, np.nan)
    parts: Array = num_beta * a / (2 * h * (1 - step_size * h / 4))
    return parts


def quadratic_drift(
    curvatures: ArrayLike, gradient: ArrayLike, *, num_beta: float, localization: float
) -> Drift:
    """λ̂ = ½ Σ nβa/h − ½(nβ)² Σ g_i²(nβ a_i + 2γ)/h_i² for L = g·w + ½ wᵀAw localized at 0.

    a = curvatures (k,), g = gradient (k,) in the eigenbasis of A, h = nβa + γ. The second term is the
    drift: the chain walks downhill from a center that is no minimum.
    """
    a, g = np.asarray(curvatures, dtype=float), np.asarray(gradient, dtype=float)
    h = num_beta * a + localization
    tilted = quadratic(a, num_beta=num_beta, localization=localization)
    drift = -0.5 * num_beta**2 * float(np.sum(g**2 * (num_beta * a + 2 * localization) / h**2))
    return Drift(tilted + drift, tilted, drift)


def normal_crossing(
    exponents: tuple[int, int],
    *,
    num_beta: float,
    localization: float | None = None,
    center: tuple[float, float] = (0.0, 0.0),
    box: float = 1.0,
) -> float:
    """nβ E[w1^a w2^b], (a, b) = exponents, both even and positive.

    The density is exp(−nβ w1^a w2^b) times exp(−(γ/2)|w − center|²) with γ = localization on the
    plane, or, without localization, times 1 on [−box, box]².

    Raises:
        ValueError: an exponent is odd or below 2.
    """
    if any(e < 2 or e % 2 for e in exponents):
        raise ValueError(f"exponents={exponents} must be even and at least 2")
    (x, p), (y, q) = (_line(c, localization, box) for c in center)
    loss = num_beta * np.outer(np.abs(x) ** exponents[0], np.abs(y) ** exponents[1])
    density = np.exp(-loss) * np.outer(p, q)
    return float(np.sum(density * loss) / np.sum(density))


def _line(center: float, localization: float | None, box: float) -> tuple[Array, Array]:
    """Nodes on both half lines, and their weights times the localizing density."""
    if localization is None:
        x, weight = _log_panels(log(box) - _DEPTH, log(box))
        return x, weight
    reach = log(abs(center) + _REACH / localization**0.5)
    x, weight = _log_panels(reach - _DEPTH, reach)
    nodes = np.concatenate([-x[::-1], x])
    return nodes, np.concatenate([weight[::-1], weight]) * np.exp(-localization / 2 * (nodes - center) ** 2)


def reduced_rank(
    input_dim: int, hidden_dim: int, output_dim: int, *, num_beta: float, localization: float
) -> float:
    """nβ E[L] for L = ½‖BA‖², A (H, M), B (N, H), localized by γ around the origin.

    Integrating B out leaves the m = min(M, H) nonzero eigenvalues s of AAᵀ with density
    ∏ s_i^((|M−H|−1)/2) e^(−γ s_i/2) (nβ s_i + γ)^(−N/2) ∏_{i<j} |s_i − s_j|, and the value is
    E Σ_i (N/2) nβ s_i/(nβ s_i + γ), nβ = num_beta, γ = localization. The m-fold integral is a Pfaffian
    (de Bruijn 1955), so the cost is one quadrature in s. Relative error below 1e-9 for m ≤ 4, 1e-5 for 5.

    Raises:
        ValueError: m > 5, where the Pfaffian is lost in roundoff.
    """
    M, H, N = input_dim, hidden_dim, output_dim
    if min(M, H) > 5:
        raise ValueError(
            f"min(input_dim, hidden_dim)={min(M, H)} must be at most 5; try the transposed problem"
        )
    low = log(min(1.0, localization / num_beta) / localization) - 2 * _DEPTH
    s, weight = _log_panels(low, log(40 * (M + H + _REACH**2) / localization))
    density = (abs(M - H) - 1) / 2 * np.log(s) - localization * s / 2
    density -= N / 2 * np.log(num_beta * s + localization)
    measure = weight * np.exp(density - density.max())
    right = _orthonormal_polynomials(s, measure, min(M, H)) * measure
    left = right * (N / 2 * num_beta * s / (num_beta * s + localization))
    kernel, change = _sign_products(right, right), _sign_products(left, right)
    if len(right) % 2:
        kernel, change = _bordered(kernel, right, -1), _bordered(change, left, 0)
    return float(np.trace(np.linalg.solve(kernel, change)))


def _sign_products(left: Array, right: Array) -> Array:
    """∬ sgn(y − x) left_i(x) right_j(y) dx dy for functions given as weighted values (m, nodes)."""
    panels = left.reshape(len(left), -1, _NODES)
    before = np.cumsum(panels.sum(2), 1) - panels.sum(2)
    below = (panels @ _running_integral().T + before[:, :, None]).reshape(left.shape)
    found: Array = (2 * below - left.sum(1, keepdims=True)) @ right.T
    return found


def _bordered(kernel: Array, functions: Array, sign: int) -> Array:
    """The kernel with the integrals of m functions as a further column, and sign times them as a row."""
    column = functions.sum(1, keepdims=True)
    return np.block([[kernel, column], [sign * column.T, np.zeros((1, 1))]])


def _log_panels(low: float, high: float) -> tuple[Array, Array]:
    """Nodes x and weights for ∫ f(x) dx over [e^low, e^high], in panels of about unit length in log x."""
    edges = np.linspace(low, high, int(high - low) + 2)
    unit, weight = legendre.leggauss(_NODES)
    half = np.diff(edges)[:, None] / 2
    x = np.exp((edges[:-1, None] + edges[1:, None]) / 2 + half * unit).ravel()
    return x, (half * weight).ravel() * x


def _running_integral() -> Array:
    """Matrix that turns weighted values at the nodes of a panel into the integral up to each node."""
    unit, _ = legendre.leggauss(_NODES)
    values = legendre.legvander(unit, _NODES)
    order = np.arange(1, _NODES)
    integrals = np.column_stack([1 + unit, (values[:, 2:] - values[:, :-2]) / (2 * order + 1)])
    found: Array = integrals * (np.arange(_NODES) + 0.5) @ values[:, :-1].T
    return found


def _orthonormal_polynomials(x: Array, measure: Array, count: int) -> Array:
    """Values (count, nodes) of the polynomials orthonormal under the measure, by the Arnoldi process."""
    found = [np.ones_like(x) / np.sqrt(measure.sum())]
    while len(found) < count:
        fresh = found[-1] * x
        for _ in range(2):
            fresh = fresh - sum(np.sum(measure * p * fresh) * p for p in found)
        found.append(fresh / np.sqrt(np.sum(measure * fresh**2)))
    return np.array(found)
