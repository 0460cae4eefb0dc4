"""Null models of a trajectory: what its principal components would be if it went nowhere in particular.

Each null is an expected matrix of inner products (T, T) in closed form, no simulation: in high dimension
the Gram matrix of a random process is its expectation. `components` of `subspace.py` turns it into
explained variances with the same weights and centering as the data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .subspace import Array, Center, Gram, components, normalized


def time_weights(steps: NDArray[np.int64]) -> Array:
    """Weights (T,) in proportion to the time that each snapshot stands for, summing to one.

    w_i = (t_{i+1} - t_{i-1})/2 inside and the neighboring interval at the ends, so that they are equal on
    a uniform grid. A schedule that is dense early then answers as a uniform one does.

    Raises:
        ValueError: fewer than two snapshots, or steps that do not increase.
    """
    steps = np.asarray(steps, dtype=np.float64)
    if len(steps) < 2 or (np.diff(steps) <= 0).any():
        raise ValueError(f"steps must be at least two and increase; got {steps.tolist()[:5]}...")
    return normalized(np.gradient(steps), len(steps))


def uniform_subset(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the uniform grid of snapshots with the largest product of count and time covered."""
    steps = np.asarray(steps)
    chains = [_chain(steps, int(spacing)) for spacing in np.unique(np.diff(steps))]
    if not chains:
        raise ValueError(f"steps={steps.tolist()} must be at least two snapshots")
    return max(chains, key=lambda chain: len(chain) * (steps[chain[-1]] - steps[chain[0]]))


def random_walk_gram(step_squares: Array) -> Array:
    """Expected inner products (T, T) of a walk with squared step lengths s_k² (T - 1,), isotropic steps.

    K_ij = Σ_{k <= min(i, j)} s_k², relative to the start.
    """
    reached = np.concatenate([[0.0], np.cumsum(step_squares)])
    return np.asarray(np.minimum(reached[:, None], reached))


def random_walk_null(
    step_squares: Array,
    rank: int,
    *,
    weights: Array | None = None,
    center: Center = "mean",
    dimension: int | None = None,
) -> Array:
    """Explained variance (k,) expected of a random walk with the measured squared step lengths (T - 1,).

    For N snapshots with equal steps and weights it is 3/(2(N² - 1) sin²(kπ/2N)), centered, with the limit
    6/(kπ)²; relative to the first snapshot the limit is 8/((2k-1)π)². `dimension` d adds the
    correction of first order in 1/d, which matters below a few thousand parameters: with expected
    variances λ_k, τ = Σ λ_j, E ratio_k = λ_k/τ [1 + (Σ_{j≠k} λ_j/(λ_k - λ_j) - 2λ_k/τ + 2 Σ_j λ_j²/τ²)/d].

    Raises:
        ValueError: `rank` is below 1 or above T, or weights don't fit.
    """
    inner = random_walk_gram(step_squares)
    if dimension is None:
        return components(inner, rank, weights=weights, center=center).explained_variance
    found = components(inner, len(inner), weights=weights, center=center)
    return _in_dimension(found.variances, found.total_variance, rank, dimension)


def driven_steps(gram: Gram, steps: NDArray[np.int64], decay: float) -> tuple[Array, Array]:
    """What decay does not explain of the steps: lengths (T - 1,) and successive cosines (T - 2,).

    u_k = θ_k - e^{-decay (t_k - t_{k-1})} θ_{k-1}; cosines are <u_k, u_{k+1}>/(‖u_k‖ ‖u_{k+1}‖), zero
    where a step vanishes.
    """
    count = len(steps)
    keep = np.exp(-decay * np.diff(steps))
    step = np.eye(count)[1:] - keep[:, None] * np.eye(count)[:-1]
    inner = step @ gram.absolute @ step.T if decay else step @ gram.inner @ step.T
    lengths = np.sqrt(np.maximum(np.diag(inner), 0))
    scale = lengths[1:] * lengths[:-1]
    cosines = np.divide(np.diag(inner, 1), scale, out=np.zeros(count - 2), where=scale > 0)
    return lengths, cosines.clip(-1, 1)


def ornstein_uhlenbeck_gram(gram: Gram, steps: NDArray[np.int64], decay: float) -> Array:
    """Expected inner products (T, T) of a decaying walk with the run's step lengths and autocorrelation.

    θ_k = e^{-decay (t_k - t_{k-1})} θ_{k-1} + u_k from the run's θ_0, where u is isotropic with the lengths
    of the run's `driven_steps` and their successive cosines r_k, further correlations as in a Markov
    chain: corr(u_k, u_l) = r_k ... r_{l-1}. It knows how persistent the run moves, not where to.
    """
    lengths, cosines = driven_steps(gram, steps, decay)
    correlation = np.eye(len(lengths))
    for last, cosine in enumerate(cosines, start=1):
        correlation[:last, last] = correlation[last, :last] = cosine * correlation[:last, last - 1]
    age = np.subtract.outer(steps, steps[1:]).astype(np.float64)
    response = np.where(age >= 0, np.exp(-decay * np.maximum(age, 0)), 0) * lengths
    initial = decay_curve(steps, decay)
    return response @ correlation @ response.T + gram.first_square * np.outer(initial, initial)


def decay_curve(steps: NDArray[np.int64], decay: float) -> Array:
    """e^{-decay (t_i - t_0)} (T,): what is left of the initial weights under decay alone."""
    return np.exp(-decay * (np.asarray(steps, dtype=np.float64) - float(steps[0])))


def without_decay_gram(gram: Gram, steps: NDArray[np.int64], decay: float) -> Array:
    """Inner products (T, T) of θ_i - e^{-decay (t_i - t_0)} θ_0: the run without its decaying start."""
    lost = 1 - decay_curve(steps, decay)
    cross = np.outer(gram.first, lost)
    return gram.inner + cross + cross.T + gram.first_square * np.outer(lost, lost)


def measured_decay(gram: Gram, steps: NDArray[np.int64]) -> float:
    """The rate at which steps shrink the parameters: -Σ <θ_k - θ_{k-1}, θ_{k-1}> / Σ Δt_k ‖θ_{k-1}‖².

    Least squares of the steps on the positions, per optimizer step, and at least 0: what weight decay and
    the loss do together. For runs whose optimizer is not known.
    """
    absolute = gram.absolute
    before = np.diag(absolute)[:-1]
    work = np.diag(absolute, 1) - before
    return max(0.0, float(-work.sum() / (np.diff(steps) * before).sum()))


def _chain(steps: NDArray[np.int64], spacing: int) -> NDArray[np.int64]:
    """Indices of the longest arithmetic progression of steps with the given difference."""
    index = {int(step): i for i, step in enumerate(steps)}
    best: list[int] = []
    for step in index:
        if step - spacing not in index:
            chain = [step]
            while chain[-1] + spacing in index:
                chain.append(chain[-1] + spacing)
            best = max(best, chain, key=len)
    return np.array([index[step] for step in best], dtype=np.int64)


def _in_dimension(variances: Array, total: float, rank: int, dimension: int) -> Array:
    gaps = np.subtract.outer(variances[:rank], variances)
    repelled = np.divide(variances, gaps, out=np.zeros_like(gaps), where=gaps != 0).sum(axis=1)
    share = variances[:rank] / total
    spread = 2 * (variances**2).sum() / total**2
    return np.asarray(share * (1 + (repelled - 2 * share + spread) / dimension))
