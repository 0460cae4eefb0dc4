"""Waves over the cyclic group Z_m: what weights and logits of a modular task are made of.

ŵ_k = Σ_j w_j e^{−2πikj/m}. A frequency k and its mirror m − k are one real wave, so frequencies run from 0
to ⌊m/2⌋. NumPy only; costs no gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


def fourier_basis(m: int) -> Array:
    """Orthonormal real waves (m, m) over Z_m, one a row: constant, cos 1, sin 1, cos 2, sin 2, ...

    Row 2k − 1 is √(2/m) cos(2πkj/m), row 2k is √(2/m) sin(2πkj/m), j the column; for even m the last row is
    the alternating one.
    """
    angles = 2 * np.pi * np.outer(np.arange(m // 2 + 1), np.arange(m)) / m
    waves = np.stack([np.cos(angles), np.sin(angles)], axis=1).reshape(-1, m)
    waves = np.delete(waves, [1], axis=0)[:m]  # sin 0 is nothing, and so is the last sine of an even m
    return np.asarray(waves / np.linalg.norm(waves, axis=1, keepdims=True))


def frequency_power(values: Array) -> Array:
    """Power (..., ⌊m/2⌋ + 1) in each frequency of values (..., m): their squares, by frequency.

    P_k = (|ŵ_k|² + |ŵ_{m−k}|²)/m for 0 < k < m/2 and |ŵ_k|²/m at the ends, so Σ_k P_k = Σ_j w_j².
    """
    m = values.shape[-1]
    power = np.abs(np.fft.rfft(values, axis=-1)) ** 2 / m
    power[..., 1 : (m + 1) // 2] *= 2
    return np.asarray(power, dtype=np.float64)


def periodicity(values: Array) -> Array:
    """max_k |ŵ_k| / mean_k |ŵ_k| over k = 1, ..., m − 1, for values (..., m): how close to one wave.

    It is (m − 1)/2 for a pure wave and odd m, and about √((4/π) ln(m/2)) for noise; nan for constant values.
    By Swaroop 2026 (arXiv 2603.23784), where above 12 at m = 97 is called structured.
    """
    sizes = np.abs(np.fft.fft(values, axis=-1))[..., 1:]
    mean = sizes.mean(axis=-1)
    still = np.ptp(values, axis=-1) == 0
    return np.where(still, np.nan, sizes.max(axis=-1) / np.where(still, 1.0, mean))


def dominant_frequency(values: Array) -> Integers:
    """The frequency 1 ≤ k ≤ ⌊m/2⌋ with the largest |ŵ_k| of values (..., m)."""
    return np.asarray(1 + np.abs(np.fft.rfft(values, axis=-1))[..., 1:].argmax(axis=-1), dtype=np.int64)


def phase(values: Array, frequency: Integers | int) -> Array:
    """φ = −arg ŵ_k, so that the part of values (..., m) at its frequency (...) goes as cos(2πkj/m − φ)."""
    m = values.shape[-1]
    waves = np.exp(-2j * np.pi * np.asarray(frequency)[..., None] * np.arange(m) / m)
    return np.asarray(-np.angle((values * waves).sum(axis=-1)))


def wrapped(angle: Array) -> Array:
    """The angle in (−π, π], up to whole turns."""
    return np.asarray(np.pi - np.mod(np.pi - angle, 2 * np.pi))


def inverse_participation(power: Array) -> Array:
    """Σ_k P_k²/(Σ_k P_k)² of power (..., K): 1 if one frequency has all, 1/K if all have the same.

    With P_k the squared amplitude A_k² it is Σ A⁴/(ΣA²)² (Gromov 2023, arXiv 2301.02679). nan where there
    is no power.
    """
    total = power.sum(axis=-1)
    empty = total == 0
    return np.where(empty, np.nan, (power**2).sum(axis=-1) / np.where(empty, 1.0, total) ** 2)


def key_frequencies(power: Array, *, factor: float = 2.0) -> Integers:
    """The frequencies k ≥ 1 whose power (K + 1,) is at least `factor` times the mean of k ≥ 1.

    The strongest one if none is; increasing.
    """
    above = np.flatnonzero(power[1:] >= factor * power[1:].mean())
    return 1 + (above if above.size else np.array([power[1:].argmax()]))


def means_by_answer(logits: Array, answers: Integers, m: int) -> Array:
    """Mean logits (m, C) of the pairs with each answer in Z_m; logits (N, C), answers (N,).

    Waves in the answer of a group, cos(2πk(a + b)/m) for addition, see of all logits on all pairs these
    means only.

    Raises:
        ValueError: some answers have more pairs than others, so that waves would not be orthogonal.
    """
    counts = np.bincount(answers, minlength=m)
    if (counts != len(answers) // m).any():
        raise ValueError(
            f"answers occur {counts.min()} to {counts.max()} times; waves over them need all pairs of a group"
        )
    order = np.argsort(answers, kind="stable")
    return np.asarray(logits[order].reshape(m, -1, logits.shape[1]).mean(axis=1), dtype=np.float64)


def answer_power(logits: Array, answers: Integers, m: int) -> Array:
    """Power (⌊m/2⌋ + 1,) of logits (N, C) in waves of the answers (N,), added over classes.

    P_k = Σ_c ‖projection of L_·c on cos(2πkt/m) and sin(2πkt/m)‖², t the answers; Σ_k P_k ≤ Σ L².
    """
    means = means_by_answer(logits, answers, m)
    return np.asarray(len(answers) / m * frequency_power(means.T).sum(axis=0), dtype=np.float64)


def waves_of_answer(logits: Array, answers: Integers, m: int, frequencies: Sequence[int] | Integers) -> Array:
    """The part (N, C) of logits (N, C) that is a wave in the answers (N,) at one of the frequencies.

    Logits restricted to key frequencies are this part for 0 and them; logits with these excluded are the
    rest (Nanda et al. 2023, arXiv 2301.05217).
    """
    spectrum = np.fft.rfft(means_by_answer(logits, answers, m), axis=0)
    kept = np.zeros(len(spectrum), dtype=bool)
    kept[np.asarray(frequencies, dtype=np.int64)] = True
    return np.asarray(np.fft.irfft(spectrum * kept[:, None], n=m, axis=0)[answers])


def discrete_logarithms(p: int) -> Integers:
    """Exponents t (p,) with g^t = x mod p for each x ≥ 1, g the least generator; −1 for x = 0.

    Multiplication of units modulo a prime is addition of exponents in Z_{p−1}.

    Raises:
        ValueError: p is not prime.
    """
    for g in range(1, p):
        powers = [1]
        while (following := powers[-1] * g % p) not in (0, 1) and len(powers) < p:
            powers.append(following)
        if len(set(powers)) == p - 1:
            exponents = np.full(p, -1, dtype=np.int64)
            exponents[powers] = np.arange(p - 1)
            return exponents
    raise ValueError(f"p={p} is not prime, so its units need not be powers of one; give a prime")
