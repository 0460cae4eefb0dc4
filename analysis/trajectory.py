"""Does a run move in few directions? Principal components of its trajectory, beside those of a walk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import ceil
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..geometry.norm_law import contraction_rate
from ..geometry.subspace import Array, Center, Gram, Part, components, grams, principal_subspace
from ..geometry.walks import (
    decay_curve,
    driven_steps,
    measured_decay,
    ornstein_uhlenbeck_gram,
    random_walk_null,
    time_weights,
    uniform_subset,
    without_decay_gram,
)
from .brief import brief
from .rows import Progress, identity

if TYPE_CHECKING:
    from ..geometry.subspace import Subspace
    from ..runs.store import Run

Weighting = Literal["time", "subset", "equal"]


@dataclass(frozen=True)
class TrajectoryCurve:
    """Principal components of the snapshots at `steps`, and of three null models with the same weights.

    A component means something in so far as `explained_variance` differs from its nulls. Where a large
    `initial_cosine` and `decay_share` say so, the component is the decay of the initial weights.
    """

    KIND: ClassVar[str] = "trajectory"
    REVISION: ClassVar[int] = 1

    __repr__ = brief

    steps: NDArray[np.int64]  # (S,)
    weights: Array  # (S,) sum to one
    scores: Array  # (S, k) coordinates of each snapshot along the components
    explained_variance: Array  # (k,) shares of total_variance
    random_walk_null: Array  # (k,) a walk with the run's step lengths
    ornstein_uhlenbeck_null: Array  # (k,) with the run's decay and step autocorrelation too
    without_decay: Array  # (k,) explained variance of θ_t - e^{-decay t} θ_0
    initial_cosine: Array  # (k,) cosine between component and θ_0
    total_variance: float  # Σ w_i ‖θ_i - origin‖²
    decay_share: float  # variance of e^{-decay t} θ_0, the run without gradients, over total_variance
    decay: float  # per step
    decay_source: str  # "weight decay", or "measured" where that gives no rate
    step_lengths: Array  # (S - 1,) ‖θ_i - θ_{i-1}‖
    step_cosines: Array  # (S - 2,) between successive steps, decay taken out
    window_steps: NDArray[np.int64]  # (W,) last step of each expanding window
    window_explained: Array  # (W,) first component within the window
    window_null: Array  # (W,) random walk within the window
    matrices: tuple[str, ...]  # M weight matrices
    matrix_explained: Array  # (M, k)
    matrix_null: Array  # (M, k)
    weighting: str
    center: str
    parameters: str  # "all", or the group, matrix or pattern asked for
    dimension: int  # number of parameters


def trajectory_along(
    run: Run,
    *,
    rank: int | None = None,
    parameters: str | None = None,
    weighting: Weighting = "time",
    center: Center = "mean",
    windows: int = 15,
    snapshots: Sequence[int] | NDArray[np.int64] | None = None,
    progress: Progress = identity,
) -> TrajectoryCurve:
    """Weighted PCA of the snapshots of a run (all, or the given indices) with its null models.

    See `principal_subspace` for the definition and `walks.py` for the nulls. `weighting` is by the time
    that a snapshot stands for, equal over the largest uniform grid of snapshots ("subset"), or equal,
    which a schedule that is dense early distorts. `parameters` names a group, a weight matrix or a
    pattern; for all of them (None) every weight matrix is also analyzed on its own. The expanding windows
    (Xu 2026, arXiv 2602.16746) are re-centered each. `rank` is the number of components, by default five
    or as many as there are. Reads the run once; no gradient evaluations.

    Raises:
        ValueError: `rank` exceeds the snapshots, `parameters` matches nothing, or a snapshot is not finite.
    """
    rows = _rows(run, snapshots, weighting)
    steps = run.steps[rows]
    if len(steps) < 2:
        raise ValueError(f"snapshots={len(steps)} of {run.path}: a trajectory needs at least two")
    rank = min(5, len(steps) - 1) if rank is None else rank
    names, parts = _parts(run, parameters)
    found = grams(lambda width: _columns(run, width, rows, progress), parts)
    whole, matrices = reduce(add, found), found[: len(names)]
    weights = _weights(steps, weighting)
    parts_explained = [_against_walk(gram, rank, weights, center) for gram in matrices]
    return TrajectoryCurve(
        steps=steps,
        weights=weights,
        **_components(whole, steps, rank, weights, center, _decay(run, whole, steps)),
        **_windows(whole, steps, windows, weighting, center),
        matrices=names,
        matrix_explained=np.array([data for data, _ in parts_explained]).reshape(-1, rank),
        matrix_null=np.array([null for _, null in parts_explained]).reshape(-1, rank),
        weighting=weighting,
        center=center,
        parameters=parameters or "all",
    )


def trajectory_subspace(
    run: Run,
    rank: int,
    *,
    parameters: str | None = None,
    weighting: Weighting = "time",
    center: Center = "mean",
    snapshots: Sequence[int] | NDArray[np.int64] | None = None,
    progress: Progress = identity,
) -> Subspace:
    """The principal directions themselves, in all P coordinates (zero outside `parameters`).

    Options as for `trajectory_along`. Reads the run twice; holds rank x P numbers in float64.

    Raises:
        ValueError: as `principal_subspace` does, or `parameters` matches nothing.
    """
    rows = _rows(run, snapshots, weighting)
    chosen = None if parameters is None else coordinates(run, parameters)
    weights = _weights(run.steps[rows], weighting)
    return principal_subspace(
        lambda width: _columns(run, width, rows, progress),
        rank,
        weights=weights,
        center=center,
        coordinates=chosen,
    )


def coordinates(run: Run, parameters: str) -> NDArray[np.int64]:
    """Sorted coordinates of a weight matrix (`...in_proj_weight.q` too), a group or a name pattern.

    Raises:
        ValueError: nothing has that name; the message lists what there is.
    """
    for matrix in run.table.matrices():
        if matrix.name == parameters:
            return np.arange(matrix.start, matrix.start + matrix.rows * matrix.columns)
    return run.table.select(parameters)


def _rows(run: Run, snapshots: Sequence[int] | NDArray[np.int64] | None, weighting: str) -> NDArray[np.int64]:
    rows = (
        np.arange(len(run.steps)) if snapshots is None else np.unique(np.asarray(snapshots, dtype=np.int64))
    )
    return rows[uniform_subset(run.steps[rows])] if weighting == "subset" else rows


def _weights(steps: NDArray[np.int64], weighting: str) -> Array:
    return time_weights(steps) if weighting == "time" else np.full(len(steps), 1 / len(steps))


def _columns(run: Run, width: int, rows: NDArray[np.int64], progress: Progress) -> Any:
    found: Iterable[Any] = run.columns(width, indices=rows.tolist())
    if width > 1:  # one column is only a look at the number of rows
        found = progress(found, description="trajectory", total=ceil(run.table.size / width))
    return iter(found)


def _parts(run: Run, parameters: str | None) -> tuple[tuple[str, ...], list[Part]]:
    """Names of the matrices, and disjoint coordinates: theirs, then all others asked for."""
    if parameters is not None:
        return (), [coordinates(run, parameters)]
    matrices = run.table.matrices()
    spans = [slice(m.start, m.start + m.rows * m.columns) for m in matrices]
    ends = sorted([(span.start, span.stop) for span in spans] + [(run.table.size, run.table.size)])
    between = [np.arange(stop, start) for (_, stop), (start, _) in pairwise([(0, 0), *ends])]
    return tuple(matrix.name for matrix in matrices), [*spans, np.concatenate(between)]


def _components(
    gram: Gram, steps: NDArray[np.int64], rank: int, weights: Array, center: Center, decay: tuple[float, str]
) -> dict[str, Any]:
    rate, source = decay

    def explained(inner: Array) -> Array:
        return components(inner, rank, weights=weights, center=center).explained_variance

    found = components(gram.inner, rank, weights=weights, center=center)
    initial = gram.first_square * np.multiply.outer(curve := decay_curve(steps, rate), curve)
    start = gram.first_square**0.5
    return {
        "scores": found.scores,
        "explained_variance": found.explained_variance,
        "random_walk_null": _against_walk(gram, rank, weights, center)[1],
        "ornstein_uhlenbeck_null": explained(ornstein_uhlenbeck_gram(gram, steps, rate)),
        "without_decay": explained(without_decay_gram(gram, steps, rate)),
        "initial_cosine": gram.first @ found.combination / start if start else np.zeros(rank),
        "total_variance": found.total_variance,
        "decay_share": _ratio(
            components(initial, 1, weights=weights, center=center).total_variance, found.total_variance
        ),
        "decay": rate,
        "decay_source": source,
        "step_lengths": np.sqrt(gram.step_squares),
        "step_cosines": driven_steps(gram, steps, rate)[1],
        "dimension": gram.dimension,
    }


def _windows(
    gram: Gram, steps: NDArray[np.int64], windows: int, weighting: str, center: Center
) -> dict[str, Any]:
    """First component and its null in windows from the start that grow to the whole run."""
    count = len(steps)
    sizes = np.unique(np.linspace(min(count, max(5, count // 15)), count, windows).round().astype(int))
    pairs = []
    for size in sizes:
        part = gram._replace(inner=gram.inner[:size, :size], first=gram.first[:size])
        pairs.append(_against_walk(part, 1, _weights(steps[:size], weighting), center))
    return {
        "window_steps": steps[sizes - 1],
        "window_explained": np.array([data[0] for data, _ in pairs]),
        "window_null": np.array([null[0] for _, null in pairs]),
    }


def _against_walk(gram: Gram, rank: int, weights: Array, center: Center) -> tuple[Array, Array]:
    data = components(gram.inner, rank, weights=weights, center=center).explained_variance
    if not gram.step_squares.any():
        return data, 0 * data
    return data, random_walk_null(gram.step_squares, rank, weights=weights, center=center)


def _decay(run: Run, gram: Gram, steps: NDArray[np.int64]) -> tuple[float, str]:
    """The rate per step at which weight decay alone shrinks θ, and where it was taken from."""
    config = run.config
    uneven = config is not None and (
        config.group_lr or config.group_weight_decay or config.adaptive_embedding_lr
    )
    if config is None or config.optimizer == "adam" or uneven:
        return measured_decay(gram, steps), "measured"
    if config.weight_decay == 0:
        return 0.0, "weight decay"
    momentum = config.momentum if config.optimizer == "sgd" else 0.0
    rate = contraction_rate(
        lr=config.lr, weight_decay=config.weight_decay, optimizer=config.optimizer, momentum=momentum
    )
    return rate / 2, "weight decay"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
