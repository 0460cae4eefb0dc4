"""Interventions: what is done to the steps of a run, with random numbers of their own.

Directions, pushes and minibatches of an intervention come from the stream 'interventions', numbered by the
step, so that they never move the training's own streams and a resumed run needs no state of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..geometry.commutator import commutator
from ..geometry.objective import Objective, flatten, load_flat
from ..geometry.parameters import Matrix, ParameterTable
from ..geometry.subspace import principal_subspace
from ..geometry.walks import time_weights
from .intervention_config import Intervention, intervention_of
from .streams import stream_seed

if TYPE_CHECKING:
    from .config import RunConfig
    from .store import Run

_SNAPSHOTS = 128  # of the source, evenly chosen: the Gram matrix costs their square
_PER_DRAW = 10**9  # streams of one draw, more than there are steps


class Disturbance:
    """Carries out an intervention on a model and its optimizer; holds the directions B (k, P)."""

    def __init__(
        self, config: RunConfig, options: Intervention, table: ParameterTable, source: Run | None
    ) -> None:
        self.options, self.config = options, config
        matrices = _matrices(table, options.parameters)
        basis = _basis(options, config, matrices, table.size, source)
        dtype = torch.float32 if config.dtype == "float32" else torch.float64
        self.basis = torch.from_numpy(basis).to(dtype).to(config.device)
        covered = torch.zeros(table.size, dtype=torch.bool, device=config.device)
        for one in matrices:
            covered[_span(one)] = True
        self.covered = covered
        self.scope = covered.to(dtype) if options.scope == "matrices" else None
        self.mean = torch.zeros_like(self.basis[0])
        if options.kind == "penalty" and source is not None:
            mean = np.average(_rows(source, slice(None)), axis=0, weights=time_weights(source.steps))
            self.mean = torch.from_numpy(mean).to(self.basis)

    @property
    def rare(self) -> bool:
        """Whether it is a kick, or due at some steps only."""
        return self.options.kind == "kick" or self.options.every > 1

    def part(self, vector: Tensor) -> Tensor:
        """The part (P,) of a vector (P,) that the intervention acts on."""
        inside = self.basis.T @ (self.basis @ vector)
        if self.options.part == "inside":
            return inside
        return (vector if self.scope is None else self.scope * vector) - inside

    def step(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, objective: Objective, *, at: int
    ) -> float | None:
        """The update of the optimizer after `at` updates, intervened upon; the gradients must be there.

        Returns the length of what was added to θ (kick, noise, project_update) or to the gradient
        (project_gradient, penalty); None where nothing was due.
        """
        options = self.options
        if at < options.start or (options.kind == "kick" and at > options.start):
            optimizer.step()
            return None
        due = (at - options.start) % options.every == 0
        length = self._before(model, objective, at) if due else None
        before = flatten(model)
        optimizer.step()
        if options.freeze_decay:
            load_flat(model, flatten(model) + self._decay(model, optimizer) * before)
        if due and options.kind == "project_update":
            length = self._project_update(model, before)
        return length

    def _before(self, model: nn.Module, objective: Objective, at: int) -> float | None:
        """What happens between gradient and optimizer step."""
        options = self.options
        if options.kind in ("kick", "noise", "sham"):
            push = self.part(self._push(model, objective, at))
            push *= options.displacement / float(torch.linalg.vector_norm(push))
            if options.kind == "sham":
                return 0.0
            load_flat(model, flatten(model) + push)
            return options.displacement
        if options.kind == "project_gradient":
            gradient = _gradient(model)
            change = -options.strength * self.part(gradient)
        elif options.kind == "penalty":
            gradient = _gradient(model)
            change = options.strength * self.part(flatten(model) - self.mean)
        else:
            return None
        _set_gradient(model, gradient + change)
        return float(torch.linalg.vector_norm(change))

    def _project_update(self, model: nn.Module, before: Tensor) -> float:
        moved = flatten(model) - before
        kept = moved - self.options.strength * self.part(moved)
        if self.options.match_length:
            kept *= torch.linalg.vector_norm(moved) / torch.linalg.vector_norm(kept)
        load_flat(model, before + kept)
        return float(torch.linalg.vector_norm(kept - moved))

    def _push(self, model: nn.Module, objective: Objective, at: int) -> Tensor:
        """A Gaussian vector (P,), or the bracket of two minibatches at the current parameters."""
        stream = torch.Generator().manual_seed(_seed(self.config, self.options, at + 1))
        if self.options.push == "gaussian":
            drawn = torch.randn(self.basis.shape[1], generator=stream, dtype=torch.float64)
            return drawn.to(self.basis)
        total = objective.num_samples
        size = max(total // 2, 1) if self.config.batch_size == "full" else self.config.batch_size
        first, second = (torch.randint(total, (size,), generator=stream) for _ in "ab")
        return commutator(objective.on(first), objective.on(second), flatten(model)).vector

    def _decay(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        """Learning rate times weight decay per coordinate (P,) outside the matrices, 0 inside."""
        rates = {id(p): g["lr"] * g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
        found = torch.cat([torch.full_like(p.detach(), rates[id(p)]).reshape(-1) for p in _trained(model)])
        return found.masked_fill(self.covered, 0.0)


def disturbance(
    config: RunConfig, table: ParameterTable, *, parent: Mapping[str, Any] | None = None
) -> tuple[Disturbance | None, dict[str, str]]:
    """What a configuration's intervention needs, and the source of its directions as {path, hash}.

    The source is the run that `source` names, else the `parent` of a branch.

    Raises:
        ValueError: the source is missing, has other parameters or too few snapshots.
    """
    options = intervention_of(config)
    if options is None:
        return None, {}
    if not options.needs_source:
        return Disturbance(config, options, table, None), {}
    path = options.source or (parent or {}).get("path")
    if not path:
        raise ValueError(
            f"intervention: {options.directions} directions are those of a run; name one as source, or branch"
        )
    from .store import Run

    source = Run.open(Path(path))
    if source.table != table:
        raise ValueError(f"intervention: source={str(path)!r} has other parameters than this run")
    return Disturbance(config, options, table, source), {"path": str(path), "hash": source.hash}


def _matrices(table: ParameterTable, pattern: str) -> list[Matrix]:
    chosen = set(table.select(pattern).tolist())
    found = [one for one in table.matrices() if one.start in chosen]
    if not found:
        raise ValueError(f"intervention: parameters={pattern!r} has no weight matrix")
    return found


def _basis(
    options: Intervention, config: RunConfig, matrices: list[Matrix], size: int, source: Run | None
) -> NDArray[np.float64]:
    """Orthonormal rows (k, P), `rank` for each matrix."""
    stream = np.random.default_rng(_seed(config, options, 0))
    if options.directions == "random":
        return _orthonormal(stream.standard_normal((options.rank * len(matrices), size)))
    basis = np.zeros((options.rank * len(matrices), size))
    for k, one in enumerate(matrices):
        rows = slice(k * options.rank, (k + 1) * options.rank)
        if options.directions == "matched":
            drawn = stream.standard_normal((options.rank, one.rows * one.columns))
            basis[rows, _span(one)] = _orthonormal(drawn)
        elif source is not None:
            basis[rows, _span(one)] = _principal(source, one, options)
    return basis


def _principal(source: Run, matrix: Matrix, options: Intervention) -> NDArray[np.float64]:
    """Leading principal directions (rank, rows · columns) of one matrix along the source run."""
    until = options.start if options.directions == "past" else source.steps[-1]
    known = np.flatnonzero(source.steps <= until)
    rows = known[np.unique(np.linspace(0, len(known) - 1, _SNAPSHOTS).round().astype(np.int64))]
    if len(rows) <= options.rank:
        raise ValueError(
            f"intervention: {len(rows)} snapshots of {source.path} give no {options.rank} directions; "
            "record more of them (snapshot_every)"
        )
    snapshots = _rows(source, _span(matrix), rows)
    return principal_subspace(snapshots, options.rank, weights=time_weights(source.steps[rows])).basis


def _rows(source: Run, where: slice, rows: NDArray[np.int64] | None = None) -> NDArray[Any]:
    chosen = np.arange(len(source.steps)) if rows is None else rows
    return np.stack([source.theta(int(i))[where] for i in chosen])


def _orthonormal(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.qr(rows.T)[0].T)


def _span(matrix: Matrix) -> slice:
    return slice(matrix.start, matrix.start + matrix.rows * matrix.columns)


def _seed(config: RunConfig, options: Intervention, index: int) -> int:
    return stream_seed(config.seed, "interventions", options.draw * _PER_DRAW + index)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _gradient(model: nn.Module) -> Tensor:
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in _trained(model)]
    return torch.cat([part.reshape(-1) for part in parts])


def _set_gradient(model: nn.Module, gradient: Tensor) -> None:
    parameters = _trained(model)
    parts = torch.split(gradient, [p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.reshape(parameter.shape).clone()
