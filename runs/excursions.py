"""Snapshots that do not belong where they are: far from both neighbors, which are near each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..geometry.parameters import ParameterTable

FACTOR = 4.0
"""A straight path has ratio 1, a random walk √2, independent points around a mean 2."""
_ENOUGH = 1000  # coordinates: in few dimensions a walk comes back by chance


class Excursion(NamedTuple):
    """A snapshot at `step` whose `tensor` (`all` for theta) goes away and comes back by `ratio`."""

    step: int
    tensor: str
    ratio: float


class Excursions:
    """Watches a trajectory pass, holding two snapshots.

    For three snapshots in a row the ratio is (‖θ_i − θ_{i−1}‖ + ‖θ_{i+1} − θ_i‖) / ‖θ_{i+1} − θ_{i−1}‖,
    for theta and for each tensor of a thousand entries or more. At least FACTOR is an excursion: a
    checkpoint, or a shard of it, from another time or another run. First and last can't be judged.
    """

    def __init__(self, table: ParameterTable) -> None:
        spans = zip(table.names, table.starts, table.sizes, strict=True)
        self._spans = {name: slice(start, start + size) for name, start, size in spans}
        self._rows: list[tuple[int, NDArray[Any]]] = []
        self._lengths: NDArray[np.float64] | None = None  # of the step before, squared, per tensor
        self._moved = np.zeros(len(self._spans), bool)
        self._count = 0
        self._excursions: list[Excursion] = []

    @property
    def latest(self) -> NDArray[Any] | None:
        """The snapshot added last."""
        return self._rows[-1][1] if self._rows else None

    def add(self, step: int, theta: NDArray[Any]) -> None:
        """Watch the next snapshot, which must not be changed afterwards."""
        self._count += 1
        if self._rows:
            lengths = self._squares(self._rows[-1][1], theta)
            self._moved |= lengths > 0
            if self._lengths is not None:
                self._judge(
                    self._rows[-1][0], self._lengths, lengths, self._squares(self._rows[-2][1], theta)
                )
            self._lengths = lengths
        self._rows = [*self._rows[-1:], (step, theta)]

    def found(self) -> tuple[Excursion, ...]:
        """The excursions so far; of a snapshot as a whole, else of its tensors."""
        return tuple(self._excursions)

    def constant(self) -> tuple[str, ...]:
        """Names of tensors that never moved; none before the second snapshot."""
        return tuple(n for n, m in zip(self._spans, self._moved, strict=True) if not m and self._count > 1)

    def _judge(self, step: int, before: Any, after: Any, across: Any) -> None:
        total = _ratio(before.sum(), after.sum(), across.sum())
        if total >= FACTOR and sum(s.stop - s.start for s in self._spans.values()) >= _ENOUGH:
            self._excursions.append(Excursion(step, "all", total))
            return
        for k, (name, span) in enumerate(self._spans.items()):
            ratio = _ratio(before[k], after[k], across[k])
            if span.stop - span.start >= _ENOUGH and ratio >= FACTOR:
                self._excursions.append(Excursion(step, name, ratio))

    def _squares(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
        found = np.empty(len(self._spans))
        for k, span in enumerate(self._spans.values()):
            difference = b[span] - a[span]
            found[k] = difference @ difference
        return found


def _ratio(before: float, after: float, across: float) -> float:
    away = float(np.sqrt(before) + np.sqrt(after))
    if away == 0:
        return 0.0
    return away / float(np.sqrt(across)) if across > 0 else float("inf")
