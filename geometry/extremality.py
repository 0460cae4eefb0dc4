"""What a Krylov space from a random start proves about the end of the spectrum.

A small residual shows that an eigenvalue lies there, not that none lies further out. The proof is
probabilistic: a random start is almost never nearly orthogonal to the outermost eigenvector, and if it is
not, the Krylov space has had to notice it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RISK = 0.05
BISECTIONS = 60

Vector = NDArray[np.float64]


def kuczynski_wozniakowski(dim: int, products: int, *, share: float = 1.0, risk: float = RISK) -> float:
    """ε with P(λ_max − θ_max > ε (λ_max − λ_min)) ≤ risk after `products` products, whatever the spectrum.

    Solves 1.648 sqrt(P) exp(−sqrt(ε)(2m − 1)) = risk·share for P = dim and m = products. `share` is the norm
    of the uniformly random part of the unit start vector: an overlap |c + share·z·u| with a fixed c is no
    likelier to be small than |share·z·u| (Anderson 1955). Capped at 1, which says nothing. Kuczyński and
    Woźniakowski 1992 (SIAM J. Matrix Anal. Appl. 13); ours adds the share.
    """
    if share <= 0:
        return 1.0
    exponent = np.log(1.648 * np.sqrt(dim) / (risk * share))
    return float(min(1.0, (exponent / (2 * products - 1)) ** 2))


def upper_edges(
    values: Vector, betas: Vector, count: int, *, dim: int, share: float = 1.0, risk: float = RISK
) -> Vector:
    """Confidence limits (count,) for the outermost eigenvalues, all valid with probability 1 − risk.

    Above edges[0] there is no eigenvalue, and none between edges[i] and the immediate neighborhood of the
    i-th largest Ritz value. An eigenvector u of λ has |u·q₁| = |u·q_(m+1)| ∏β/∏|λ − θ| ≤ ∏β/∏|λ − θ| for the
    Ritz values θ = values (m,) ascending and the norms β = betas (m,) of the Lanczos steps; a random start of
    the given share has |u·q₁| < t with probability at most t sqrt(2P/π)/share. Far sharper than
    Kuczyński-Woźniakowski, since it uses the Ritz values that were met. Van Dorsselaer, Hochstenbach and van
    der Vorst 2000 (SIAM J. Matrix Anal. Appl. 22); ours adds the gaps after the first value, with risk/count
    each, and the share.
    """
    if share <= 0:
        return np.full(count, np.inf)
    limit = float(np.log(betas).sum() + np.log(np.sqrt(2 * dim / np.pi) * count / (risk * share)))
    descending = values[::-1]
    edges = np.full(count, descending[0] + np.exp(limit / len(values)))
    edges[0] = _crossing(descending, float(descending[0]), float(edges[0]), limit)
    for i in range(1, count):
        peak = _peak(descending, float(descending[i]), float(descending[i - 1]))
        gap = _height(descending, peak) >= limit
        edges[i] = _crossing(descending, float(descending[i]), peak, limit) if gap else edges[i - 1]
    return edges


def _height(values: Vector, point: float) -> float:
    """Log of ∏|point − values|."""
    with np.errstate(divide="ignore"):
        return float(np.log(np.abs(point - values)).sum())


def _crossing(values: Vector, low: float, high: float, limit: float) -> float:
    """Where the height, rising from low to high, reaches the limit (from above)."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _height(values, middle) < limit else (low, middle)
    return high


def _peak(values: Vector, low: float, high: float) -> float:
    """The maximum of the height between two neighboring values, where it is concave."""
    for _ in range(BISECTIONS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if _height(values, left) < _height(values, right) else (low, right)
    return (low + high) / 2
