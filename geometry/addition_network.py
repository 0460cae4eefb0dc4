"""The two-layer network for modular addition with shared input weights, and its full-population gradient.

logits_j(a, b) = Σ_m ξ_m[j] (θ_m[a] + θ_m[b])², cross-entropy averaged over all p² pairs (He et al. 2026,
arXiv 2602.16849, quadratic activation). Without a training set there is nothing to memorize, and the loss
keeps the symmetry of Z_p: the setting of the reduced dynamics in `feature_lottery`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .feature_lottery import Modes

Array = NDArray[np.float64]


def logits(inputs: Array, outputs: Array, *, activation: str = "quadratic") -> Array:
    """Logits (p, p, p) over operands a, b and classes j, of inputs θ and outputs ξ, both (M, p).

    activation: quadratic or relu.
    """
    hidden = _sums(inputs)
    active = hidden**2 if activation == "quadratic" else np.maximum(hidden, 0.0)
    p = inputs.shape[1]
    return np.asarray((active @ outputs).reshape(p, p, p))


def gradient(inputs: Array, outputs: Array) -> tuple[float, Array, Array]:
    """The loss and its gradients by θ and ξ, both (M, p), written out by hand. Costs 3 p³ M multiplications.

    With residual r = softmax − one-hot over p² and h = θ[a] + θ[b]: ∂ξ = Σ h² r, ∂θ[x] collects 2 h (r ξᵀ)
    from the pairs in which x stands, twice where a = b = x.
    """
    units, p = inputs.shape
    hidden = _sums(inputs)
    scores = hidden**2 @ outputs
    scores -= scores.max(1, keepdims=True)
    probabilities = np.exp(scores)
    totals = probabilities.sum(1, keepdims=True)
    answers = np.add.outer(np.arange(p), np.arange(p)).ravel() % p
    rows = np.arange(p * p)
    loss = float((np.log(totals[:, 0]) - scores[rows, answers]).mean())
    residual = probabilities / totals
    residual[rows, answers] -= 1
    residual /= p * p
    back = (2 * hidden * (residual @ outputs.T)).reshape(p, p, units)
    return loss, (back.sum(0) + back.sum(1)).T, (hidden**2).T @ residual


def descend(
    inputs: Array, outputs: Array, *, step_size: float, steps: Sequence[int]
) -> Iterator[tuple[float, Array, Array]]:
    """Loss, θ and ξ at each of `steps`, increasing, of gradient descent: explicit Euler of gradient flow.

    Time is step · step_size.
    """
    done = 0
    for wanted in steps:
        for _ in range(wanted - done):
            _, by_inputs, by_outputs = gradient(inputs, outputs)
            inputs, outputs = inputs - step_size * by_inputs, outputs - step_size * by_outputs
        done = wanted
        yield gradient(inputs, outputs)[0], inputs, outputs


def from_modes(modes: Modes, *, modulus: int) -> tuple[Array, Array]:
    """Weights θ and ξ (M, p) whose modes are modes (M, K) and whose means are zero."""
    spectra = (modes.alpha * np.exp(1j * modes.phi), modes.beta * np.exp(1j * modes.psi))
    padded = (np.pad(modulus / 2 * spectrum, ((0, 0), (1, 0))) for spectrum in spectra)
    theta, xi = (np.fft.irfft(spectrum, n=modulus, axis=1) for spectrum in padded)
    return theta, xi


def ghost_ratio(scores: Array) -> float:
    """How high the two wrong answers 2a and 2b stand beside the right one a + b, above the others.

    Of logits (p, p, p) over a ≠ b: mean over (logit[2a] + logit[2b])/2 minus baseline, divided by mean
    logit[a + b] minus baseline, the baseline being the mean over the other classes. The flawed indicator of
    the paper, (p/2) 1[j = a+b] + (p/4)(1[j = 2a] + 1[j = 2b]), has ½.
    """
    p = len(scores)
    a, b = np.nonzero(~np.eye(p, dtype=bool))
    at = [scores[a, b, j % p] for j in (a + b, 2 * a, 2 * b)]
    right, ghosts = at[0].mean(), (at[1].mean() + at[2].mean()) / 2
    base = (scores[a, b].sum(1) - sum(at)).mean() / (p - 3)
    return float((ghosts - base) / (right - base))


def _sums(inputs: Array) -> Array:
    """θ[a] + θ[b] for all pairs, (p², M)."""
    rows = np.asarray(inputs).T
    return np.asarray((rows[:, None] + rows[None]).reshape(-1, len(inputs)))
