"""The search for eigenpairs that one Krylov space cannot see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .eigenpairs import Eigenpairs, Evidence, eigenpairs
from .ends import End, Pairs, Vector
from .krylov import Krylov, grow, random_unit
from .operators import SymmetricOperator


@dataclass
class Complement:
    """The search for pairs that one Krylov space cannot see: further copies, and what its start missed."""

    operator: SymmetricOperator
    end: End
    evidence: Evidence
    budget: int
    generator: torch.Generator

    def run(self, pairs: Pairs, edges: Vector) -> None:
        """Random starts in the complement of the pairs until none can be missing or the budget is spent."""
        self.pairs, self.edges, self.spent, self.complete = pairs, edges, 0, False
        self.uncertainty = 0.0
        while not self.complete and len(self.pairs.values) < self.operator.dim:
            if self.spent >= self.budget or not self._extended():
                return
        if not self.complete:
            self._close(-np.inf)

    def _extended(self) -> bool:
        """Whether one more space added a pair or closed the search."""
        worst = self._worst() + self.evidence.slack
        start = random_unit(self.operator, self.generator)
        space = Krylov(self.operator, start, self.pairs.vectors, scale=self.evidence.scale)
        outermost = self.end._replace(k=1)
        grow(space, self.budget - self.spent, lambda: _decided(space, outermost, worst))
        self.spent += space.size
        edge = outermost.edges(space, 1.0)
        if edge[0] <= worst:
            self._close(float(edge[0]))
        return self.complete or self._added(self.end.pairs(space), space, worst)

    def _close(self, edge: float) -> None:
        """Nothing outside the pairs lies beyond edge; the pairs themselves are known to their residuals."""
        self.complete, self.edges = True, np.maximum(self._outermost_keys(), edge)
        self.uncertainty = float(np.linalg.norm(self.pairs.residuals))

    def _added(self, found: Pairs, space: Krylov, worst: float) -> bool:
        sound = space.exhausted | self.end.converged(found.values, found.residuals, space.floor)
        better = sound & (self.end.key(found.values) > worst)
        values, residuals = (np.append(a, b[better]) for a, b in zip(self.pairs[:2], found[:2], strict=True))
        vectors = torch.cat(
            [self.pairs.vectors, found.vectors[torch.from_numpy(better).to(found.vectors.device)]]
        )
        self.pairs = Pairs(values, residuals, vectors)
        # Limits hold for the first space's pairs; with a pair inserted they are known again once complete.
        self.edges = np.full(self.end.k, np.inf) if better.any() else self.edges
        return bool(better.any())

    def _worst(self) -> float:
        keys = self._outermost_keys()
        return float(keys[-1]) if len(keys) == self.end.k else -np.inf

    def _outermost_keys(self) -> Vector:
        return np.sort(self.end.key(self.pairs.values))[::-1][: self.end.k]

    def result(self, matvecs: int) -> Eigenpairs:
        """The k outermost of all pairs found."""
        k = self.end.k
        if len(self.pairs.values) < k:
            raise ValueError(
                f"max_matvecs allowed {len(self.pairs.values)} of k={k} pairs; allow more products"
            )
        order = np.argsort(-self.end.key(self.pairs.values), kind="stable")[:k]
        vectors = self.pairs.vectors[torch.from_numpy(order).to(self.pairs.vectors.device)]
        pairs = Pairs(self.pairs.values[order], self.pairs.residuals[order], vectors)
        found = eigenpairs(pairs, self.edges, self.end, self.evidence, matvecs + self.spent)
        return found.completed(self.uncertainty) if self.complete else found


def _decided(space: Krylov, outermost: End, worst: float) -> bool:
    """Whether the complement is shown to hold nothing beyond worst, or shows a pair that is."""
    chosen = outermost.chosen(space)
    values, residuals = space.ritz.values[chosen], space.ritz.residuals[chosen]
    if outermost.key(values)[0] > worst:
        return bool(outermost.converged(values, residuals, space.floor)[0])
    return bool(outermost.edges(space, 1.0)[0] <= worst)
