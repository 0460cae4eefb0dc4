"""Square waves in the weights of networks for modular addition: extraction and ideal networks.

Setting of "Latent Algorithmic Structure Precedes Grokking" (Swaroop 2026, arXiv 2603.23784): one hidden
ReLU layer of N units on the one-hot pair (a, b), targets (a + b) mod p. Every hidden unit has three weight
vectors over residues: first operand, second operand, output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .fourier import dominant_frequency, phase, wrapped

FloatArray = NDArray[np.float64]
Shape = Literal["square", "cosine"]
Ties = Literal["first", "wrong"]

SHAPES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "square": lambda angle: np.sign(np.cos(angle)),
    "cosine": np.cos,
}
_ROWS = 2048


@dataclass(frozen=True)
class Layers:
    """Weights of N hidden units over p residues: first, second operand and output, each (N, p)."""

    first: FloatArray
    second: FloatArray
    output: FloatArray

    def __post_init__(self) -> None:
        shapes = {w.shape for w in (self.first, self.second, self.output)}
        if len(shapes) > 1 or self.first.ndim != 2:
            raise ValueError(f"first, second and output have shapes {shapes}; all three must be one (N, p)")

    @property
    def modulus(self) -> int:
        """p, the number of residues."""
        return int(self.first.shape[1])


@dataclass(frozen=True)
class Waves:
    """One frequency ν and three phases φ for each of N hidden units: w[j] ~ cos(2πνj/p − φ)."""

    frequency: NDArray[np.int64]
    first: FloatArray
    second: FloatArray
    output: FloatArray

    @property
    def phase_sum_error(self) -> FloatArray:
        """δ = φ_out − φ_a − φ_b in (−π, π], (N,): zero where the phase-sum relation holds."""
        return wrapped(self.output - self.first - self.second)


def extract(layers: Layers) -> Waves:
    """Frequency of each unit from its first operand's weights, and all three phases at that frequency.

    ν = argmax_{1≤k≤(p−1)/2} |DFT(w_a)_k|, φ_x = −arg DFT(w_x)_ν for x = a, b, out.
    """
    frequency = dominant_frequency(layers.first)
    return Waves(frequency, *(phase(w, frequency) for w in (layers.first, layers.second, layers.output)))


def random_waves(num_units: int, *, modulus: int, generator: np.random.Generator) -> Waves:
    """The paper's construction: ν_i = i mod p, φ_a and φ_b uniform on [−π, π), φ_out = φ_a + φ_b."""
    first = generator.uniform(-np.pi, np.pi, num_units)
    second = generator.uniform(-np.pi, np.pi, num_units)
    return Waves(np.arange(num_units) % modulus, first, second, first + second)


def ideal(waves: Waves, *, modulus: int, inputs: Shape, output: Shape) -> Layers:
    """The network of amplitude one whose weights are f(2πνj/p − φ), f = sign∘cos or cos."""
    turns = 2 * np.pi * np.outer(waves.frequency, np.arange(modulus)) / modulus
    wave, out = SHAPES[inputs], SHAPES[output]
    return Layers(
        wave(turns - waves.first[:, None]),
        wave(turns - waves.second[:, None]),
        out(turns - waves.output[:, None]),
    )


def right(
    layers: Layers, pairs: NDArray[np.int64] | None = None, *, ties: Ties = "first"
) -> NDArray[np.bool_]:
    """Which pairs (n, 2), all p² if None, the network without biases answers with (a + b) mod p; (n,).

    logits = W_outᵀ relu(W_a[:, a] + W_b[:, b]). Square outputs give whole-numbered logits that tie often
    (41 % of pairs at N = 64, p = 97): with ties="first" the first largest logit is the answer, as NumPy's
    and PyTorch's argmax have it and as the paper's table needs; ties="wrong" counts every tie as wrong.
    """
    p = layers.modulus
    if pairs is None:
        pairs = np.stack(np.divmod(np.arange(p * p), p), axis=1)
    parts = np.split(pairs, range(_ROWS, len(pairs), _ROWS))
    return np.concatenate([_right(layers, part, ties) for part in parts])


def _right(layers: Layers, pairs: NDArray[np.int64], ties: Ties) -> NDArray[np.bool_]:
    a, b = pairs.T
    hidden = np.maximum(layers.first.T[a] + layers.second.T[b], 0.0)
    logits = hidden @ layers.output
    answer = (a + b) % layers.modulus
    found = np.asarray(logits.argmax(1) == answer)
    if ties == "wrong":
        found &= (logits == logits.max(1, keepdims=True)).sum(1) == 1
    return found


def circular_correlation(x: FloatArray, y: FloatArray) -> float:
    """Σ sin(x − x̄) sin(y − ȳ) / √(Σ sin²(x − x̄) Σ sin²(y − ȳ)), x̄ and ȳ circular means.

    The coefficient of Jammalamadaka and SenGupta (2001); NaN for fewer than two angles.
    """
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} angles and y has {len(y)}; give pairs of angles")
    if len(x) < 2:
        return float("nan")
    u, v = (np.sin(angle - np.angle(np.exp(1j * angle).mean())) for angle in (x, y))
    return float((u * v).sum() / np.sqrt((u * u).sum() * (v * v).sum()))


def wave_distances(weights: FloatArray, *, frequency: NDArray[np.int64], phases: FloatArray) -> FloatArray:
    """Mean distance of each row's weights (N, p) to its square wave and to its cosine, (N, 2).

    Both have the row's frequency and phase. The square wave's two levels are the medians of the weights
    over the positive and the negative half period; the cosine has the least-squares amplitude and offset.
    Distance is to the nearest point of the curve, with one period of angle as 2π wide and the weights in
    units of half the step between the levels, so that an intermediate weight beside a sign change is near
    the square wave's edge. The paper states no units for its nearest-point distance.
    """
    angle = wrapped(
        2 * np.pi * np.outer(frequency, np.arange(weights.shape[1])) / weights.shape[1] - phases[:, None]
    )
    pairs = zip(weights, angle, strict=True)
    return np.array([_wave_distances(row, turned) for row, turned in pairs]).reshape(-1, 2)


def _wave_distances(weights: FloatArray, angle: FloatArray) -> tuple[float, float]:
    positive = np.abs(angle) < np.pi / 2
    high, low = np.median(weights[positive]), np.median(weights[~positive])
    half = (high - low) / 2
    if half <= 0:
        return float("nan"), float("nan")
    scaled = (weights - (high + low) / 2) / half
    return float(_to_square(scaled, angle).mean()), float(_to_cosine(scaled, angle).mean())


def _to_square(value: FloatArray, angle: FloatArray) -> FloatArray:
    level = np.where(np.abs(angle) < np.pi / 2, 1.0, -1.0)
    edge = np.hypot(np.abs(np.abs(angle) - np.pi / 2), np.maximum(np.abs(value) - 1, 0))
    return np.asarray(np.minimum(np.abs(value - level), edge))


def _to_cosine(value: FloatArray, angle: FloatArray) -> FloatArray:
    design = np.stack([np.cos(angle), np.ones_like(angle)], axis=1)
    amplitude, offset = np.linalg.lstsq(design, value, rcond=None)[0]
    grid = np.linspace(-2 * np.pi, 2 * np.pi, 2001)
    curve = amplitude * np.cos(grid) + offset
    apart = np.hypot(angle[:, None] - grid, value[:, None] - curve)
    return np.asarray(apart.min(1))
