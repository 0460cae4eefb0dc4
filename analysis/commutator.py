"""How far minibatch steps fail to commute along a run, and how much of that is float noise or chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..runs.rebuild import rebuild
from .brief import brief
from .commutator_probe import BASES, Objectives, Probe, subspace
from .onset import THRESHOLDS, generalization_steps, onsets
from .result import walk
from .rows import Progress, identity
from .snapshots import at_most

if TYPE_CHECKING:
    from ..geometry.objective import Objective
    from ..runs.store import Run

Array = NDArray[np.float64]
_CHUNK = 2048  # samples a full-data pass keeps a graph of
_WHOLE = 128  # snapshots of the whole run's subspace


@dataclass(frozen=True)
class CommutatorCurve:
    """Brackets of minibatch pairs at S snapshots: medians over pairs, with what they must be read against.

    For independent batches a bracket is minibatch noise, of size 1/sqrt(batch_size): `curvature_proper` is
    the curvature without it. The float32 value is that of the literature; where it is near `defect_floor`
    (`below_floor`) it is rounding. An `inside_fraction` means something in so far as it differs from
    `inside_null`. Undefined values are nan, with a reason in `undefined`.
    """

    KIND: ClassVar[str] = "commutator"
    REVISION: ClassVar[int] = 1

    __repr__ = brief

    steps: NDArray[np.int64]  # (S,)
    batch_size: int
    pairs: int
    raw: Array  # (S,) ‖H_B g_A − H_A g_B‖
    defect: Array  # (S,) D = raw / (‖g_A‖ ‖g_B‖)
    curvature: Array  # (S,) C1 = raw / mean ‖g‖
    scale_free: Array  # (S,) C0 in [0, 1]
    raw_quartiles: Array  # (S, 2) over pairs; likewise below
    defect_quartiles: Array
    curvature_quartiles: Array
    scale_free_quartiles: Array
    sqrt_b_raw: Array  # (S,)
    gradient_norm: Array  # (S,) of minibatches
    full_gradient_norm: Array  # (S,) of all training data
    signal_to_noise: Array  # (S,) ‖g‖² b / tr Cov(g_i)
    gradient_noise: Array  # (S,) ‖H(g_A − g_B)‖
    curvature_noise: Array  # (S,) ‖(H_B − H_A)g‖
    cross_noise: Array  # (S,) the rest of the bracket
    curvature_proper: Array  # (S,) ‖Hg‖ / ‖g‖
    batch_cosine: Array  # (S,) cos(g_A, g_B)
    roundoff: Array  # (S,) relative error of the bracket in the run's precision, against float64
    step_size: float  # of the finite step
    float32_raw: Array  # (S,) the finite step in float32, as published
    float32_defect: Array  # (S,)
    compensated_defect: Array  # (S,) the same from differences of gradients: a second route to `defect`
    noise_floor: Array  # (S,) rounding error in float32_raw
    defect_floor: Array  # (S,) rounding error in float32_defect
    noise_floor_bound: Array  # (S,) that of independent roundings, in units of raw
    stagnant_fraction: Array  # (S,) coordinates that a float32 step does not move
    below_floor: Array  # (S,) share of pairs whose float32 value is rounding noise
    optimizer_relative: Array  # (S,) ‖θ_AB − θ_BA‖ / step length of the run's optimizer
    optimizer_scale_free: Array  # (S,)
    optimizer_defect: Array  # (S,)
    bases: tuple[str, ...]  # B subspaces: whole trajectory, its past, singular pairs of W, W − W_0, gradient
    inside_fraction: Array  # (S, B) energy of the bracket inside
    inside_chance: Array  # (S, B) k/P
    inside_null: Array  # (S, B) random directions in the same tensors
    inside_null_deviation: Array  # (S, B)
    rank_one_deviation: Array  # (S, B) deviation for random directions u vᵀ; their mean is inside_null
    other_seed_fraction: Array  # (S, B) energy inside another run's directions
    alignment: Array  # (S,) |cos| of bracket and displacement to the run's next snapshot
    alignment_null: Array  # (S,) for random signs of their entries
    alignment_chance: float  # sqrt(2/(πP)), for isotropic vectors
    undefined: tuple[str, ...]  # S reasons
    onset_rules: tuple[str, ...]  # R
    onset_below: Array  # (R,) last step below the onset, nan if there is none
    onset_step: Array  # (R,) first step at or above, nan if there is none
    thresholds: Array  # (3,) test accuracies
    generalized: Array  # (3,) first step at which each was reached for good
    lead: Array  # (R, 3) generalized − onset_step


def commutator_along(
    run: Run,
    *,
    objective: Objective | None = None,
    snapshots: Sequence[int] | NDArray[np.int64] | None = None,
    pairs: int = 5,
    split_pairs: int = 2,
    batch_size: int | None = None,
    step_size: float = 1e-3,
    adaptive: bool = False,
    rank: int = 8,
    singular: int = 3,
    factor: float | None = None,
    reference: Run | None = None,
    name: str | None = None,
    directory: str | Path | None = None,
    progress: Progress = identity,
    jobs: int = 1,
) -> CommutatorCurve:
    """Exact and published commutators of `pairs` minibatch pairs at each snapshot (16 by default).

    Batches have the run's size (512 or half of the samples for a full-batch run, whose own steps commute)
    and come from the run's stream 'probes' at the snapshot's step, so that a snapshot's numbers do not
    depend on the others visited. The split into gradient and curvature noise is taken for the first
    `split_pairs` pairs, since each needs a product with the full Hessian. `rank` is that of the
    trajectory subspaces, `singular` the number of singular pairs per weight matrix. The 'gradient'
    subspace is that of the full gradient at the snapshot, the mean of recent minibatch gradients without
    their noise. The optimizer's memory is rebuilt from the last stored second moment and the full
    gradient. `factor` is the sustained rule's, by default calibrated (see `onsets`). `reference` is a run
    of another seed.

    Cost per snapshot in minibatch gradients, N samples in batches of b: 10 pairs + (4 + 3N/b) split_pairs
    + 4N/b, and 10 in float64.

    Raises:
        ValueError: batch_size, pairs or split_pairs out of bounds, a reference with other parameters, or a
            run whose loss can't be rebuilt.
    """
    chosen = at_most(run, 16) if snapshots is None else np.asarray(snapshots)
    objectives = _objectives(run, objective)
    size = _batch_size(run, batch_size, objectives.own.num_samples)
    _check(run, reference, pairs, split_pairs)
    options: dict[str, Any] = {
        "batch_size": size,
        "replacement": run.config is None or run.config.replacement,
        "pairs": pairs,
        "split_pairs": split_pairs,
        "step_size": step_size,
        "adaptive": adaptive,
        "rank": rank,
        "singular": singular,
        "seed": 0 if run.config is None else run.config.seed,
    }
    columns: dict[str, Any] = walk(
        run,
        chosen,
        _probe(run, objectives, reference, options),
        kind=CommutatorCurve.KIND,
        revision=CommutatorCurve.REVISION,
        options=options | {"reference": None if reference is None else reference.identity},
        name=name,
        directory=directory,
        progress=progress,
        jobs=jobs,
    )
    return _curve(run, run.steps[chosen], columns, options, factor)


def _check(run: Run, reference: Run | None, pairs: int, split_pairs: int) -> None:
    if pairs < 1 or not 0 <= split_pairs <= pairs:
        raise ValueError(
            f"pairs={pairs}, split_pairs={split_pairs}: need 1 <= pairs and split_pairs <= pairs"
        )
    if reference is not None and reference.table != run.table:
        raise ValueError(f"reference={str(reference.path)!r} has other parameters than {run.path}")


def _probe(run: Run, objectives: Objectives, reference: Run | None, options: Mapping[str, Any]) -> Probe:
    """What is asked at each snapshot."""
    return Probe(
        run=run,
        objectives=objectives,
        whole=_whole(run, options["rank"]),
        reference=reference,
        reference_objective=None if reference is None else rebuild(reference).with_chunk_size(_CHUNK),
        reference_whole=None if reference is None else _whole(reference, options["rank"]),
        **options,
    )


def _curve(
    run: Run,
    steps: NDArray[np.int64],
    columns: Mapping[str, Any],
    options: Mapping[str, Any],
    factor: float | None,
) -> CommutatorCurve:
    """The result, with what follows from the columns of all snapshots together."""
    found = onsets(steps, columns, factor=factor)
    generalized = generalization_steps(run)
    after = np.array([crossing.step for crossing in found.values()])
    return CommutatorCurve(
        steps=steps,
        pairs=options["pairs"],
        batch_size=options["batch_size"],
        step_size=options["step_size"],
        bases=BASES,
        alignment_chance=sqrt(2 / (pi * run.table.size)),
        onset_rules=tuple(found),
        onset_below=np.array([crossing.below for crossing in found.values()]),
        onset_step=after,
        thresholds=np.array(THRESHOLDS),
        generalized=generalized,
        lead=generalized - after[:, None],
        **{**columns, "undefined": tuple(map(str, columns["undefined"]))},
    )


def _whole(run: Run, rank: int) -> Array | None:
    """Principal directions (rank, P) of the whole run."""
    rows = np.unique(np.linspace(0, len(run.steps) - 1, _WHOLE).round().astype(np.int64))
    return subspace(run, rank, rows)


def _objectives(run: Run, given: Objective | None) -> Objectives:
    """The training loss in the precisions there are; a given one exists in the run's precision only."""
    if given is not None:
        own = given
        return Objectives(
            own, own if run.dtype == "float32" else None, own if run.dtype == "float64" else None
        )
    single, double = (rebuild(run, dtype=dtype) for dtype in (torch.float32, torch.float64))
    single, double = single.with_chunk_size(_CHUNK), double.with_chunk_size(_CHUNK)
    return Objectives(single if run.dtype == "float32" else double, single, double)


def _batch_size(run: Run, asked: int | None, total: int) -> int:
    """The asked size, the run's, or 512; at most half of the samples for a full-batch run."""
    if asked is not None:
        if not 1 <= asked <= total:
            raise ValueError(f"batch_size={asked} must be from 1 to the {total} training samples")
        return asked
    own = run.config.batch_size if run.config is not None else 512
    return min(512, max(total // 2, 1)) if own == "full" else min(own, total)
