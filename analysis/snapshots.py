"""Which snapshots of a run an analysis visits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..runs.store import Run


def choose(
    run: Run,
    *,
    count: int | None = None,
    steps: Sequence[int] | None = None,
    milestones: bool = True,
) -> NDArray[np.int64]:
    """Sorted indices of the snapshots at `steps`, of `count` snapshots spread over the run, or of all.

    Spread means evenly in u(s) = s/s_T + log(1 + s)/log(1 + s_T), half of the points even in the step and
    half in its logarithm, first and last included. With `milestones` the two chosen snapshots nearest to
    memorization and generalization are moved onto them (a run without these keeps the even spread).

    Raises:
        ValueError: `count` below 2 or above the number of snapshots, both options given, or a step that is
            no snapshot.
    """
    if count is not None and steps is not None:
        raise ValueError(f"count={count} and steps={list(steps)} exclude each other; give one of them")
    if steps is not None:
        return _at(run.steps, steps)
    if count is None:
        return np.arange(len(run.steps), dtype=np.int64)
    if not 2 <= count <= len(run.steps):
        raise ValueError(f"count={count} must be from 2 to the run's {len(run.steps)} snapshots")
    chosen = spread(run.steps, count)
    return _onto(chosen, run.steps, _milestone_steps(run)) if milestones else chosen


def at_most(run: Run, count: int, *, steps: Sequence[int] = ()) -> NDArray[np.int64]:
    """The snapshots at `steps` if there are any; else `count` of them by `choose`, or all of a shorter run.

    Raises:
        ValueError: a step that is no snapshot, or fewer than two snapshots to choose from.
    """
    return choose(run, steps=steps) if steps else choose(run, count=min(count, len(run.steps)))


def spread(steps: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`count` increasing indices into steps (T,), evenly in u (see `choose`); needs 2 <= count <= T."""
    since = (steps - steps[0]).astype(np.float64)
    u = since / since[-1] + np.log1p(since) / np.log1p(since[-1])
    targets = np.linspace(0, 2, count)
    right = np.searchsorted(u, targets).clip(1, len(u) - 1)
    nearest = right - (targets - u[right - 1] < u[right] - targets)
    rank = np.arange(count)
    # Where targets share a snapshot, step to the next free one, then back from the end.
    upward = np.maximum.accumulate(nearest - rank) + rank
    return np.minimum(upward, len(u) - count + rank).astype(np.int64)


def _at(all_steps: NDArray[np.int64], steps: Sequence[int]) -> NDArray[np.int64]:
    wanted = np.unique(np.asarray(steps, dtype=np.int64))
    if not wanted.size:
        raise ValueError("steps is empty; give at least one step that has a snapshot")
    at = np.searchsorted(all_steps, wanted).clip(max=len(all_steps) - 1)
    missing = wanted[all_steps[at] != wanted]
    if missing.size:
        near = all_steps[np.argsort(abs(all_steps - missing[0]))[:2]]
        raise ValueError(
            f"steps={missing[0]} is no snapshot; the nearest are at {', '.join(map(str, sorted(near)))}"
        )
    return at.astype(np.int64)


def _milestone_steps(run: Run) -> list[int]:
    from ..runs.milestones import milestones

    found = milestones(run)
    return [crossing.step for crossing in (found.memorized, found.generalized) if crossing is not None]


def _onto(chosen: NDArray[np.int64], steps: NDArray[np.int64], marks: Sequence[int]) -> NDArray[np.int64]:
    """The chosen indices, the inner one nearest to each mark moved onto the snapshot nearest to it."""
    indices, free = list(chosen), list(chosen[1:-1])
    for mark in marks:
        target = np.argmin(abs(steps - mark))
        if target in indices or not free:
            free = [i for i in free if i != target]
            continue
        moved = min(free, key=lambda i: abs(steps[i] - steps[target]))
        free.remove(moved)
        indices[indices.index(moved)] = target
    return np.sort(np.asarray(indices, dtype=np.int64))
