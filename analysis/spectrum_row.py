"""What is measured of the spectrum at one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..geometry.eigenpairs import Eigenpairs
from ..geometry.lanczos import extreme_pairs, lanczos
from ..geometry.objective import Objective
from ..geometry.operators import (
    SymmetricOperator,
    ggn_operator,
    hessian_operator,
    preconditioned,
    restrict,
    scaled,
    shifted,
)
from ..geometry.parameters import Matrix
from ..geometry.sharpness import batch_sharpness
from ..geometry.spectrum import trace
from ..geometry.stability import spectral_ceilings
from ..runs.streams import generator
from .edge import Edge, Optimizer, moments_at

if TYPE_CHECKING:
    from ..runs.store import Run

Row = dict[str, Any]
CEILINGS = ("mean", "median", "maximum", "along")


@dataclass(frozen=True)
class SpectrumOptions:
    """How much is measured, and how exactly."""

    largest: int = 3
    smallest: int = 1
    tolerance: float = 1e-2
    max_matvecs: int = 20
    probes: int = 4
    batches: int = 8
    batch_size: int | None = None  # None: that of training
    warm: bool = False  # start at the pairs of the snapshot before
    seed: int = 0
    dtype: str | None = None  # None: that of the run


@dataclass(frozen=True)
class Question:
    """A run with all that one row needs; calling it measures snapshot `index` with parameters theta (P,)."""

    run: Run
    objective: Objective
    options: SpectrumOptions
    optimizer: Optimizer | None
    edge: Edge
    matrices: tuple[Matrix, ...]

    def __call__(self, index: int, theta: NDArray[Any], previous: Mapping[str, Any] | None) -> Row:
        """One row; entries that begin with an underscore are start vectors for the next snapshot."""
        point = torch.from_numpy(theta)
        if self.options.dtype is not None:
            point = point.to(getattr(torch, self.options.dtype))
        return _Measuring(self, index, point, previous or {}).row()


class _Measuring:
    """One snapshot: its Hessian, a random stream of its own, and a tally of products."""

    def __init__(self, question: Question, index: int, theta: Tensor, previous: Mapping[str, Any]) -> None:
        self.question, self.index, self.theta, self.previous = question, index, theta, previous
        self.options = question.options
        self.generator = generator(self.options.seed, "probes", index)
        self.tally = 0
        self.hessian = self._counted(hessian_operator(question.objective, theta))

    def row(self) -> Row:
        """All numbers of this snapshot."""
        upper, lower = extreme_pairs(
            self.hessian,
            self.options.largest,
            self.options.smallest,
            tolerance=self.options.tolerance,
            max_matvecs=self.options.max_matvecs,
            start=self._start("_top"),
            generator=self.generator,
        )
        row = _ends(upper, lower) | self._trace(upper) | self._scale_aware() | self._gauss_newton(upper)
        row |= self._matrices() | self._adaptive(upper)
        squared_norm = float(self.theta.double().square().sum())
        return row | {"squared_norm": squared_norm, "matvecs": self.tally}

    def _counted(self, operator: SymmetricOperator) -> SymmetricOperator:
        def product(v: Tensor) -> Tensor:
            self.tally += 1
            return operator.matvec(v)

        return replace(operator, matvec=product)

    def _start(self, name: str) -> Tensor | None:
        vectors = self.previous.get(name) if self.options.warm else None
        return None if vectors is None else torch.from_numpy(np.asarray(vectors))

    def _largest(self, operator: SymmetricOperator, name: str) -> Row:
        """λ_max of an operator with its evidence, as fields beginning with `name`."""
        found = lanczos(
            operator,
            tolerance=self.options.tolerance,
            max_matvecs=self.options.max_matvecs,
            start=self._start(f"_{name}"),
            generator=self.generator,
        )
        return {
            name: float(found.values[0]),
            f"{name}_residual": float(found.residuals[0]),
            f"{name}_edge": float(found.edges[0]),
            f"{name}_extremal": bool(found.extremal[0]),
            f"_{name}": found.vectors.cpu().numpy(),
        }

    def _trace(self, upper: Eigenpairs) -> Row:
        found = trace(self.hessian, probes=self.options.probes, known=upper, generator=self.generator)
        return {"trace": found.value, "trace_stderr": found.stderr}

    def _scale_aware(self) -> Row:
        return self._largest(scaled(self.hessian, self.theta.abs()), "scale_aware")

    def _gauss_newton(self, upper: Eigenpairs) -> Row:
        """λ_max(G), and how much of λ_max(H) along its vector is G."""
        objective = self.question.objective
        if objective.outputs is None or objective.criterion is None:
            return _missing("gauss_newton") | {"gauss_newton_along": np.nan}
        operator = self._counted(ggn_operator(objective, self.theta))
        found = self._largest(operator, "gauss_newton")
        top = upper.vectors[0]
        return found | {"gauss_newton_along": float(top @ (operator @ top))}

    def _matrices(self) -> Row:
        """‖W‖² λ_max(H_WW) per matrix."""
        found: dict[str, list[Any]] = {"": [], "_residual": [], "_edge": [], "_extremal": []}
        for matrix in self.question.matrices:
            coords = torch.arange(matrix.start, matrix.start + matrix.rows * matrix.columns)
            block = restrict(self.hessian, coords.to(self.theta.device))
            pairs = lanczos(
                block,
                tolerance=self.options.tolerance,
                max_matvecs=self.options.max_matvecs,
                generator=self.generator,
            )
            square = float(self.theta[coords].double().square().sum())
            found[""].append(square * float(pairs.values[0]))
            found["_residual"].append(square * float(pairs.residuals[0]))
            found["_edge"].append(square * float(pairs.edges[0]))
            found["_extremal"].append(bool(pairs.extremal[0]))
        return {f"matrix_scale_aware{end}": np.array(values) for end, values in found.items()}

    def _adaptive(self, upper: Eigenpairs) -> Row:
        """Everything that compares curvature with the optimizer: gates, ceilings, batch sharpness."""
        optimizer, edge = self.question.optimizer, self.question.edge
        moments = moments_at(self.question.run, optimizer, self.index)
        batch = self._batches(None if moments is None else moments.diagonal)
        if moments is None or optimizer is None:
            ceiling = np.nan if edge.preconditioned else edge.value
            return (
                batch
                | _missing("preconditioned")
                | {"ceilings": np.full(len(CEILINGS), np.nan)}
                | {"gate": float(upper.values[0]) / ceiling, "batch_gate": batch["batch_sharpness"] / ceiling}
            )
        inner = preconditioned(shifted(self.hessian, edge.l2), moments.diagonal.to(self.theta))
        found = self._largest(inner, "preconditioned")
        along = upper.vectors[0].cpu()
        ceilings = spectral_ceilings(moments.root, along, lr=optimizer.lr, eps=optimizer.eps)
        return (
            batch
            | found
            | {
                "ceilings": np.array(ceilings),
                "gate": found["preconditioned"] / edge.value,
                "batch_gate": batch["preconditioned_batch_sharpness"] / edge.value,
            }
        )

    def _batches(self, diagonal: Tensor | None) -> Row:
        size, names = self._batch_size(), ("batch_sharpness", "preconditioned_batch_sharpness")
        if size is None:
            return {f"{name}{end}": np.nan for name in names for end in ("", "_stderr")}
        found = batch_sharpness(
            self.question.objective,
            self.theta,
            batch_size=size,
            batches=self.options.batches,
            diagonal=None if diagonal is None else diagonal.to(self.theta),
            generator=self.generator,
        )
        pairs = dict(zip(names, found, strict=True))
        values = {name: estimate.value for name, estimate in pairs.items()}
        return values | {f"{name}_stderr": estimate.stderr for name, estimate in pairs.items()}

    def _batch_size(self) -> int | None:
        config = self.question.run.config
        if self.options.batch_size is not None or config is None:
            return self.options.batch_size
        return self.question.objective.num_samples if config.batch_size == "full" else config.batch_size


def _ends(upper: Eigenpairs, lower: Eigenpairs) -> Row:
    both = {
        name: torch.cat([getattr(upper, name), getattr(lower, name)]).numpy()
        for name in ("residuals", "converged", "extremal", "edges")
    }
    return both | {
        "largest": upper.values.numpy(),
        "smallest": lower.values.numpy(),
        "bound": upper.bound,
        "roundoff": upper.roundoff,
        "_top": upper.vectors.cpu().numpy(),
    }


def _missing(name: str) -> Row:
    """The fields of `_largest` where there is nothing to measure."""
    values = {f"{name}{end}": np.nan for end in ("", "_residual", "_edge")}
    return values | {f"{name}_extremal": False}
