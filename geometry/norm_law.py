"""The norm-separation delay law: how long weight decay takes from one squared norm to a smaller one.

Throughout, V = squared_norm = ‖θ‖². Weight decay alone multiplies θ by (1 − ηλ) per step, hence V by
(1 − ηλ)²: the log-rate of V is −2 ln(1 − ηλ) ≈ 2ηλ. The law's paper (Truong Xuan Khanh et al. 2026,
arXiv 2603.13331) bounds the rate of V by ηλ in its text and divides by 2ηλ in its code; here the exact
value stands. Its successor (arXiv 2605.18845) multiplies 2ηλ by a fitted κ = 0.252.
"""

from __future__ import annotations

from math import ceil, inf, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def contraction_rate(
    *, lr: float, weight_decay: float, optimizer: str = "adamw", momentum: float = 0.0
) -> float:
    """−d ln V/dt per optimizer step under weight decay alone (loss gradient zero).

    AdamW, and SGD with its decay added to the gradient: −2 ln(1 − ηλ), with η = lr and λ = weight_decay.
    SGD with momentum μ: −2 ln ρ asymptotically, ρ the spectral radius of [[1 − ηλ, −ημ], [λ, μ]].

    Raises:
        ValueError: Adam with coupled decay, which has no exponential rate (see
            `coupled_adam_squared_norm`), an unknown optimizer, or a decay that does not contract.
    """
    if optimizer == "adam":
        raise ValueError(
            "optimizer='adam' with coupled decay shrinks the norm linearly; use coupled_adam_squared_norm"
        )
    if optimizer not in ("adamw", "sgd"):
        raise ValueError(f"optimizer={optimizer!r} must be adamw or sgd; no decay law is known for others")
    factor = (
        _momentum_radius(lr, weight_decay, momentum)
        if optimizer == "sgd" and momentum
        else 1 - lr * weight_decay
    )
    if not abs(factor) < 1 or factor == 0:
        raise ValueError(
            f"lr*weight_decay={lr * weight_decay:g} does not contract; it must be in (0, 1) or (1, 2)"
        )
    return -2 * log(abs(factor))


def decayed_squared_norm(start: ArrayLike, steps: ArrayLike, *, rate: float) -> FloatArray:
    """V after `steps` steps at log-rate `rate`, from V = start: start · exp(−rate · steps)."""
    return np.asarray(start, dtype=np.float64) * np.exp(-rate * np.asarray(steps, dtype=np.float64))


def delay(start: ArrayLike, target: ArrayLike, *, rate: ArrayLike) -> FloatArray:
    """Steps that V needs from `start` to `target` at log-rate `rate`: ln(start/target) / rate.

    The delay law. Negative when the target lies above the start: the law then does not apply. The whole
    number of steps after which V is at or below the target is `passage_step`.

    Raises:
        ValueError: a norm or the rate is not positive.
    """
    start, target, rate = (np.asarray(x, dtype=np.float64) for x in (start, target, rate))
    for name, value in (("start", start), ("target", target), ("rate", rate)):
        if not (value > 0).all():
            raise ValueError(f"{name}={value} must be positive")
    return np.log(start / target) / rate


def passage_step(start: float, target: float, *, rate: float) -> int:
    """The first whole step at which V = start · exp(−rate · step) is at or below target; at least 0."""
    return max(0, ceil(float(delay(start, target, rate=rate))))


def implied_target(start: ArrayLike, steps: ArrayLike, *, rate: ArrayLike) -> FloatArray:
    """The inverse of `delay` in V: the norm that is reached `steps` steps after `start`."""
    decay: FloatArray = np.exp(-np.asarray(rate, dtype=np.float64) * np.asarray(steps, dtype=np.float64))
    return np.asarray(start, dtype=np.float64) * decay


def noise_floor(*, lr: float, weight_decay: float, noise: float) -> float:
    """The stationary E V of θ ← (1 − ηλ)θ − ηξ: ησ²/(λ(2 − ηλ)), with noise = σ² = E‖ξ‖².

    About half of the ησ²/λ in the paper, whose contraction inequality loses one factor (1 − ηλ).
    """
    return lr * noise / (weight_decay * (2 - lr * weight_decay))


def noisy_squared_norm(
    start: ArrayLike, steps: ArrayLike, *, lr: float, weight_decay: float, noise: float
) -> FloatArray:
    """E V after `steps` steps of θ ← (1 − ηλ)θ − ηξ with zero-mean ξ, E‖ξ‖² = noise. Exact."""
    floor = noise_floor(lr=lr, weight_decay=weight_decay, noise=noise)
    factor = (1 - lr * weight_decay) ** (2 * np.asarray(steps, dtype=np.float64))
    return floor + factor * (np.asarray(start, dtype=np.float64) - floor)


