"""Principal subspaces of a trajectory, exact and out of core.

T snapshots of P parameters have at most T directions, so everything follows from the T x T matrix of
inner products; the T x P matrix is never held. What is multiplied, block of columns by block, are the
steps from one snapshot to the next: the step between near snapshots does not drown in their distance from
the start. Sums of steps give the displacements. All is float64; only above 512 float32 snapshots, where
T² P products take most of the time, are the steps (exact differences of near numbers) multiplied in
float32, block sums still in float64: half the time, errors of about 1e-8 of the total variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, subspace_angles

Array = NDArray[np.float64]
Blocks = Callable[[int], Iterator[tuple[slice, NDArray[Any]]]]
"""width -> (columns, all T snapshots in these columns (T, <= width)) over all columns in order."""
Center = Literal["mean", "first"]
Part = NDArray[np.int64] | slice | None
"""Sorted coordinates, a span of them, or all."""

_BLOCK = 2**22  # numbers held at a time
_COLUMNS = 4096  # at most so many in a float32 sum, before float64 takes over
_MANY = 512  # snapshots, above which float32 is multiplied in float32


class Gram(NamedTuple):
    """Inner products of T snapshots θ_i in some set of coordinates."""

    inner: Array  # (T, T)  <θ_i - θ_0, θ_j - θ_0>
    first: Array  # (T,)  <θ_0, θ_i - θ_0>
    first_square: float  # ‖θ_0‖²
    dimension: int  # number of coordinates

    @property
    def absolute(self) -> Array:
        """<θ_i, θ_j> (T, T)."""
        return self.inner + self.first[:, None] + self.first + self.first_square

    def __add__(self, other: Gram) -> Gram:  # type: ignore[override]
        """The Gram in both sets of coordinates, which must be disjoint."""
        first_square, dimension = self.first_square + other.first_square, self.dimension + other.dimension
        return Gram(self.inner + other.inner, self.first + other.first, first_square, dimension)

    @property
    def step_squares(self) -> Array:
        """‖θ_i - θ_{i-1}‖² (T - 1,)."""
        own = np.diag(self.inner)
        return np.maximum(own[1:] + own[:-1] - 2 * np.diag(self.inner, 1), 0)


class Components(NamedTuple):
    """Principal components of snapshots, in terms of the snapshots."""

    variances: Array  # (k,) descending, weighted means of squares
    total_variance: float
    scores: Array  # (T, k) coordinates of the snapshots along the components
    combination: Array  # (T, k) component = Σ_i combination_i (θ_i - θ_0), unit length; 0 without variance

    @property
    def explained_variance(self) -> Array:
        """Share of each in the total, (k,); all zero for a trajectory that does not move."""
        return self.variances / self.total_variance if self.total_variance > 0 else 0 * self.variances


@dataclass(frozen=True)
class Subspace:
    """The principal subspace of a trajectory: k orthonormal directions and how far it moves along them.

    `mean` is the origin that scores refer to: the weighted mean, or the first snapshot for center="first".
    """

    mean: Array  # (P,)
    basis: Array  # (k, P) orthonormal rows, zero outside the chosen coordinates
    variances: Array  # (k,)
    total_variance: float
    scores: Array  # (T, k)
    weights: Array  # (T,) sum to one
    center: Center

    @property
    def explained_variance(self) -> Array:
        """Share of each variance in the total, (k,)."""
        return self.variances / self.total_variance


def principal_subspace(
    snapshots: NDArray[Any] | Blocks,
    rank: int,
    *,
    weights: Array | None = None,
    center: Center = "mean",
    coordinates: NDArray[np.int64] | None = None,
) -> Subspace:
    """The `rank` directions along which the snapshots vary most: weighted PCA, exact.

    With weights w_i (equal if None; scaled to sum to one) and μ = Σ w_i θ_i (or θ_0 for center="first"),
    these are the leading eigenvectors of Σ_i w_i (θ_i - μ)(θ_i - μ)ᵀ; variances are its eigenvalues
    (scikit-learn's are T/(T - 1) times as large). Sign: each component's score is positive at the end of
    the trajectory. `snapshots` is an array (T, P) or a reader of column blocks, which is read twice.
    `coordinates` restricts the analysis to sorted coordinates of θ. Cost: T² P flops, no gradients.

    Raises:
        ValueError: `rank` exceeds T or the directions in which the snapshots move, weights don't fit, or a
            snapshot is not finite.
    """
    reader = blocks(snapshots) if isinstance(snapshots, np.ndarray) else snapshots
    (gram,) = grams(reader, [coordinates])
    found = components(gram.inner, rank, weights=weights, center=center)
    moving = int(_moving(found.variances, len(found.scores)).sum())
    if moving < rank:
        raise ValueError(
            f"rank={rank} exceeds the {moving} directions the trajectory moves in; ask for {moving}"
        )
    share = normalized(weights, len(found.scores))
    mean, basis = _vectors(reader, found.combination, _origin(share, center), coordinates)
    return Subspace(mean, basis, found.variances, found.total_variance, found.scores, share, center)


def blocks(matrix: NDArray[Any]) -> Blocks:
    """A reader of column blocks of an array (T, P) in memory."""

    def read(width: int) -> Iterator[tuple[slice, NDArray[Any]]]:
        for start in range(0, matrix.shape[1], width):
            where = slice(start, min(start + width, matrix.shape[1]))
            yield where, matrix[:, where]

    return read


def grams(snapshots: Blocks, parts: Sequence[Part]) -> list[Gram]:
    """One Gram per set of coordinates (sorted, a slice, or None: all), in one reading of all snapshots.

    Raises:
        ValueError: a snapshot holds NaN or infinity, or there are none.
    """
    sums: list[list[Any]] = []
    starts, stops = np.array([_bounds(part) for part in parts]).T
    for where, steps, first in _steps(snapshots):
        sums = sums or [_nothing(len(steps)) for _ in parts]
        for k in np.flatnonzero((starts < where.stop) & (where.start < stops)).tolist():
            inside = _inside(parts[k], where)
            d, f = (steps, first) if inside is None else (steps[:, inside], first[inside])
            new = [np.float64(d @ d.T), np.float64(d @ f), float(f @ f), d.shape[1]]
            sums[k] = [a + b for a, b in zip(sums[k], new, strict=True)]
    if not sums:
        raise ValueError("snapshots are empty; a trajectory needs at least two of at least one parameter")
    return [_gram(*terms) for terms in sums]


def components(
    inner: Array, rank: int, *, weights: Array | None = None, center: Center = "mean"
) -> Components:
    """Principal components of snapshots known by their inner products (T, T) only.

    With K' the inner products of θ_i - μ (see `principal_subspace`) and W = diag(w), the variances are
    eigenvalues of W^½ K' W^½. The origin that `inner` refers to does not matter, so that null models go
    through the same function.

    Raises:
        ValueError: `rank` is below 1 or above T, or weights don't fit.
    """
    count = len(inner)
    if rank < 1:
        raise ValueError(f"rank={rank} must be at least 1")
    if rank > count:
        raise ValueError(
            f"rank={rank} exceeds the {count} snapshots of the trajectory; ask for at most {count} components"
        )
    share = normalized(weights, count)
    origin = _origin(share, center)
    shift = inner @ origin
    centered = inner - shift[:, None] - shift + origin @ shift
    half = np.sqrt(share)
    matrix = half[:, None] * centered * half
    variances, vectors = eigh(matrix, subset_by_index=(count - rank, count - 1))
    variances, vectors = np.maximum(variances[::-1], 0), vectors[:, ::-1]
    parts = half[:, None] * vectors * np.where(_moving(variances, count), variances, np.inf) ** -0.5
    scores = centered @ parts
    sign = _sign_of_the_end(scores)
    combination = (parts - origin[:, None] * parts.sum(axis=0)) * sign
    return Components(variances, max(float(np.trace(matrix)), 0.0), scores * sign, combination)


def normalized(weights: Array | None, count: int) -> Array:
    """Weights (T,) that sum to one; equal ones for None.

    Raises:
        ValueError: wrong length, a negative or non-finite weight, or all zero.
    """
    if weights is None:
        return np.full(count, 1 / count)
    weights = np.asarray(weights, dtype=np.float64)
    if weights.shape != (count,):
        raise ValueError(f"weights has shape {weights.shape}; {count} snapshots need ({count},)")
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
        raise ValueError("weights must be finite and at least 0, and not all 0")
    return np.asarray(weights / weights.sum())


def project(vectors: NDArray[Any], basis: NDArray[Any]) -> NDArray[Any]:
    """Orthogonal projection v Bᵀ B of vectors (P,) or (n, P) onto the span of orthonormal rows (k, P)."""
    return np.asarray((vectors @ basis.T) @ basis)


def principal_angles(first: NDArray[Any], second: NDArray[Any]) -> Array:
    """Angles in [0, π/2] between the spans of rows (k, P) and (l, P), ascending (min(k, l),), in radians.

    The cosines are the singular values of A Bᵀ for orthonormal bases; small angles come from sines
    (Björck and Golub 1973), so that they are accurate to roundoff.
    """
    return np.asarray(subspace_angles(first.T, second.T)[::-1])


def _steps(snapshots: Blocks) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
    """(columns, θ_i - θ_{i-1} (T - 1, w), θ_0 (w,)); float32 for many float32 snapshots, else float64.

    The next columns overwrite the arrays: fresh memory would cost more than the arithmetic.
    """
    values = steps = np.empty((0, 0))
    for where, block in snapshots(_width(snapshots)):
        single = block.dtype == np.float32 and len(block) > _MANY
        for start in range(where.start, where.stop, _COLUMNS):
            stop = min(start + _COLUMNS, where.stop)
            part = block[:, start - where.start : stop - where.start]
            if values.shape != part.shape:
                values = np.empty(part.shape, np.float32 if single else np.float64)
                steps = np.empty_like(values[1:])
            np.copyto(values, part)
            np.subtract(values[1:], values[:-1], out=steps)
            yield slice(start, stop), steps, values[0]


def _nothing(count: int) -> list[Any]:
    """The sums over no coordinates, of `count` steps."""
    return [np.zeros((count, count)), np.zeros(count), 0.0, 0]


def _gram(steps: Array, first: Array, first_square: float, dimension: int) -> Gram:
    """The Gram from inner products of the steps with each other and with θ_0."""
    count = len(first) + 1
    inner, along = np.zeros((count, count)), np.zeros(count)
    inner[1:, 1:] = steps.cumsum(axis=0).cumsum(axis=1)
    along[1:] = first.cumsum()
    broken = ~np.isfinite(np.diag(inner) + along + first_square)
    if broken.any():
        raise ValueError(f"snapshot {int(broken.argmax())} holds NaN or infinity; choose snapshots before it")
    return Gram(inner, along, first_square, dimension)


def _displacements(snapshots: Blocks) -> Iterator[tuple[slice, Array, Array]]:
    """(columns, θ_i - θ_0 (T, w), θ_0 (w,)) in float64; the next block overwrites the displacements."""
    buffer = np.empty(0)
    for where, block in snapshots(_width(snapshots)):
        if buffer.size < block.size:
            buffer = np.empty(block.size)
        displacement, first = buffer[: block.size].reshape(block.shape), block[0].astype(np.float64)
        np.copyto(displacement, block)
        displacement -= first
        yield where, displacement, first


def _width(snapshots: Blocks) -> int:
    """Columns to read at a time, so that a block of all snapshots is of bounded size."""
    count = len(next(snapshots(1))[1])
    width = max(1, _BLOCK // max(count, 1))
    return width - width % _COLUMNS if width > _COLUMNS else width


def _bounds(part: Part) -> tuple[float, float]:
    """The coordinates of a part lie in [start, stop)."""
    if isinstance(part, slice):
        return part.start, part.stop
    if part is None:
        return 0, np.inf
    return (part[0], part[-1] + 1) if part.size else (0, 0)


def _inside(part: Part, where: slice) -> slice | NDArray[np.int64] | None:
    """The columns of a block that belong to the coordinates of a part; None for all of them."""
    if part is None:
        return None
    if isinstance(part, slice):
        low, high = (min(max(end, where.start), where.stop) for end in (part.start, part.stop))
        return slice(low - where.start, high - where.start)
    low, high = np.searchsorted(part, (where.start, where.stop))
    found: NDArray[np.int64] = part[low:high] - where.start
    if found.size and found[-1] - found[0] == found.size - 1:
        return slice(int(found[0]), int(found[-1]) + 1)  # no copy
    return found


def _vectors(
    snapshots: Blocks, combination: Array, origin: Array, coordinates: NDArray[np.int64] | None
) -> tuple[Array, Array]:
    """Origin (P,) and orthonormal basis (k, P) from what combines the displacements to them."""
    means, rows = [], []
    for where, displacement, first in _displacements(snapshots):
        part = combination.T @ displacement
        inside = _inside(coordinates, where)
        if inside is not None:
            outside = np.ones(part.shape[1], dtype=bool)
            outside[inside] = False
            part[:, outside] = 0
        rows.append(part)
        means.append(first + origin @ displacement)
    basis = np.concatenate(rows, axis=1)
    # Rows of small variance are orthogonal only up to roundoff of the large ones; QR mends that.
    q, r = np.linalg.qr(basis.T)
    return np.concatenate(means), np.ascontiguousarray((q * np.sign(np.diag(r))).T)


def _origin(share: Array, center: Center) -> Array:
    """Weights (T,) of the snapshots in the origin: those of the mean, or all on the first."""
    return share if center == "mean" else np.eye(1, len(share))[0]


def _moving(variances: Array, count: int) -> NDArray[np.bool_]:
    """Which descending variances of `count` snapshots are above the roundoff of the largest."""
    return np.asarray(variances > count * np.finfo(np.float64).eps * variances[0])


def _sign_of_the_end(scores: Array) -> Array:
    """±1 per component (k,): the sign of the last score that is not negligible."""
    visible = abs(scores) > 1e-6 * abs(scores).max(axis=0)
    last = len(scores) - 1 - visible[::-1].argmax(axis=0)
    sign = np.sign(scores[last, np.arange(scores.shape[1])])
    return np.where(sign == 0, 1.0, sign)
