"""Snapshots that do not belong where they are: far from both neighbors, which are near each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..geometry.parameters import ParameterTable

FACTOR = 4.0
"""A straight path has ratio 1, a random walk √2, independent points around a mean 2."""
_ENOUGH = 1000  # coordinates: in few dimensions a walk comes back by chance
_STRETCHES, _STRETCH = 128, 1024


class Excursion(NamedTuple):
    """A snapshot at `step` whose `tensor` (`all` for theta) goes away and comes back by `ratio`."""

    step: int
    tensor: str
    ratio: float


class Excursions:
    """Watches a trajectory pass, holding the last snapshot and samples of two.

    For three snapshots in a row the ratio is (‖θ_i − θ_{i−1}‖ + ‖θ_{i+1} − θ_i‖) / ‖θ_{i+1} − θ_{i−1}‖,
    for theta and for each tensor of a thousand entries or more, of which 131,072 are looked at. At least
    FACTOR is an excursion: a checkpoint, or a shard of it, from another time or another run. First and
    last can't be judged.
    """

    def __init__(self, table: ParameterTable) -> None:
        spans = zip(table.names, table.starts, table.sizes, strict=True)
        self._spans = {name: slice(start, start + size) for name, start, size in spans}
        self.latest: NDArray[Any] | None = None  # the snapshot added last
        self._samples: list[NDArray[Any]] = []  # of up to three snapshots; older ones are written over
        self.count, self._step = 0, 0
        self._lengths: NDArray[np.float64] | None = None  # of the step before, squared, per tensor
        self._moved = np.zeros(len(self._spans), bool)
        self._excursions: list[Excursion] = []
        self._sizes = np.array(table.sizes)
        whole = self._sizes // _STRETCHES <= _STRETCH
        seen = np.where(whole, self._sizes, _STRETCHES * _STRETCH)
        self._ends = seen.cumsum()
        self._starts = self._ends - seen
        self._scale = self._sizes / np.maximum(seen, 1)  # from a sample to its tensor
        self._scratch = np.empty(0)

    def add(self, step: int, theta: NDArray[Any]) -> None:
        """Watch the next snapshot, which must stay as it is until the one after it was added."""
        samples = self._sampled(theta)
        if self.latest is not None:
            lengths = self._squares(self._samples[-1], samples)
            self._moved |= (lengths > 0) | self._hidden_moves(self.latest, theta, lengths)
            if self._lengths is not None:
                across = self._squares(self._samples[-2], samples)
                self._judge(self._step, self._lengths, lengths, across)
            self._lengths = lengths
        self._samples = [*self._samples[-2:], samples]
        self.count, self._step, self.latest = self.count + 1, step, theta

    def found(self) -> tuple[Excursion, ...]:
        """The excursions so far; of a snapshot as a whole, else of its tensors."""
        return tuple(self._excursions)

    def constant(self) -> tuple[str, ...]:
        """Names of tensors that never moved; none before the second snapshot."""
        still = () if self._lengths is None else zip(self._spans, self._moved, strict=True)
        return tuple(name for name, moved in still if not moved)

    def _judge(self, step: int, before: Any, after: Any, across: Any) -> None:
        total = _ratio(*(float(squares @ self._scale) for squares in (before, after, across)))
        if total >= FACTOR and self._sizes.sum() >= _ENOUGH:
            self._excursions.append(Excursion(step, "all", total))
            return
        for k, name in enumerate(self._spans):
            ratio = _ratio(before[k], after[k], across[k])
            if self._sizes[k] >= _ENOUGH and ratio >= FACTOR:
                self._excursions.append(Excursion(step, name, ratio))

    def _sampled(self, theta: NDArray[Any]) -> NDArray[Any]:
        """The samples of all tensors, in memory that was used before where there is any: fresh costs more."""
        if not self._scratch.size:
            self._scratch = np.empty(self._ends[-1], theta.dtype)
        out = self._samples.pop(0) if len(self._samples) == 3 else np.empty_like(self._scratch)
        for start, end, span in zip(self._starts, self._ends, self._spans.values(), strict=True):
            found = _sample(theta[span])
            out[start:end].reshape(found.shape)[...] = found
        return out

    def _hidden_moves(self, a: NDArray[Any], b: NDArray[Any], lengths: Any) -> NDArray[np.bool_]:
        """Whether tensors whose samples never moved moved elsewhere."""
        still = ~self._moved & (lengths == 0)
        spans = enumerate(self._spans.values())
        return np.array([bool(still[k]) and not np.array_equal(a[s], b[s]) for k, s in spans], bool)

    def _squares(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
        np.subtract(a, b, out=self._scratch)
        parts = (self._scratch[start:end] for start, end in zip(self._starts, self._ends, strict=True))
        return np.array([float(part @ part) for part in parts])


def _sample(tensor: NDArray[Any]) -> NDArray[Any]:
    """A view of up to 131,072 entries, (n,) or (stretches, n), from all over the tensor."""
    period = len(tensor) // _STRETCHES
    if period <= _STRETCH:
        return tensor
    return tensor[: period * _STRETCHES].reshape(_STRETCHES, period)[:, :_STRETCH]


def _ratio(before: float, after: float, across: float) -> float:
    away = float(np.sqrt(before) + np.sqrt(after))
    if away == 0:
        return 0.0
    return away / float(np.sqrt(across)) if across > 0 else float("inf")
