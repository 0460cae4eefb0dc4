"""Eigenpairs with their evidence, and how the evidence is taken from a Krylov space."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .ends import End, Pairs, Vector
from .extremality import kuczynski_wozniakowski
from .krylov import Krylov


@dataclass(frozen=True)
class Eigenpairs:
    """k eigenpairs from one end of the spectrum, outermost first, with their evidence.

    `residuals` ‖A v − λ v‖ prove that an eigenvalue lies within that distance; `converged` where it is at
    most tolerance·|λ|, or rounding. `edges` are 95 % limits: but for the values before it, and for what lies
    in their immediate neighborhoods unless `complete`, no eigenvalue lies further out than edges[i].
    `extremal` where that is within edge_tolerance·(λ_max − λ_min) of the value: converged or not, the value
    is a Ritz value, so the outermost eigenvalue lies between it and its edge. `complete` where further copies
    of multiple eigenvalues were looked for and excluded. `bound` is the weaker Kuczyński-Woźniakowski gap,
    relative to λ_max − λ_min. `roundoff` is the largest asymmetry |uᵀAv − vᵀAu| met, at least one unit of
    rounding: nothing below it is resolved. `matvecs` counts every product, those for the evidence included.
    """

    values: Tensor  # (k,) float64
    vectors: Tensor  # (k, P) unit rows
    residuals: Tensor  # (k,)
    converged: Tensor  # (k,) bool
    extremal: Tensor  # (k,) bool
    edges: Tensor  # (k,)
    complete: bool
    bound: float
    roundoff: float
    matvecs: int
    which: str
    engine: str = "lanczos"

    def completed(self, uncertainty: float) -> Eigenpairs:
        """The same pairs with `complete` set and limits moved out by what the residuals leave open."""
        outward = -torch.ones_like(self.edges) if self.which == "smallest" else torch.ones_like(self.edges)
        if self.which == "magnitude":
            outward = torch.where(torch.signbit(self.values), -outward, outward)
        return replace(self, complete=True, edges=self.edges + outward * uncertainty)


class Evidence(NamedTuple):
    """What the first Krylov space says beside its pairs; values within `slack` count as equal."""

    slack: float
    floor: float
    scale: float
    bound: float
    roundoff: float


def evidence(space: Krylov, end: End, share: float) -> Evidence:
    """What the space itself says; costs no product."""
    bound = kuczynski_wozniakowski(space.free, space.size, share=share)
    return Evidence(end.slack(space), space.floor, space.scale, bound, space.roundoff)


def eigenpairs(pairs: Pairs, edges: Vector, end: End, evidence: Evidence, matvecs: int) -> Eigenpairs:
    """Pairs in order, with limits `edges` as keys, judged against the evidence."""
    keys = end.key(pairs.values)
    signed = np.where(np.signbit(pairs.values), -edges, edges) if end.which == "magnitude" else end.key(edges)
    return Eigenpairs(
        values=torch.from_numpy(pairs.values),
        vectors=pairs.vectors,
        residuals=torch.from_numpy(pairs.residuals),
        converged=torch.from_numpy(end.converged(pairs.values, pairs.residuals, evidence.floor)),
        extremal=torch.from_numpy(edges - keys <= evidence.slack),
        edges=torch.from_numpy(signed),
        complete=False,
        bound=evidence.bound,
        roundoff=evidence.roundoff,
        matvecs=matvecs,
        which=end.which,
    )
