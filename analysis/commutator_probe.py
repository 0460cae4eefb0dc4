"""What is measured of the commutator at one snapshot: minibatch pairs, subspaces and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..geometry.commutator import Background, Commutator, background, commutator
from ..geometry.finite_commutator import finite_commutator
from ..geometry.inside import (
    UNDEFINED,
    Inside,
    RankOne,
    alignment,
    inside_basis,
    inside_rank_one,
    random_rank_one_fractions,
    rank_one_fraction,
    singular_directions,
)
from ..geometry.objective import Objective
from ..geometry.optimizer_commutator import OptimizerState, Step, adam, optimizer_commutator, sgd
from ..runs.config import RunConfig
from ..runs.streams import generator, stream_seed
from .trajectory import trajectory_subspace

if TYPE_CHECKING:
    from ..runs.store import Run

Row = dict[str, Any]
SIZES = ("raw", "defect", "curvature", "scale_free")
BASES = ("trajectory", "past", "weight", "displacement", "gradient")
_PAST = 40  # snapshots of the past subspace: the Gram matrix costs their square


@dataclass(frozen=True)
class Objectives:
    """The training loss in the run's precision, in float32 and in float64; None where it can't be had."""

    own: Objective
    single: Objective | None
    double: Objective | None


@dataclass(frozen=True)
class Probe:
    """A measure for `walk`: (index, theta (P,), previous) -> row, whichever other snapshots are visited."""

    run: Run
    objectives: Objectives
    batch_size: int
    replacement: bool
    pairs: int
    split_pairs: int
    step_size: float
    adaptive: bool
    rank: int
    singular: int
    seed: int
    whole: NDArray[np.float64] | None  # (rank, P) principal directions of the whole run, future included
    reference: Run | None  # a run of another seed, whose directions are a null
    reference_objective: Objective | None
    reference_whole: NDArray[np.float64] | None  # (rank, P) principal directions of that run

    def __call__(self, index: int, theta: NDArray[Any], previous: Any = None) -> Row:
        """The row of snapshot `index`."""
        step = int(self.run.steps[index])
        point = torch.from_numpy(theta)
        own, batches = self.objectives.own, self._batches(step)
        shared = background(own, point)
        found = [
            commutator(
                own.on(a),
                own.on(b),
                point,
                batch_size=self.batch_size,
                background=shared if k < self.split_pairs else None,
            )
            for k, (a, b) in enumerate(batches)
        ]
        vectors = [one.vector.numpy() for one in found]
        return {
            **_sizes(found, shared),
            **self._published(point, batches),
            **self._roundoff(point, batches[0], found[0]),
            **self._optimizer(step, theta, batches[0], shared),
            **self._inside(index, theta, vectors, shared.gradient.numpy()),
            **self._alignment(index, theta, vectors),
        }

    def _batches(self, step: int) -> list[Tensor]:
        """K pairs of batches (2, b) from the stream of this step, drawn as the trainer draws them."""
        stream = generator(self.seed, "probes", step)
        total = self.objectives.own.num_samples

        def batch() -> Tensor:
            if self.replacement:
                return torch.randint(total, (self.batch_size,), generator=stream)
            return torch.randperm(total, generator=stream)[: self.batch_size]

        return [torch.stack([batch(), batch()]) for _ in range(self.pairs)]

    def _published(self, point: Tensor, batches: Sequence[Tensor]) -> Row:
        """The finite step in float32, with its noise."""
        names = ("raw", "defect", "noise_floor", "defect_floor", "noise_floor_bound", "stagnant_fraction")
        objective = self.objectives.single
        if objective is None:
            return dict.fromkeys((*map(_float32, names), "compensated_defect", "below_floor"), nan)
        found = [
            finite_commutator(
                objective.on(a),
                objective.on(b),
                point.float(),
                step_size=self.step_size,
                adaptive=self.adaptive,
            )
            for a, b in batches
        ]
        row = {_float32(name): _median(getattr(one, name) for one in found) for name in names}
        compensated = [_ratio(one.compensated_raw, float(np.prod(one.gradient_norms))) for one in found]
        below = float(np.mean([one.below_floor for one in found]))
        return row | {"compensated_defect": _median(compensated), "below_floor": below}

    def _roundoff(self, point: Tensor, pair: Tensor, found: Commutator) -> Row:
        """Relative error of the first bracket, against float64."""
        objective = self.objectives.double
        if objective is None or point.dtype == torch.float64:
            return {"roundoff": nan}
        exact = commutator(objective.on(pair[0]), objective.on(pair[1]), point.double())
        return {"roundoff": _ratio(float((found.vector - exact.vector).norm()), exact.raw)}

    def _optimizer(self, step: int, theta: NDArray[Any], pair: Tensor, shared: Background) -> Row:
        """Two optimizer steps in either order, in float64, from the state rebuilt at this step."""
        names = ("relative", "scale_free", "defect")
        objective, config = self.objectives.double, self.run.config
        state = _state(self.run, step, theta, shared.gradient)
        if objective is None or config is None or state is None:
            return {f"optimizer_{name}": nan for name in names}
        found = optimizer_commutator(
            objective.on(pair[0]),
            objective.on(pair[1]),
            torch.from_numpy(theta).double(),
            step=optimizer_step(config, self.run),
            state=state,
        )
        return {f"optimizer_{name}": getattr(found, name) for name in names}

    def _inside(
        self, index: int, theta: NDArray[Any], vectors: list[NDArray[Any]], gradient: NDArray[Any]
    ) -> Row:
        """Energy fractions in the five subspaces with their nulls, each (5,)."""
        table = self.run.table
        past = self._past(index)
        singular = self._directions(self.run, index, theta, gradient)
        other = self._other(index)
        rng = np.random.default_rng(stream_seed(self.seed, "probes", int(self.run.steps[index])))
        found: dict[str, list[Inside]] = {
            "trajectory": [_in_basis(v, self.whole, table) for v in vectors],
            "past": [_in_basis(v, past, table) for v in vectors],
            **{name: [inside_rank_one(v, d) for v in vectors] for name, d in singular.items()},
        }
        deviation = [
            random_rank_one_fractions(vectors[0], singular[name], draws=20, rng=rng).std()
            if singular.get(name)
            else nan
            for name in BASES
        ]
        others = [
            _median(rank_one_fraction(v, other[name]) for v in vectors) if other.get(name) else nan
            for name in BASES
        ]
        others[0] = _median(_in_basis(v, self.reference_whole, table).fraction for v in vectors)
        return {
            "inside_fraction": [_median(one.fraction for one in found[name]) for name in BASES],
            "inside_chance": [found[name][0].chance for name in BASES],
            "inside_null": [_median(one.null for one in found[name]) for name in BASES],
            "inside_null_deviation": [_median(one.null_deviation for one in found[name]) for name in BASES],
            "rank_one_deviation": deviation,
            "other_seed_fraction": others,
        }

    def _past(self, index: int) -> NDArray[np.float64] | None:
        """Principal directions (rank, P) of the snapshots up to this one; None if they are too few."""
        rows = np.unique(np.linspace(0, index, _PAST).round().astype(np.int64))
        return None if len(rows) <= self.rank else subspace(self.run, self.rank, rows)

    def _directions(
        self, run: Run, index: int, theta: NDArray[Any], gradient: NDArray[Any]
    ) -> dict[str, list[RankOne]]:
        sources = {"weight": theta, "displacement": theta - run.theta(0), "gradient": gradient}
        return {name: singular_directions(v, run.table, self.singular) for name, v in sources.items()}

    def _other(self, index: int) -> dict[str, list[RankOne]]:
        """The same directions of the reference run, at its snapshot nearest in steps."""
        if self.reference is None or self.reference_objective is None:
            return {}
        near = int(np.argmin(abs(self.reference.steps - self.run.steps[index])))
        theta = self.reference.theta(near)
        gradient = self.reference_objective.gradient(torch.from_numpy(theta)).numpy()
        return self._directions(self.reference, near, theta, gradient)

    def _alignment(self, index: int, theta: NDArray[Any], vectors: list[NDArray[Any]]) -> Row:
        """|cos| of the brackets and the displacement to the next snapshot of the run."""
        if index + 1 == len(self.run.steps):
            return {"alignment": nan, "alignment_null": nan}
        ahead = self.run.theta(index + 1) - theta
        found = [alignment(vector, ahead) for vector in vectors]
        return {
            "alignment": _median(one.cosine for one in found),
            "alignment_null": _median(one.null for one in found),
        }


def subspace(run: Run, rank: int, rows: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Principal directions (rank, P) of the snapshots at `rows`; None if they don't move in so many."""
    try:
        return trajectory_subspace(run, rank, snapshots=rows).basis
    except ValueError:
        return None


