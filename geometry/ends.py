"""One end of the spectrum, read off a Krylov space: which Ritz pairs are wanted, and what proves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .extremality import RISK, upper_edges
from .krylov import Krylov

Vector = NDArray[np.float64]

# How far out a value lies; the wanted pairs are those with the largest keys.
KEYS: dict[str, Callable[[Vector], Vector]] = {
    "largest": np.positive,
    "smallest": np.negative,
    "magnitude": np.abs,
}


class Pairs(NamedTuple):
    """Values (j,), residuals (j,) and vectors (j, P)."""

    values: Vector
    residuals: Vector
    vectors: Tensor


class End(NamedTuple):
    """The k outermost pairs at the end `which`, to a relative tolerance, and their end to another one."""

    which: str
    k: int
    tolerance: float
    edge_tolerance: float

    def key(self, values: Vector) -> Vector:
        """How far out each value lies at this end; larger is further."""
        return KEYS[self.which](values)

    def chosen(self, space: Krylov) -> NDArray[np.int64]:
        """Indices of the outermost Ritz values, outermost first, at most k of them."""
        order: NDArray[np.int64] = np.argsort(-self.key(space.ritz.values), kind="stable")
        return order[: self.k]

    def pairs(self, space: Krylov) -> Pairs:
        """The outermost Ritz pairs."""
        chosen = self.chosen(space)
        return Pairs(space.ritz.values[chosen], space.ritz.residuals[chosen], space.vectors(chosen))

    def converged(self, values: Vector, residuals: Vector, floor: float) -> NDArray[np.bool_]:
        """Where the residual is at most tolerance·|value|, or rounding noise."""
        return residuals <= np.maximum(self.tolerance * np.abs(values), floor)

    def slack(self, space: Krylov) -> float:
        """Distance that the end is known to: edge_tolerance·(λ_max − λ_min), or rounding noise."""
        values = space.ritz.values
        return max(self.edge_tolerance * float(values[-1] - values[0]), space.floor)

    def edges(self, space: Krylov, share: float) -> Vector:
        """95 % limits of the chosen pairs, as keys; see extremality.upper_edges."""
        values, count = space.ritz.values, min(self.k, space.size)
        if space.exhausted and share > 0:
            return self.key(values[self.chosen(space)])
        betas = np.maximum(space.betas, space.floor)
        if self.which == "largest":
            return upper_edges(values, betas, count, dim=space.free, share=share)
        if self.which == "smallest":
            return upper_edges(-values[::-1], betas, count, dim=space.free, share=share)
        return self._magnitude_edges(space, betas, share)

    def settled(self, space: Krylov, share: float) -> bool:
        """Whether k pairs are converged and, where the start allows a proof, extremal."""
        chosen = self.chosen(space)
        values, residuals = space.ritz.values[chosen], space.ritz.residuals[chosen]
        if len(chosen) < self.k or not self.converged(values, residuals, space.floor).all():
            return False
        return share == 0 or bool((self.edges(space, share) - self.key(values) <= self.slack(space)).all())

    def _magnitude_edges(self, space: Krylov, betas: Vector, share: float) -> Vector:
        """The next value may come from either end, so each pair gets the further of two limits."""
        values = space.ritz.values
        positive = values[self.chosen(space)] >= 0
        ups, downs = (min(int(part.sum()) + 1, len(values)) for part in (positive, ~positive))
        above = upper_edges(values, betas, ups, dim=space.free, share=share, risk=RISK / 2)
        below = upper_edges(-values[::-1], betas, downs, dim=space.free, share=share, risk=RISK / 2)
        rank_above = np.cumsum(positive, dtype=np.int64) - positive
        rank_below = np.arange(len(positive)) - rank_above
        edges: Vector = np.maximum(
            above[np.minimum(rank_above, ups - 1)], below[np.minimum(rank_below, downs - 1)]
        )
        return edges
