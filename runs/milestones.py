"""When a run memorized and when it generalized: intervals from counts, sustained for a number of steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple, Protocol

THRESHOLD = 0.99
SUSTAIN = 100
"""Steps for which accuracy must stay at or above the threshold; two entries of the default evaluation."""


class Crossing(NamedTuple):
    """Where an accuracy reached its threshold: after `below` and not later than `step`.

    `below` is the last evaluated step below the threshold (None if the first evaluation was above),
    `step` the first one at or above it, `confirmed` the evaluation at which that had lasted long enough:
    nobody could know of the crossing earlier.
    """

    below: int | None
    step: int
    confirmed: int


@dataclass(frozen=True)
class Milestones:
    """Memorization (train accuracy) and generalization (test accuracy) of a run, None where not reached.

    `memorized` and `generalized` are sustained crossings, so spikes do not fool them; the `first_` ones
    are the first evaluations at or above the threshold, so spikes are not hidden either. `budget` is the
    last evaluated step: a milestone that is None came later than that, or never.
    """

    memorized: Crossing | None
    generalized: Crossing | None
    first_memorized: Crossing | None
    first_generalized: Crossing | None
    budget: int

    @property
    def delay(self) -> int | None:
        """generalized.step - memorized.step in optimizer steps; None unless both happened."""
        if self.memorized is None or self.generalized is None:
            return None
        return self.generalized.step - self.memorized.step

    def last_step(self, stop_after_generalization: int | None) -> int | None:
        """The step at which a trainer may stop, so many steps after a confirmed generalization."""
        if stop_after_generalization is None or self.generalized is None:
            return None
        return max(self.generalized.confirmed, self.generalized.step + stop_after_generalization)


class CrossingMonitor:
    """The crossing of one accuracy, from counts that arrive one by one; what it found never changes.

    A crossing at step s is sustained when every evaluation from s to the first one at or after
    s + sustain is at or above the threshold: `sustain` counts optimizer steps, not evaluations.
    """

    def __init__(self, total: int, *, threshold: float = THRESHOLD, sustain: int = SUSTAIN) -> None:
        if total < 1:
            raise ValueError(
                f"total={total} must be at least 1; it is the number of samples that can be correct"
            )
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold={threshold} must be in (0, 1]")
        if sustain < 0:
            raise ValueError(f"sustain={sustain} must be at least 0 steps")
        self.total, self.sustain = total, sustain
        self.needed = ceil(Fraction(str(threshold)) * total)  # exact: 0.07 * 100 > 7 in floats
        self.found: Crossing | None = None
        self.last: int | None = None
        self._below: int | None = None
        self._since: int | None = None

    def update(self, step: int, correct: int) -> Crossing | None:
        """The sustained crossing known after `correct` of `total` samples were right at `step`.

        Raises:
            ValueError: steps do not increase, or correct is not a count of up to `total`.
        """
        if self.last is not None and step <= self.last:
            raise ValueError(f"step={step} does not come after step {self.last}; evaluations go forward")
        if not 0 <= correct <= self.total:
            raise ValueError(f"correct={correct} must be between 0 and the total of {self.total}")
        self.last = step
        if correct < self.needed:
            self._below, self._since = step, None
        elif self._since is None:
            self._since = step
        if self.found is None and self._since is not None and step >= self._since + self.sustain:
            self.found = Crossing(self._below, self._since, step)
        return self.found


class MilestoneMonitor:
    """Milestones online: feed every evaluation, read what is known so far."""

    def __init__(
        self, train_total: int, test_total: int, *, threshold: float = THRESHOLD, sustain: int = SUSTAIN
    ) -> None:
        self._train = _pair(train_total, threshold, sustain)
        self._test = _pair(test_total, threshold, sustain)
        self._last = 0

    def update(self, step: int, train_correct: int, test_correct: int) -> Milestones:
        """What is known after this evaluation; feeding a prefix of a run gives the prefix's answer."""
        for monitor in self._train:
            monitor.update(step, train_correct)
        for monitor in self._test:
            monitor.update(step, test_correct)
        self._last = step
        return self.current

    @property
    def current(self) -> Milestones:
        """The milestones known so far."""
        memorized, first_memorized = (monitor.found for monitor in self._train)
        generalized, first_generalized = (monitor.found for monitor in self._test)
        return Milestones(memorized, generalized, first_memorized, first_generalized, self._last)


def crossing(
    steps: Iterable[int],
    counts: Iterable[int],
    total: int,
    *,
    threshold: float = THRESHOLD,
    sustain: int = SUSTAIN,
) -> Crossing | None:
    """The first sustained crossing of `counts / total >= threshold`; see `CrossingMonitor`.

    steps (n,) increasing optimizer steps, counts (n,) correct samples of `total` at each; the comparison
    is between integers. With `sustain=0` it is the first evaluation at or above the threshold.

    Raises:
        ValueError: steps do not increase, a count exceeds total, or the lengths differ.
    """
    monitor = CrossingMonitor(total, threshold=threshold, sustain=sustain)
    for step, count in zip(steps, counts, strict=True):
        monitor.update(int(step), int(count))
    return monitor.found


class Record(Protocol):
    """What `milestones` needs of a run: its metrics and its provenance."""

    @property
    def metrics(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def provenance(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def steps(self) -> Any: ...  # noqa: D102


def milestones(
    run: Record, *, threshold: float = THRESHOLD, sustain: int = SUSTAIN, until: int | None = None
) -> Milestones:
    """Milestones of a run from its metrics `train_correct` and `test_correct`, up to step `until`.

    A run that does not log these counts has no milestones; its budget is its last snapshot.

    Raises:
        ValueError: counts are logged, but the run does not say of how many samples.
    """
    found: list[Crossing | None] = []
    budget = 0
    for split in ("train", "test"):
        steps, counts = _counts(run, split, until)
        budget = max(budget, *steps[-1:], 0)
        for lasting in (sustain, 0):
            total = _total(run, split) if steps else 1
            found.append(crossing(steps, counts, total, threshold=threshold, sustain=lasting))
    if budget == 0 and len(run.steps):
        budget = min(int(run.steps[-1]), until if until is not None else int(run.steps[-1]))
    return Milestones(found[0], found[2], found[1], found[3], budget)


def _pair(total: int, threshold: float, sustain: int) -> tuple[CrossingMonitor, CrossingMonitor]:
    sustained, first = (CrossingMonitor(total, threshold=threshold, sustain=s) for s in (sustain, 0))
    return sustained, first


def _counts(run: Record, split: str, until: int | None) -> tuple[list[int], list[int]]:
    series = run.metrics.get(f"{split}_correct")
    if series is None:
        return [], []
    kept = [
        (int(step), int(count))
        for step, count in zip(series.step, series.value, strict=True)
        if until is None or step <= until
    ]
    return [step for step, _ in kept], [count for _, count in kept]


def _total(run: Record, split: str) -> int:
    total = run.provenance.get(f"{split}_total")
    if total is None:
        raise ValueError(
            f"{split}_total is not recorded in this run, so counts have no denominator; put it in provenance"
        )
    return int(total)
