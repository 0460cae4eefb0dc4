"""What becomes of the weight matrices: norms and ranks of each along a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..geometry.parameters import Matrix
from ..geometry.ranks import effective_rank, random_stable_rank, stable_rank
from .brief import brief
from .result import walk
from .rows import Progress, identity
from .snapshots import at_most

if TYPE_CHECKING:
    from ..runs.store import Run

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WeightsCurve:
    """Norms and ranks of M weight matrices at the snapshots `steps`; see `geometry.ranks`."""

    KIND: ClassVar[str] = "weights"
    REVISION: ClassVar[int] = 1

    __repr__ = brief

    steps: NDArray[np.int64]  # (S,)
    matrices: tuple[str, ...]  # M names
    rows: NDArray[np.int64]  # (M,)
    columns: NDArray[np.int64]  # (M,)
    norm: Array  # (S, M) Frobenius
    spectral_norm: Array  # (S, M) largest singular value
    stable_rank: Array  # (S, M) ‖W‖_F²/‖W‖₂²
    effective_rank: Array  # (S, M) exponential of the entropy of the singular values
    random_stable_rank: Array  # (M,) of a random matrix of that shape


def weights_along(
    run: Run,
    *,
    snapshots: Sequence[int] | NDArray[np.int64] | None = None,
    jobs: int = 1,
    name: str | None = None,
    directory: str | Path | None = None,
    progress: Progress = identity,
) -> WeightsCurve:
    """Frobenius and spectral norm, stable and effective rank of every weight matrix along a run.

    Attention's stacked input weights count as query, key and value. By default at 40 spread snapshots.
    Needs no data and no gradients: a singular value decomposition for each matrix.

    Raises:
        ValueError: the run has no weight matrix.
    """
    matrices = run.table.matrices()
    if not matrices:
        raise ValueError(f"run={str(run.path)!r} has no weight matrix; all its parameters are vectors")
    indices = at_most(run, 40) if snapshots is None else np.unique(snapshots)
    found = walk(
        run, indices, Question(matrices), kind=WeightsCurve.KIND, options={},
        revision=WeightsCurve.REVISION, name=name, directory=directory, progress=progress, jobs=jobs,
    )  # fmt: skip
    return WeightsCurve(
        steps=run.steps[indices],
        matrices=tuple(matrix.name for matrix in matrices),
        rows=np.array([matrix.rows for matrix in matrices]),
        columns=np.array([matrix.columns for matrix in matrices]),
        **found,
        random_stable_rank=np.array([random_stable_rank(m.rows, m.columns) for m in matrices]),
    )


@dataclass(frozen=True)
class Question:
    """What is measured at one snapshot."""

    matrices: tuple[Matrix, ...]

    def __call__(self, index: int, theta: NDArray[Any], previous: Any) -> dict[str, Any]:
        """The row of a snapshot: arrays (M,)."""
        spectra = [singular_values(theta, matrix) for matrix in self.matrices]
        return {
            "norm": np.array([np.linalg.norm(values) for values in spectra]),
            "spectral_norm": np.array([values.max() for values in spectra]),
            "stable_rank": np.array([stable_rank(values) for values in spectra]),
            "effective_rank": np.array([effective_rank(values) for values in spectra]),
        }


def singular_values(theta: NDArray[Any], matrix: Matrix) -> Array:
    """Singular values (k,) of one weight matrix in theta (P,), decreasing, in float64."""
    flat = theta[matrix.start : matrix.start + matrix.rows * matrix.columns].astype(np.float64)
    return np.asarray(np.linalg.svd(flat.reshape(matrix.rows, matrix.columns), compute_uv=False))