def optimizer_step(config: RunConfig, run: Run) -> Step:
    """The optimizer of a run as a pure function, with its rates per parameter group and its clipping."""
    lr = config.lr * _per_coordinate(run, config.group_lr, 1.0)
    decay = _per_coordinate(run, config.group_weight_decay, config.weight_decay)
    if config.optimizer == "sgd":
        return sgd(lr=lr, momentum=config.momentum, weight_decay=decay, clip=config.clip)
    decoupled = config.optimizer == "adamw"
    return adam(
        lr=lr, betas=config.betas, eps=config.eps, weight_decay=decay, decoupled=decoupled, clip=config.clip
    )


def _per_coordinate(run: Run, groups: dict[str, float], default: float) -> Tensor:
    values = torch.full((run.table.size,), default, dtype=torch.float64)
    for group, value in groups.items():
        values[torch.from_numpy(run.table.select(group))] = value
    return values


def _state(run: Run, step: int, theta: NDArray[Any], gradient: Tensor) -> OptimizerState | None:
    """The optimizer's memory at a snapshot: the second moment stored last, the full gradient as the mean.

    None if no second moment was stored until then, or the learning rate is not that of the config.
    """
    config = run.config
    if config is None or config.adaptive_embedding_lr:
        return None
    start = OptimizerState.start(torch.from_numpy(theta).double())
    if step == 0:
        return start
    if config.optimizer == "sgd":
        drift = gradient.double() + config.weight_decay * torch.from_numpy(theta).double()
        return OptimizerState(
            drift * (1 - config.momentum**step) / (1 - config.momentum), start.second_moment, step
        )
    stored = int(np.searchsorted(run.second_moment_steps, step, side="right")) - 1
    if stored < 0:
        return None
    square = torch.from_numpy(run.second_moment(stored)).double()
    return OptimizerState(gradient.double() * (1 - config.betas[0] ** step), square, step)


