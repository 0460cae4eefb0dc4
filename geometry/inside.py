"""How much of a vector lies inside a subspace, against what matched random subspaces would hold.

Everything is an energy fraction ‖Bv‖²/‖v‖², whose chance level is k/P for an isotropic vector. Few vectors
are isotropic: a bracket has most of its energy in some tensors, and so does any basis made of weights. The
nulls keep that and randomize the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .parameters import Matrix, ParameterTable

Array = NDArray[np.float64]


class RankOne(NamedTuple):
    """k orthonormal directions u_i v_iᵀ inside one weight matrix."""

    matrix: Matrix
    left: Array  # (k, rows)
    right: Array  # (k, columns)


@dataclass(frozen=True)
class Inside:
    """Energy fraction of a vector inside a subspace, and the mean and deviation of its matched null."""

    fraction: float  # ‖Bv‖² / ‖v‖²
    chance: float  # k / P
    null: float  # expected for random directions with the basis' energy in every tensor or matrix
    null_deviation: float  # standard deviation of that null


UNDEFINED = Inside(nan, nan, nan, nan)
"""For a zero vector, or a subspace that does not exist, such as that of a displacement before any step."""


def singular_directions(theta: NDArray[Any], table: ParameterTable, count: int) -> list[RankOne]:
    """The top `count` singular pairs of every weight matrix in theta (P,), as directions in theta's space.

    Directions of different matrices are orthogonal. A matrix that is zero has none.
    """
    found = []
    for matrix in table.matrices():
        weights = _slice(theta, matrix)
        if weights.any():
            left, _, right = np.linalg.svd(weights, full_matrices=False)
            found.append(RankOne(matrix, left.T[:count], right[:count]))
    return found


def rank_one_fraction(vector: NDArray[Any], directions: Sequence[RankOne]) -> float:
    """Σ_i (u_iᵀ V v_i)² / ‖v‖² over the directions, V the part of vector (P,) in their matrix."""
    inner = [np.einsum("kr,rc,kc->k", d.left, _slice(vector, d.matrix), d.right) for d in directions]
    return float(sum((i**2).sum() for i in inner) / _energy(vector))


def inside_rank_one(vector: NDArray[Any], directions: Sequence[RankOne]) -> Inside:
    """Fraction of vector (P,) in singular directions, against random directions in the same matrices.

    A random unit direction in a matrix of n entries, of which the vector has the energy share e, takes
    e/n in the mean with variance 2(e/n)² up to O(1/n), whether it has rank one or not.
    """
    if not directions or not vector.any():
        return UNDEFINED
    count = sum(len(d.left) for d in directions)
    shares = [_share(vector, d.matrix) / (d.matrix.rows * d.matrix.columns) for d in directions]
    null = sum(len(d.left) * share for d, share in zip(directions, shares, strict=True))
    variance = sum(2 * len(d.left) * share**2 for d, share in zip(directions, shares, strict=True))
    return Inside(rank_one_fraction(vector, directions), count / len(vector), float(null), sqrt(variance))


def random_rank_one_fractions(
    vector: NDArray[Any], directions: Sequence[RankOne], *, draws: int, rng: np.random.Generator
) -> Array:
    """Fractions (draws,) of vector (P,) in random orthonormal rank-one directions, as many per matrix.

    Their mean is that of `inside_rank_one`; they scatter more where the vector itself has low rank.
    """
    return np.array(
        [rank_one_fraction(vector, [_random_like(d, rng) for d in directions]) for _ in range(draws)]
    )


def inside_basis(vector: NDArray[Any], basis: Array, table: ParameterTable) -> Inside:
    """Fraction of vector (P,) in the span of orthonormal rows (k, P).

    The null replaces each row by a random direction with the same energy in every tensor: with e_t and
    q_t the shares of vector and row in tensor t of n_t entries, it takes s = Σ_t q_t e_t/n_t in the mean,
    with variance 2s².
    """
    energy = _energy(vector)
    if energy == 0:
        return UNDEFINED
    spans = list(zip(table.starts, table.sizes, strict=True))
    shares = np.array([_energy(vector[start : start + size]) / energy / size for start, size in spans])
    profile = np.array([(basis[:, start : start + size] ** 2).sum(axis=1) for start, size in spans])
    null = shares @ profile
    fraction = float(((basis @ vector.astype(np.float64)) ** 2).sum() / energy)
    return Inside(fraction, len(basis) / len(vector), float(null.sum()), sqrt(2 * float(null @ null)))


class Alignment(NamedTuple):
    """|cos| of two vectors, and what vectors with these absolute entries and random signs would have."""

    cosine: float  # |cos(a, b)|
    null: float  # sqrt(2/π · Σ a_i² b_i²) / (‖a‖ ‖b‖)


def alignment(a: NDArray[Any], b: NDArray[Any]) -> Alignment:
    """|cos| of a (P,) and b (P,) and its chance level; nan where one of them is zero.

    For isotropic vectors the level is sqrt(2/(πP)); both concentrating on the same entries raises it.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    scale = sqrt(_energy(a) * _energy(b))
    if scale == 0:
        return Alignment(nan, nan)
    return Alignment(abs(float(a @ b)) / scale, sqrt(2 / np.pi * float(a**2 @ b**2)) / scale)


def _random_like(directions: RankOne, rng: np.random.Generator) -> RankOne:
    frames = [
        np.linalg.qr(rng.standard_normal(side.T.shape))[0].T for side in (directions.left, directions.right)
    ]
    return RankOne(directions.matrix, *frames)


def _slice(vector: NDArray[Any], matrix: Matrix) -> Array:
    flat = vector[matrix.start : matrix.start + matrix.rows * matrix.columns]
    return flat.reshape(matrix.rows, matrix.columns).astype(np.float64)


def _share(vector: NDArray[Any], matrix: Matrix) -> float:
    return _energy(_slice(vector, matrix)) / _energy(vector)


def _energy(vector: NDArray[Any]) -> float:
    flat = vector.ravel().astype(np.float64)
    return float(flat @ flat)
