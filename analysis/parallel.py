"""Many calls of one function, on the cores of this machine or on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..runs.cluster import connected, ordered
from ..runs.processes import parallel


def default_jobs() -> int:
    """Processes for calls that don't follow from one another: one per core, at most 4."""
    from joblib import cpu_count

    return min(4, int(cpu_count()))


def each(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], *, jobs: int) -> Iterator[Any]:
    """function(*call) of every call in order, `jobs` at a time with one thread each, or `on_cluster`.

    With one job everything stays in this process.

    Raises:
        ValueError: jobs is below 1.
        Exception: what the function raised first.
    """
    if jobs < 1:
        raise ValueError(f"jobs={jobs} must be at least 1; give the number of processes")
    yield from ordered(function, calls) if connected() else parallel(function, calls, jobs=jobs)