def lyapunov_bound(
    start: ArrayLike, steps: ArrayLike, *, lr: float, weight_decay: float, noise: float
) -> FloatArray:
    """The paper's upper bound on E V: V∞ + (1 − ηλ)^t (V₀ − V∞), V∞ = ησ²/λ (arXiv 2603.13331, 3.2).

    It follows from E[V′|V] ≤ (1 − ηλ)V + η²σ², and lies above the exact `noisy_squared_norm`.
    """
    floor = lr * noise / weight_decay
    factor = (1 - lr * weight_decay) ** np.asarray(steps, dtype=np.float64)
    return floor + factor * (np.asarray(start, dtype=np.float64) - floor)


class EscapeBounds(NamedTuple):
    """Steps until E V reaches a target: without noise, exactly, and by the Lyapunov bound (inf: never)."""

    lower: float
    exact: float
    upper: float


def escape_bounds(
    start: float, target: float, *, lr: float, weight_decay: float, noise: float = 0.0
) -> EscapeBounds:
    """Bounds on the steps from V = start to E V = target under decay and gradient noise σ² = noise.

    lower: decay alone, ln(V₀/V*)/(−2 ln(1 − ηλ)). exact: the passage of the mean. upper: the paper's,
    ln((V₀ − V∞)/(V* − V∞))/(−ln(1 − ηλ)); at noise 0 it is twice the lower one.
    """
    rate = contraction_rate(lr=lr, weight_decay=weight_decay)
    floors = (0.0, noise_floor(lr=lr, weight_decay=weight_decay, noise=noise), lr * noise / weight_decay)
    rates = (rate, rate, rate / 2)
    times = [_passage(start, target, floor, r) for floor, r in zip(floors, rates, strict=True)]
    return EscapeBounds(*times)


class LocalRate(NamedTuple):
    """Log-rate of V per step with a 95 % interval (Theil-Sen), and how many entries it rests on."""

    rate: float
    low: float
    high: float
    entries: int


def local_rate(steps: ArrayLike, squared_norm: ArrayLike) -> LocalRate:
    """The log-rate −d ln V/dt over a window, by the median of all pairwise slopes (Theil-Sen).

    steps (n,), squared_norm (n,) positive; a quarter of the entries may be wild without breaking it. The
    interval treats entries as independent, which a smooth curve's are not: it is a diagnostic.

    Raises:
        ValueError: fewer than three entries, or a norm that is not positive.
    """
    steps, squared_norm = np.asarray(steps, dtype=np.float64), np.asarray(squared_norm, dtype=np.float64)
    if len(steps) < 3 or len(steps) != len(squared_norm):
        raise ValueError(
            f"steps has {len(steps)} entries for {len(squared_norm)} norms; give at least 3 of both"
        )
    if not (squared_norm > 0).all():
        raise ValueError(f"squared_norm must be positive everywhere; its smallest is {squared_norm.min()}")
    from scipy.stats import theilslopes  # here because it loads slowly and every trainer imports this file

    slope, _, low, high = theilslopes(np.log(squared_norm), steps)
    return LocalRate(float(-slope), float(-high), float(-low), len(steps))


def momentum_squared_norm(
    start: float, steps: int, *, lr: float, weight_decay: float, momentum: float
) -> float:
    """V after `steps` steps of SGD with momentum, decay added to a zero gradient, in PyTorch's form."""
    step = np.array([[1 - lr * weight_decay, -lr * momentum], [weight_decay, momentum]])
    size = (np.linalg.matrix_power(step, steps) @ np.array([1.0, 0.0]))[0]
    return float(start * size**2)


def coupled_adam_squared_norm(
    theta: ArrayLike,
    steps: int,
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> FloatArray:
    """V at steps 0..steps of Adam with coupled L2 decay and zero loss gradient, from theta (P,).

    Every coordinate moves by about lr per step until it nears zero, whatever the decay is: ‖θ‖ falls
    linearly, not exponentially. Near zero it oscillates chaotically and rounding decides.
    """
    theta = np.array(theta, dtype=np.float64)
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    norms = [float(theta @ theta)]
    for t in range(1, steps + 1):
        gradient = weight_decay * theta
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        scale = np.sqrt(second) / sqrt(1 - betas[1] ** t) + eps
        theta = theta - lr / (1 - betas[0] ** t) * first / scale
        norms.append(float(theta @ theta))
    return np.array(norms)


def _momentum_radius(lr: float, weight_decay: float, momentum: float) -> float:
    step = np.array([[1 - lr * weight_decay, -lr * momentum], [weight_decay, momentum]])
    return float(np.abs(np.linalg.eigvals(step)).max())


def _passage(start: float, target: float, floor: float, rate: float) -> float:
    if start <= target:
        return 0.0
    return log((start - floor) / (target - floor)) / rate if target > floor else inf
