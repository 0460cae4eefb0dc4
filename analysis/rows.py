"""Rows: what one question finds at one snapshot, and the way from rows to arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..runs.cluster import connected
from .parallel import each

if TYPE_CHECKING:
    from ..runs.store import Run

Row = Mapping[str, Any]
Arrays = dict[str, NDArray[Any]]
Measure = Callable[[int, NDArray[Any], Arrays | None], Row]
"""(index of the snapshot, theta (P,), the row before or None) -> row."""
Progress = Callable[..., Iterable[Any]]
"""progress(iterable, description=..., total=...): the iterable, perhaps with a bar."""


def identity(iterable: Iterable[Any], *, description: str = "", total: int | None = None) -> Iterable[Any]:
    """The progress wrapper that shows nothing."""
    return iterable


def measured(
    run: Run, indices: Sequence[int], measure: Measure, *, before: Arrays | None, jobs: int
) -> Iterator[Arrays]:
    """One row per snapshot in order; in `jobs` > 1 processes, or on a cluster, none knows the one before."""
    if connected():  # workers read the snapshots themselves
        yield from each(_there, ((measure, run, i) for i in indices), jobs=jobs)
        return
    if jobs > 1:
        yield from each(_alone, ((measure, i, run.theta(i)) for i in indices), jobs=jobs)
        return
    for i in indices:
        before = _arrays(measure(i, run.theta(i), before))
        yield before


def kept(row: Arrays) -> Arrays:
    """The row without the entries that are only handed on to the next snapshot."""
    return {name: value for name, value in row.items() if not name.startswith("_")}


def stacked(rows: Sequence[Arrays]) -> Arrays:
    """Arrays (S, ...) by name from S rows, the handed-on entries left out.

    Raises:
        ValueError: the rows differ in their names, or a value in its shape.
    """
    columns = {}
    for name in kept(rows[0]):
        shapes = {row[name].shape if name in row else None for row in rows}
        if len(shapes) > 1:
            raise ValueError(
                f"{name}: shapes {shapes} differ between snapshots; a measure must return equal shapes"
            )
        columns[name] = np.stack([row[name] for row in rows])
    return columns


def _alone(measure: Measure, index: int, theta: NDArray[Any]) -> Arrays:
    return kept(_arrays(measure(index, theta, None)))


def _there(measure: Measure, run: Run, index: int) -> Arrays:
    return _alone(measure, index, run.theta(index))


def _arrays(row: Row) -> Arrays:
    return {name: np.asarray(value) for name, value in row.items()}
