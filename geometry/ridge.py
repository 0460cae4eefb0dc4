"""Ridge regression groks: its training and generalization times, exactly, from the singular values.

Setting of "To Grok Grokking: Provable Grokking in Ridge Regression" (2026, arXiv 2601.19791): n
samples, m > n features, gradient descent from a large initialization. Training directions converge at
rates η(μ_i + λ), the null space of the features only by weight decay, at ηλ: a delay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, log, log1p, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
_BLOCK = 4096


@dataclass(frozen=True)
class RidgeDescent:
    """Gradient descent θ ← θ − η(Φᵀ(Φθ − Φθ*)/n + λθ), solved in the singular basis of Φ.

    features (n, m) is Φ, theta (m,) the start, teacher (m,) is θ*, covariance the population covariance S:
    its diagonal (m,), a root R (r, m) with S = RᵀR, or 1/m each if None; lr = η, ridge = λ. The features
    of r fresh samples over √r are a root.
    """

    features: FloatArray
    theta: FloatArray
    teacher: FloatArray
    lr: float
    ridge: float
    covariance: FloatArray | None = None

    def __post_init__(self) -> None:
        curvature = np.linalg.svd(self.features, compute_uv=False)[0] ** 2 / len(self.features) + self.ridge
        if self.ridge <= 0:
            raise ValueError(f"ridge={self.ridge} must be positive; without it the null space never decays")
        if not 0 < self.lr * curvature < 2:
            raise ValueError(f"lr={self.lr} diverges; ask for less than {2 / curvature:.6g}")

    def at(self, step: float) -> FloatArray:
        """θ after `step` steps (m,), without iterating."""
        limit, parts, factors = self._modes
        return limit + parts @ factors**step

    def train_loss(self, steps: ArrayLike) -> FloatArray:
        """‖Φ(θ_t − θ*)‖²/(2n), without the penalty, at each of steps (T,)."""
        return self._quadratic(self._train, steps)

    def population_loss(self, steps: ArrayLike) -> FloatArray:
        """(θ_t − θ*)ᵀ S (θ_t − θ*), without a factor ½, at each of steps (T,)."""
        return self._quadratic(self._population, steps)

    def squared_norm(self, steps: ArrayLike) -> FloatArray:
        """‖θ_t‖² at each of steps (T,)."""
        return np.array([float(theta @ theta) for theta in map(self.at, np.atleast_1d(steps))])

    def memorization_step(self, eps: float) -> int | None:
        """t₁ = the last step at which the train loss is at least eps; None if it never is or stays so."""
        if self.train_loss(np.inf)[0] >= eps:
            return None
        for block in _blocks(0, self._settled(self._train, eps) + 1, backward=True):
            high = np.flatnonzero(self.train_loss(block) >= eps)
            if len(high):
                return int(block[high[-1]])
        return None

    def generalization_step(self, c: float) -> int | None:
        """t₂ = the first step at which the population loss is at most c; None if it never is."""
        start = ceil(max(1.0, self.deterministic_lower_bound(c))) - 1
        for block in _blocks(start, self._settled(self._population, c) + 1):
            low = np.flatnonzero(self.population_loss(block) <= c)
            if len(low):
                return int(block[low[0]])
        return None

    def deterministic_lower_bound(self, c: float) -> float:
        """ln(‖θ₀⊥‖²/(√(c/min S) + ‖θ*‖)²)/(−2 ln(1 − ηλ)): t₂ is never earlier; θ₀⊥ in the null space.

        −∞ for a covariance given by its root, which may be singular.
        """
        if self._covariance.ndim == 2:
            return -inf
        *_, right = np.linalg.svd(self.features, full_matrices=False)
        null = self.theta - right.T @ (right @ self.theta)
        reach = sqrt(c / self._covariance.min()) + float(np.linalg.norm(self.teacher))
        return 2 * log(float(np.linalg.norm(null)) / reach) / (-2 * log1p(-self.lr * self.ridge))

    def memorization_bound(self, eps: float) -> float:
        """The paper's upper bound on t₁: n ln(6b²‖θ₀‖²/eps)/(2η μ), b the largest row norm of Φ.

        μ is the smallest positive eigenvalue of ΦΦᵀ. Holds for small ridge and large n (Theorem 4.2).
        """
        values = np.linalg.svd(self.features, compute_uv=False)
        smallest = float(values[values > values[0] * 1e-12].min()) ** 2
        reach = float((self.features**2).sum(1).max() * (self.theta @ self.theta))
        return len(self.features) * log(6 * reach / eps) / (2 * self.lr * smallest)

    def generalization_bound(self, c: float, *, variance: float) -> float:
        """The paper's lower bound on t₂, in probability over θ₀ ~ N(0, variance·I).

        It is ln(((m − n)ν²/2)/(√(c/min S) + ‖θ*‖)²)/(4ηλ) with ν² = variance (Theorem 4.2), about half
        of the deterministic bound. −∞ for a covariance given by its root, which may be singular.
        """
        if self._covariance.ndim == 2:
            return -inf
        rows, columns = self.features.shape
        reach = sqrt(c / self._covariance.min()) + float(np.linalg.norm(self.teacher))
        return log((columns - rows) * variance / 2 / reach**2) / (4 * self.lr * self.ridge)

    @cached_property
    def _covariance(self) -> FloatArray:
        columns = self.features.shape[1]
        return np.full(columns, 1 / columns) if self.covariance is None else np.asarray(self.covariance)

    @cached_property
    def _modes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(limit (m,), parts (m, k), factors (k,)): θ_t = limit + parts @ factors^t."""
        _, values, right = np.linalg.svd(self.features, full_matrices=False)
        mu = values**2 / len(self.features)
        target = mu * (right @ self.teacher) / (mu + self.ridge)
        start = right @ self.theta
        null = self.theta - right.T @ start
        parts = np.column_stack([right.T * (start - target), null])
        return right.T @ target, parts, 1 - self.lr * np.append(mu + self.ridge, self.ridge)

    @cached_property
    def _train(self) -> FloatArray:
        return self._reduced(lambda vectors: self.features @ vectors / sqrt(2 * len(self.features)))

    @cached_property
    def _population(self) -> FloatArray:
        if self._covariance.ndim == 2:
            return self._reduced(lambda vectors: self._covariance @ vectors)
        return self._reduced(lambda vectors: np.sqrt(self._covariance)[:, None] * vectors)

    def _reduced(self, root: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """R (r, 1 + k) with ‖root(θ_t − θ*)‖² = ‖R [1, factors^t]‖²."""
        limit, parts, _ = self._modes
        return np.asarray(np.linalg.qr(root(np.column_stack([limit - self.teacher, parts])))[1])

    def _quadratic(self, reduced: FloatArray, steps: ArrayLike) -> FloatArray:
        powers = self._modes[2][:, None] ** np.atleast_1d(np.asarray(steps, dtype=np.float64))
        return np.asarray(((reduced[:, :1] + reduced[:, 1:] @ powers) ** 2).sum(0))

    def _settled(self, reduced: FloatArray, level: float) -> int:
        """A step from which the loss stays on that side of level on which its limit lies."""
        room = abs(sqrt(level) - float(np.linalg.norm(reduced[:, 0])))
        sizes, factors = np.linalg.norm(reduced[:, 1:], axis=0), np.abs(self._modes[2])
        if room == 0:
            raise ValueError(f"level={level} is the limit of the loss itself, never passed; ask for another")
        return _first(lambda step: float(sizes @ factors**step) < room)


def _first(holds: Callable[[int], bool]) -> int:
    """The first step at which a condition holds that stays true once it is."""
    high = 1
    while not holds(high):
        high *= 2
    low = 0
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _blocks(start: int, stop: int, *, backward: bool = False) -> Iterator[NDArray[np.int64]]:
    edges = range(start, stop, _BLOCK)
    for edge in reversed(edges) if backward else edges:
        yield np.arange(edge, min(edge + _BLOCK, stop))