def _sizes(found: Sequence[Commutator], shared: Background) -> Row:
    row: Row = {}
    for name in SIZES:
        values = [getattr(one, name) for one in found]
        row |= {name: _median(values), f"{name}_quartiles": np.quantile(values, (0.25, 0.75))}
    split = [one for one in found if not np.isnan(one.gradient_noise)]
    full = float(shared.gradient.double().norm())
    return row | {
        "sqrt_b_raw": _median(one.sqrt_b_raw for one in found),
        "gradient_norm": _median(np.mean(one.gradient_norms) for one in found),
        "full_gradient_norm": full,
        "signal_to_noise": _ratio(full**2, float(np.mean([one.gradient_scatter for one in found]))),
        **{
            f"{part}_noise": _median(getattr(one, f"{part}_noise") for one in split)
            for part in ("gradient", "curvature", "cross")
        },
        "curvature_proper": shared.curvature_proper,
        "batch_cosine": _median(one.cosine for one in found),
        "undefined": next((one.undefined for one in found if one.undefined), ""),
    }


def _in_basis(vector: NDArray[Any], basis: NDArray[np.float64] | None, table: Any) -> Inside:
    return UNDEFINED if basis is None else inside_basis(vector, basis, table)


def _float32(name: str) -> str:
    """Names of the published value: raw and defect are called float32_, its noise has no other owner."""
    return f"float32_{name}" if name in ("raw", "defect") else name


def _median(values: Any) -> float:
    values = list(values)
    return float(np.median(values)) if values else nan


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator != 0 else nan
