"""One Krylov space of a symmetric operator, grown a product at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from .operators import SymmetricOperator

Vector = NDArray[np.float64]

# In units of eps * scale: below BREAKDOWN a new direction is rounding noise and the space is invariant.
BREAKDOWN = 16.0
FIRST_ROWS = 32
CHECK_EACH_BELOW, CHECK_EVERY = 40, 5


@dataclass(frozen=True)
class Ritz:
    """Ritz values (m,) ascending, their coordinates (m, m) by column, and residuals (m,) ‖A y − θ y‖."""

    values: Vector
    coordinates: Vector
    residuals: Vector


class Krylov:
    """An orthonormal basis of span{q, A q, A² q, ...} in the complement of the rows of `locked` (j, P).

    Every product A q_i is split into its coefficients on locked rows, on the basis, and on the next
    direction. All coefficients are kept, not only the three of the Lanczos recurrence, so the residuals come
    from the products themselves: they include asymmetry and rounding, and need no further product. Two
    Gram-Schmidt passes.
    """

    def __init__(
        self, operator: SymmetricOperator, start: Tensor, locked: Tensor | None = None, *, scale: float = 0.0
    ) -> None:
        self.operator = operator
        self.num_locked = 0 if locked is None else len(locked)
        self._rows = start.new_empty((self.num_locked + FIRST_ROWS, operator.dim))
        if locked is not None:
            self._rows[: self.num_locked] = locked
        self._columns: list[Vector] = []
        self.betas: list[float] = []
        self.scale = scale
        self.exhausted = False
        rest, _ = self._orthogonalize(start)
        self._next = rest / _norm(rest)

    @property
    def size(self) -> int:
        """Products made so far, the dimension m of the space."""
        return len(self.betas)

    @property
    def free(self) -> int:
        """Dimensions of the complement of the locked rows."""
        return self.operator.dim - self.num_locked

    @property
    def basis(self) -> Tensor:
        """Orthonormal rows (m, P)."""
        return self._rows[self.num_locked : self.num_locked + self.size]

    def grow(self) -> None:
        """Add one direction by one product; sets `exhausted` when the space has become invariant."""
        row = self.num_locked + self.size
        if row == len(self._rows):
            self._rows = torch.cat([self._rows, torch.empty_like(self._rows)])
        self._rows[row] = self._next
        image = self.operator.matvec(self._next)
        length = _norm(image)
        if not isfinite(length):
            what = self.operator.description
            raise ValueError(f"{what}: a product is not finite; check the loss at this theta")
        self.scale = max(self.scale, length)
        rest, coefficients = self._orthogonalize(image, row + 1)
        beta = _norm(rest)
        self._columns.append(coefficients)
        self.betas.append(beta)
        self.exhausted = self.size == self.free or beta <= self.floor
        if not self.exhausted:
            self._next = rest / beta
        self.__dict__.pop("ritz", None)

    @property
    def floor(self) -> float:
        """Norm below which a direction is rounding noise, relative to the largest ‖A q‖ known."""
        return BREAKDOWN * torch.finfo(self.operator.dtype).eps * self.scale

    @cached_property
    def ritz(self) -> Ritz:
        """Eigenpairs of the operator compressed to the space."""
        alphas = np.array([column[-1] for column in self._columns])
        inner = np.array(self.betas[:-1])
        values, coordinates = eigh_tridiagonal(alphas, inner)
        last = self.betas[-1] * coordinates[-1]
        excess = self._excess() @ coordinates
        return Ritz(values, coordinates, np.sqrt(last**2 + (excess**2).sum(axis=0)))

    def _excess(self) -> Vector:
        """Coefficients (locked + m, m) beyond the three-term recurrence, zero in exact arithmetic."""
        excess = np.zeros((self.num_locked + self.size, self.size))
        for i, column in enumerate(self._columns):
            excess[: len(column) - 1, i] = column[:-1]
            if i:
                excess[len(column) - 2, i] -= self.betas[i - 1]
        return excess

    @property
    def roundoff(self) -> float:
        """Largest |q_iᵀ A q_j − q_jᵀ A q_i| met, at least one unit of rounding."""
        measured = np.abs(self._excess()[self.num_locked :]).max()
        return max(float(measured), torch.finfo(self.operator.dtype).eps * self.scale)

    def vectors(self, chosen: NDArray[np.int64]) -> Tensor:
        """Unit Ritz vectors (k, P) by index into `ritz`."""
        coordinates = torch.from_numpy(self.ritz.coordinates[:, chosen].T.copy()).to(self.basis)
        return coordinates @ self.basis

    def _orthogonalize(self, vector: Tensor, count: int | None = None) -> tuple[Tensor, Vector]:
        rows = self._rows[: self.num_locked if count is None else count]
        total = np.zeros(len(rows))
        for _ in range(2):
            coefficients = rows @ vector
            vector = vector - coefficients @ rows
            total += coefficients.double().cpu().numpy()
        return vector, total


def grow(space: Krylov, budget: int, finished: Callable[[], bool]) -> None:
    """Products until finished, exhausted, or out of budget; large spaces are looked at less often."""
    while space.size < budget and not space.exhausted:
        space.grow()
        if (space.size <= CHECK_EACH_BELOW or space.size % CHECK_EVERY == 0) and finished():
            return


def random_unit(operator: SymmetricOperator, generator: torch.Generator) -> Tensor:
    """A uniformly random unit vector, drawn on the CPU so that every device sees the same one."""
    drawn = torch.randn(operator.dim, generator=generator, dtype=torch.float64)
    drawn /= torch.linalg.vector_norm(drawn)
    return drawn.to(operator.device, operator.dtype)


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector.double()))
