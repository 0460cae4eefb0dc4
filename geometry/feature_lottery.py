"""Frequencies that compete within a hidden unit: the reduced dynamics of two-layer feature learning.

Setting of "On the Mechanism and Dynamics of Modular Addition" (He et al. 2026, arXiv 2602.16849): logits_j =
Σ_m ξ_m[j] σ(θ_m[a] + θ_m[b]) for (a + b) mod p, odd p. A unit's weights are sums of K = (p−1)/2 waves,
θ[j] = Σ_k α_k cos(2πkj/p + φ_k) and ξ[j] = Σ_k β_k cos(2πkj/p + ψ_k).

For σ(x) = x², cross-entropy over all p² pairs and weights so small that the softmax is uniform, gradient flow
leaves all units and frequencies alone with themselves:

    α' = (2/p) αβ cos D,  β' = (1/p) α² cos D,  φ' = −(2/p) β sin D,  ψ' = (1/p)(α²/β) sin D,  D = 2φ − ψ.

α² − 2β² and α²β sin D are conserved, D goes to 0, and α, β become infinite at a time of closed form: the
frequency with the earliest one wins the unit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp
from scipy.special import elliprf

from .fourier import wrapped

Array = NDArray[np.float64]


class Modes(NamedTuple):
    """Amplitudes α, β and phases φ, ψ of input and output weights, four arrays of equal shape."""

    alpha: Array
    beta: Array
    phi: Array
    psi: Array

    @property
    def misalignment(self) -> Array:
        """D = 2φ − ψ in (−π, π]."""
        return wrapped(2 * self.phi - self.psi)

    @property
    def invariants(self) -> tuple[Array, Array]:
        """α² − 2β² and α²β sin D, both constant along the flow."""
        alpha, beta, phi, psi = self
        return alpha**2 - 2 * beta**2, alpha**2 * beta * np.sin(2 * phi - psi)


def modes(inputs: Array, outputs: Array) -> Modes:
    """The modes (M, K) of M units with input weights θ and output weights ξ, both (M, p), p odd.

    α_k e^{iφ_k} = (2/p) Σ_j θ[j] e^{−2πikj/p}, k = 1 … K; the mean of the weights is left out.
    """
    p = inputs.shape[-1]
    if p % 2 == 0 or inputs.shape != outputs.shape:
        raise ValueError(
            f"inputs and outputs have shapes {inputs.shape}, {outputs.shape}; give both (M, p) with odd p"
        )
    spectra = [2 / p * np.fft.rfft(w, axis=-1)[..., 1:] for w in (inputs, outputs)]
    (alpha, beta), (phi, psi) = (np.abs(s) for s in spectra), (np.angle(s) for s in spectra)
    return Modes(alpha, beta, phi, psi)


def velocity(modes: Modes, *, modulus: int) -> Modes:
    """The time derivatives of modes, by the equations above."""
    alpha, beta, phi, psi = modes
    c, s = np.cos(2 * phi - psi), np.sin(2 * phi - psi)
    parts = (2 * alpha * beta * c, alpha**2 * c, -2 * beta * s, alpha**2 / beta * s)
    return Modes(*(part / modulus for part in parts))


def flow(start: Modes, times: ArrayLike, *, modulus: int, tolerance: float = 1e-10) -> Modes:
    """The modes at each of times (T,), increasing from 0, stacked before their own shape: (T, ...).

    Integrates u = α e^{iφ} and v = β e^{iψ}, for which the equations are u' = (2/p) ū v and v' = (1/p) u²:
    smooth also where an amplitude passes zero. DOP853 at relative tolerance `tolerance`.

    Raises:
        ValueError: a mode becomes infinite before the last of times.
    """
    last = float(np.max(times))
    if not last < (end := float(blow_up_time(start, modulus=modulus).min())):
        raise ValueError(f"times reach {last:.6g} but a mode is infinite at {end:.6g}; ask for earlier ones")
    u, v = start.alpha * np.exp(1j * start.phi), start.beta * np.exp(1j * start.psi)
    state = np.stack([u, v]).reshape(2, -1)
    scale = float(np.abs(state).max())

    def derivative(_: float, flat: NDArray[Any]) -> NDArray[Any]:
        u, v = flat.reshape(2, -1)
        return np.concatenate([2 * u.conj() * v, u**2]) / modulus

    found = solve_ivp(
        derivative,
        (0.0, last),
        state.ravel(),
        method="DOP853",
        t_eval=np.atleast_1d(times),
        rtol=tolerance,
        atol=tolerance * scale,
    )
    u, v = (part.T.reshape(-1, *np.shape(start.alpha)) for part in np.split(found.y, 2))
    return Modes(np.abs(u), np.abs(v), np.angle(u), np.angle(v))


def blow_up_time(start: Modes, *, modulus: int) -> Array:
    """The time at which each mode becomes infinite, in closed form; inf where it never does.

    With u = β² and the invariants c = α² − 2β², e = α²β sin D the flow is (du/dt)² = (4/p²) f(u),
    f(u) = u (c + 2u)² − e². To infinity it takes ∫_u^∞ p/(2√f) du = (p/2) R_F(u−r₁, u−r₂, u−r₃), r the
    roots of f and R_F Carlson's elliptic integral; with cos D < 0 first u falls to the largest root r₁, and
    pays the way back. Derived here; the paper compares frequencies by bounds on the ODE.
    """
    c, e = start.invariants
    u, falling = start.beta**2, np.cos(start.misalignment) < 0
    turn = np.minimum(_largest_root(c, e), u)
    way = _from(u, turn, c)
    return np.asarray(modulus / 2 * np.where(falling, 2 * _from(turn, turn, c) - way, way))


def lottery(start: Modes, *, modulus: int) -> NDArray[np.int64]:
    """The frequency (M,) that the reduced dynamics lets win each unit of start (M, K): earliest blow-up."""
    return np.asarray(1 + blow_up_time(start, modulus=modulus).argmin(-1))


def _largest_root(c: Array, e: Array) -> Array:
    """The root r ≥ max(0, −c/2) of 4u³ + 4cu² + c²u − e², by Viète's and its hyperbolic formula."""
    size = np.abs(c)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        g = np.sign(c) + 27 * e**2 / size**3
        bounded, beyond = np.arccos(np.clip(g, -1, 1)), np.arccosh(np.maximum(g, 1))
        x = size / 3 * np.where(g > 1, np.cosh(beyond / 3), np.cos(bounded / 3))
    return np.where(np.isfinite(g), x - c / 3, np.cbrt(e**2 / 4))


def _from(u: Array, root: Array, c: Array) -> Array:
    """R_F(u − r₁, u − r₂, u − r₃) from the largest root r₁; the others are −(c + r₁ ± √(−r₁(2c + 3r₁)))/2."""
    half = np.sqrt((-root * (2 * c + 3 * root)).astype(np.complex128)) / 2
    middle = u + (c + root) / 2
    return np.asarray(elliprf((u - root).astype(np.complex128), middle + half, middle - half).real)
