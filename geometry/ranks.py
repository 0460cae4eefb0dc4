"""How many directions a weight matrix uses, from its singular values."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def stable_rank(singular_values: Array) -> float:
    """‖W‖_F²/‖W‖₂² = Σ σ_i²/max σ_i² of singular values σ (k,); nan for a zero matrix."""
    squares = np.asarray(singular_values, dtype=np.float64) ** 2
    return float(squares.sum() / squares.max()) if squares.any() else np.nan


def effective_rank(singular_values: Array) -> float:
    """exp(−Σ p_i ln p_i), p_i = σ_i/Σσ, of singular values σ (k,); nan for a zero matrix.

    By Roy and Vetterli 2007: k if all are equal, 1 for rank one.
    """
    values = np.asarray(singular_values, dtype=np.float64)
    if not values.any():
        return np.nan
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def random_stable_rank(rows: int, columns: int) -> float:
    """rc/(√r + √c)²: the stable rank of a large r × c matrix of independent entries (Bai and Yin 1988)."""
    return rows * columns / (sqrt(rows) + sqrt(columns)) ** 2
