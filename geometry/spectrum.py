"""The whole spectrum from few products: density by stochastic Lanczos quadrature, and the trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .eigenpairs import Eigenpairs
from .krylov import Krylov, random_unit
from .operators import SymmetricOperator

Array = NDArray[np.float64]


class Estimate(NamedTuple):
    """A mean over random probes and its standard error (NaN from a single probe)."""

    value: float
    stderr: float


@dataclass(frozen=True)
class SpectralDensity:
    """The spectral measure ρ of a (P, P) operator as `probes` discrete measures of unit mass.

    Probe i puts weight weights[i, j] on nodes[i, j]; rows that needed fewer than m nodes end in weights of
    zero. Each probe reproduces the first 2m moments that its own start vector sees, and their mean over
    probes is unbiased; the spread between probes gives the standard errors.
    """

    nodes: Array  # (probes, m)
    weights: Array  # (probes, m), rows sum to one
    dim: int
    matvecs: int

    def expectation(self, function: Callable[[Array], Array]) -> Estimate:
        """∫ρ(a) f(a) da = tr f(A)/P, for f applied entry by entry to an array of eigenvalues."""
        return over_probes((self.weights * function(self.nodes)).sum(axis=1))

    def moment(self, order: int) -> Estimate:
        """Tr Aᵒ/P for o = order; order 0 is one, exactly."""
        return self.expectation(lambda nodes: nodes**order)

    def histogram(self, bins: Array) -> tuple[Array, Array]:
        """Share of eigenvalues in each of the bins (B + 1,), and its standard error: two arrays (B,)."""
        shares = np.stack(
            [np.histogram(n, bins, weights=w)[0] for n, w in zip(self.nodes, self.weights, strict=True)]
        )
        spread = shares.std(axis=0, ddof=1) if len(shares) > 1 else np.full(shares.shape[1], np.nan)
        return shares.mean(axis=0), spread / np.sqrt(len(shares))


def spectral_density(
    operator: SymmetricOperator, *, probes: int = 8, nodes: int = 64, generator: torch.Generator | None = None
) -> SpectralDensity:
    """The spectral measure by stochastic Lanczos quadrature, for probes·nodes products at most.

    From a uniformly random unit vector, `nodes` steps of Lanczos with two-pass reorthogonalization; the Ritz
    values are the nodes, and the squared first entries of the eigenvectors of the tridiagonal matrix their
    weights. Golub and Welsch 1969; Ubaru, Chen and Saad 2017. Ours reorthogonalizes (without it, ghosts
    inflate outliers) and reports the spread over probes.

    Raises:
        ValueError: probes or nodes is below 1.
    """
    if probes < 1 or nodes < 1:
        raise ValueError(f"probes={probes} and nodes={nodes} must both be at least 1")
    generator = generator or torch.Generator().manual_seed(0)
    spaces = [_space(operator, min(nodes, operator.dim), generator) for _ in range(probes)]
    width = max(space.size for space in spaces)
    return SpectralDensity(
        nodes=np.stack([_padded(space.ritz.values, width, "edge") for space in spaces]),
        weights=np.stack([_padded(space.ritz.coordinates[0] ** 2, width, "constant") for space in spaces]),
        dim=operator.dim,
        matvecs=sum(space.size for space in spaces),
    )


def trace(
    operator: SymmetricOperator,
    *,
    probes: int = 16,
    sketch: int = 0,
    known: Eigenpairs | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Tr A with its standard error, for probes + 2·sketch products.

    Hutchinson: the mean of zᵀAz over random signs z, with standard deviation sqrt(2) times the off-diagonal
    Frobenius norm for each. Outliers make that large, so a subspace U is treated exactly,
    tr A = tr UᵀAU + E zᵀ(I − UUᵀ)A(I − UUᵀ)z, which is unbiased for any U fixed before the probes: the
    vectors of `known` pairs (whose values are Rayleigh quotients, so no product is spent), or the range of A
    applied to `sketch` random vectors. Hutchinson 1990; Hutch++: Meyer, Musco, Musco and Woodruff 2021
    (2010.09649), whose standard error ours adds.

    Raises:
        ValueError: probes is below 1, sketch below 0, or sketch and known are both given.
    """
    if probes < 1 or sketch < 0 or (sketch and known is not None):
        raise ValueError(
            f"probes={probes} must be at least 1, sketch={sketch} at least 0, and 0 beside known pairs"
        )
    generator = generator or torch.Generator().manual_seed(0)
    rows, exact = _exact_part(operator, sketch, known, generator)
    samples = np.array([_sample(operator, rows, generator) for _ in range(probes)])
    value, stderr = over_probes(samples)
    return Estimate(exact + value, stderr)


def _exact_part(
    operator: SymmetricOperator, sketch: int, known: Eigenpairs | None, generator: torch.Generator
) -> tuple[Tensor, float]:
    """Orthonormal rows (j, P) and the trace of the operator on them."""
    if known is not None:
        return known.vectors, float(known.values.sum())
    if sketch == 0:
        return torch.empty(0, operator.dim, dtype=operator.dtype, device=operator.device), 0.0
    images = torch.stack([operator.matvec(random_unit(operator, generator)) for _ in range(sketch)], dim=1)
    basis, _ = torch.linalg.qr(images)
    return basis.T, float((basis * (operator @ basis)).double().sum())


def _sample(operator: SymmetricOperator, rows: Tensor, generator: torch.Generator) -> float:
    signs = torch.randint(2, (operator.dim,), generator=generator).to(operator.device, operator.dtype) * 2 - 1
    probe = signs - (rows @ signs) @ rows
    return float(probe.double() @ operator.matvec(probe).double())


def _space(operator: SymmetricOperator, nodes: int, generator: torch.Generator) -> Krylov:
    space = Krylov(operator, random_unit(operator, generator))
    while space.size < nodes and not space.exhausted:
        space.grow()
    return space


def _padded(row: Array, width: int, mode: str) -> Array:
    padded: Array = np.pad(row, (0, width - len(row)), mode)  # type: ignore[call-overload]
    return padded


def over_probes(samples: Array) -> Estimate:
    """Mean and standard error of independent samples (n,)."""
    stderr = samples.std(ddof=1) / np.sqrt(len(samples)) if len(samples) > 1 else np.nan
    return Estimate(float(samples.mean()), float(stderr))
