"""The loss over the plane that a trajectory moves in, beside the loss that its snapshots really have."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..geometry.objective import exact_attention
from ..runs.milestones import milestones
from ..runs.rebuild import rebuild
from .brief import brief
from .result import fingerprint, read, result_path, walk, write
from .rows import Progress, Row, identity
from .snapshots import at_most, choose
from .trajectory import trajectory_subspace

if TYPE_CHECKING:
    from ..geometry.objective import Objective
    from ..geometry.subspace import Subspace
    from ..runs.store import Run

Array = NDArray[np.float64]
_BATCH = 16  # points evaluated together
_STACKED_WORK = 2**25  # parameters times samples; above it one point at a time is as fast on a CPU
_PAUSE = 10.0  # seconds between two savings


@dataclass(frozen=True)
class Surface:
    """Loss over the plane of the first two components, at S snapshots, and along one straight line.

    The picture is true of a snapshot in so far as `plane_loss`, the surface's height under it, is `loss`,
    what it really has: it lies `residual` away from the plane.
    """

    KIND: ClassVar[str] = "surface"
    REVISION: ClassVar[int] = 1

    __repr__ = brief

    steps: NDArray[np.int64]  # (S,)
    scores: Array  # (S, 2) coordinates in the plane
    residual: Array  # (S,) ‖θ − its projection‖
    loss: Array  # (S,)
    plane_loss: Array  # (S,) at the projection
    first: Array  # (A,) coordinates of the grid along component 1
    second: Array  # (B,) along component 2
    surface: Array  # (B, A)
    explained_variance: Array  # (2,)
    line_steps: NDArray[np.int64]  # (2,) snapshots that the line joins
    line_fraction: Array  # (L,) from 0 to 1
    line_loss: Array  # (L,)
    barrier: float  # greatest height of the line's loss above the chord between its ends
    split: str


def surface_along(
    run: Run,
    *,
    objective: Objective | None = None,
    split: Literal["train", "test"] = "train",
    size: int = 21,
    margin: float = 0.15,
    points: int = 41,
    between: tuple[int, int] | None = None,
    snapshots: Sequence[int] | NDArray[np.int64] | None = None,
    name: str | None = None,
    directory: str | Path | None = None,
    progress: Progress = identity,
) -> Surface:
    """L(μ + x b₁ + y b₂) on a `size` × `size` grid, and L(θ_a + s (θ_b − θ_a)) at `points` values of s.

    μ and b are the mean and the first two components of all snapshots (time-weighted, see
    `principal_subspace`); the grid reaches over them by `margin` of their range. `between` is the pair of
    steps (a, b) that the line joins: by default the snapshots at memorization and generalization, or the
    first and the last (linear interpolation: Goodfellow, Vinyals and Saxe 2015, arXiv 1412.6544).
    `snapshots` are those whose true loss is taken, 48 by default. What is done is saved on the way, and
    the same call goes on from there. Costs size² + points + 2 S passes over the data, no gradients.

    Raises:
        ValueError: size or points below 2, or the run's loss can't be rebuilt.
    """
    if min(size, points) < 2:
        raise ValueError(f"size={size}, points={points}: both must be at least 2")
    loss = rebuild(run, split) if objective is None else objective
    chosen = at_most(run, 48) if snapshots is None else np.asarray(snapshots)
    plane = trajectory_subspace(run, 2, progress=progress)
    ends = _ends(run, between)
    first, second = (_reach(plane.scores[:, k], size, margin) for k in (0, 1))
    grid = np.stack([values.ravel() for values in np.meshgrid(first, second)], axis=1)
    fraction = np.linspace(0, 1, points)
    path = result_path(Surface.KIND, run, name=name, directory=directory).with_suffix(".grid.partial.h5")
    options = {"split": split, "size": size, "margin": margin, "points": points, "ends": ends.tolist()}
    heights = _resumed(
        path,
        fingerprint(run, kind=Surface.KIND, revision=Surface.REVISION, options=options) | {"run": run.hash},
        partial(_points, run, plane, grid, ends, fraction),
        len(grid) + points,
        lambda block: losses(loss, _tensor(block, loss, run.dtype)),
        progress,
    )
    rows: dict[str, Any] = walk(
        run,
        chosen,
        partial(_beside, plane, loss),
        kind=Surface.KIND,
        revision=Surface.REVISION,
        options={"split": split, "run": run.hash},
        name=name,
        directory=directory,
        progress=progress,
    )
    path.unlink(missing_ok=True)
    line = heights[len(grid) :]
    return Surface(
        steps=run.steps[chosen],
        scores=plane.scores[chosen],
        first=first,
        second=second,
        surface=heights[: len(grid)].reshape(size, size),
        explained_variance=plane.explained_variance,
        line_steps=run.steps[ends],
        line_fraction=fraction,
        line_loss=line,
        barrier=float((line - line[0] - fraction * (line[-1] - line[0])).max()),
        split=split,
        **rows,
    )


def losses(objective: Objective, points: Tensor) -> Array:
    """Mean loss over all samples at each of points (C, P), as (C,); C passes over the data.

    Small problems and accelerators take all points at once, chunk by chunk of the samples.

    Raises:
        ValueError: the loss changes a state of its model, as batch normalization does in training mode.
    """
    work = points.shape[1] * min(objective.chunk_size, objective.num_samples)
    if work > _STACKED_WORK and points.device.type == "cpu":
        return np.array([objective.value(point) for point in points])
    total = torch.zeros(len(points), dtype=torch.float64, device=points.device)
    everything = torch.arange(objective.num_samples, device=objective.device)
    with torch.no_grad(), exact_attention():
        for indices in torch.split(everything, objective.chunk_size):
            found = _stacked(objective, points, indices)
            total += found.double() * (len(indices) / objective.num_samples)
    return np.asarray(total.cpu())


def _stacked(objective: Objective, points: Tensor, indices: Tensor) -> Tensor:
    try:
        return torch.func.vmap(objective.sample_loss, (0, None))(points, indices)
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:200]
        raise ValueError(
            "objective can't be taken at several points at once, as a function of theta alone could; put its "
            f"model in eval mode ({reason})"
        ) from error


def _ends(run: Run, between: tuple[int, int] | None) -> NDArray[np.int64]:
    """Indices (2,) of the snapshots that the line joins."""
    if between is not None:
        if between[0] == between[1]:
            raise ValueError(f"between={between} names one snapshot twice; give two steps")
        return np.array([choose(run, steps=[step])[0] for step in between])
    found = milestones(run)
    if found.memorized is None or found.generalized is None:
        return np.array([0, len(run.steps) - 1])
    wanted = (found.memorized.step, found.generalized.step)
    nearest = np.array([np.argmin(abs(run.steps - step)) for step in wanted])
    return nearest if nearest[0] != nearest[1] else np.array([0, len(run.steps) - 1])


def _reach(scores: Array, size: int, margin: float) -> Array:
    low, high = scores.min(), scores.max()
    return np.linspace(low - margin * (high - low), high + margin * (high - low), size)


def _points(
    run: Run, plane: Subspace, grid: Array, ends: NDArray[np.int64], fraction: Array, which: range
) -> Array:
    """Parameter vectors (len(which), P): those of the grid come first, then those of the line."""
    inside = [k for k in which if k < len(grid)]
    found = [plane.mean + grid[inside] @ plane.basis] if inside else []
    beyond = [k - len(grid) for k in which if k >= len(grid)]
    if beyond:
        start, stop = (run.theta(int(end)).astype(np.float64) for end in ends)
        found.append(start + fraction[beyond, None] * (stop - start))
    return np.concatenate(found)


def _beside(plane: Subspace, objective: Objective, index: int, theta: NDArray[Any], _: Any) -> Row:
    """The loss of a snapshot and of its projection onto the plane, and the distance between the two."""
    there = plane.mean + plane.scores[index] @ plane.basis
    values = losses(objective, _tensor(np.stack([theta.astype(np.float64), there]), objective, theta.dtype))
    distance = np.linalg.norm(theta.astype(np.float64) - there)
    return {"loss": values[0], "plane_loss": values[1], "residual": distance}


def _tensor(points: Array, objective: Objective, dtype: Any) -> Tensor:
    return torch.from_numpy(points.astype(dtype)).to(objective.device)


def _resumed(
    path: Path,
    header: dict[str, Any],
    points: Callable[[range], Array],
    count: int,
    evaluate: Callable[[Array], Array],
    progress: Progress,
) -> Array:
    """The loss at each of `count` points, those in `path` not computed again; the file stays."""
    done: Array = np.empty(0)
    if path.exists():
        found, values = read(path)
        done = values["heights"] if found == header else done
    starts = range(len(done), count, _BATCH)
    last = time.monotonic()
    try:
        for start in progress(starts, description="surface", total=len(starts)):
            which = range(start, min(start + _BATCH, count))
            done = np.concatenate([done, evaluate(points(which))])
            if time.monotonic() - last > _PAUSE:
                write(path, header, {"heights": done})
                last = time.monotonic()
    finally:
        write(path, header, {"heights": done})
    return done
