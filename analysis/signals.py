"""Does a signal tell early which runs will generalize? One scoring for every signal, on one set of runs.

Runs that generalize are contrasted with runs that do not within a cell, a set of runs that differ in their
seeds only, at a train fraction where either happens. A signal is read at landmarks, multiples of the
memorization time, among runs that have not generalized yet, and what counts beside its own score is what
it adds to train loss, gradient norm and squared parameter norm. For runs with saved commutator curves:

    readings = [metric_readings(run) for run in runs]
    signals = {name: [reading[name] for reading in readings] for name in BASELINES}
    signals["defect"] = [Reading(curve.steps, curve.defect) for curve in curves]
    scores = score_signals([outcome(run) for run in runs], signals)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import nan
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..runs.milestones import milestones
from .ranking import (
    Interval,
    bootstrap,
    fit_pairs,
    holm,
    leave_pair_out,
    mixed_pairs,
    normal_scores,
    permuted,
    sequential_p,
    wins,
)

if TYPE_CHECKING:
    from ..runs.store import Run

Array = NDArray[np.float64]
BASELINES = ("train_loss", "gradient_norm", "squared_norm")
LANDMARKS = (1.0, 1.5, 2.0)
_SEEDS = ("seed", "init_seed", "split_seed", "batch_seed")
_NUMBERS = (
    *("auc", "auc_low", "auc_high", "p"),
    *("baseline_auc", "increment", "increment_low", "increment_high", "increment_p"),
)
_CELLS = 5  # below so many cells, runs are resampled within them instead


class Reading(NamedTuple):
    """A signal of one run: values (n,) at increasing steps (n,)."""

    steps: NDArray[np.int64]
    values: Array


@dataclass(frozen=True)
class Outcome:
    """What became of one run. `generalized` is None if it did not happen up to the budget."""

    cell: str
    memorized: int | None
    confirmed: int | None  # step at which memorization was known
    generalized: int | None
    budget: int

    def landmark(self, multiple: float) -> float:
        """`multiple` times the memorization time, but not before that was known; nan without one."""
        if self.memorized is None or self.confirmed is None:
            return nan
        return max(multiple * self.memorized, self.confirmed)

    def at_risk(self, step: float) -> bool:
        """Whether the run had memorized, but neither generalized nor ended at that step."""
        alive = self.generalized is None or self.generalized > step
        return bool(alive and self.budget > step)  # false for nan


@dataclass(frozen=True)
class SignalScores:
    """N signals at L landmarks: stratified AUC, and increment of AUC over the baseline signals.

    An AUC is the share of pairs (a run that generalizes, a run of the same cell that does not) in which
    the former has the larger value; below .5 the signal is low in runs that generalize. p values are for
    AUC .5 and for no increment, by permutation within cells, Holm-corrected over all N x L. `usable` are
    the runs with a value of the signal and of every baseline at the landmark. nan where no cell has both
    outcomes.
    """

    KIND: ClassVar[str] = "signals"
    REVISION: ClassVar[int] = 1

    names: tuple[str, ...]  # N
    landmarks: Array  # (L,)
    auc: Array  # (N, L)
    auc_low: Array  # (N, L) 95 % bootstrap over `resampled`
    auc_high: Array  # (N, L)
    p: Array  # (N, L)
    baseline_auc: Array  # (N, L) of the baselines together, leave-pair-out, on the usable runs
    increment: Array  # (N, L) leave-pair-out AUC with the signal minus that without
    increment_low: Array  # (N, L)
    increment_high: Array  # (N, L)
    increment_p: Array  # (N, L)
    usable: NDArray[np.int64]  # (N, L)
    generalizing: NDArray[np.int64]  # (N, L) of the usable ones
    cells: NDArray[np.int64]  # (N, L) with both outcomes
    resampled: str  # "cells", or "runs within cells" where there are fewer than five cells


def outcome(run: Run) -> Outcome:
    """The outcome of a run; its cell is its configuration without the seeds."""
    found = milestones(run)
    settings = {} if run.config is None else asdict(run.config)
    cell = json.dumps({k: v for k, v in settings.items() if k not in _SEEDS}, sort_keys=True)
    memorized = found.memorized
    return Outcome(
        cell=cell,
        memorized=None if memorized is None else memorized.step,
        confirmed=None if memorized is None else memorized.confirmed,
        generalized=None if found.generalized is None else found.generalized.step,
        budget=found.budget,
    )


def metric_readings(run: Run, names: Sequence[str] = BASELINES) -> dict[str, Reading]:
    """Logged metrics of a run as readings.

    Raises:
        ValueError: the run did not log one of them.
    """
    missing = [name for name in names if name not in run.metrics]
    if missing:
        raise ValueError(f"{missing[0]!r} is no metric of {run.path}; there are: {', '.join(run.metrics)}")
    return {n: Reading(run.metrics[n].step, np.asarray(run.metrics[n].value, dtype=float)) for n in names}


def score_signals(
    outcomes: Sequence[Outcome],
    signals: Mapping[str, Sequence[Reading]],
    *,
    baselines: Sequence[str] = BASELINES,
    landmarks: Sequence[float] = LANDMARKS,
    draws: int = 999,
    seed: int = 0,
) -> SignalScores:
    """Score every signal, one `Reading` per run each, against `outcomes` (one per run).

    At a landmark the value is the last one at or before it, so that nothing later can matter. `signals`
    must hold the baselines. Signals enter as normal scores of their ranks within the cell, so that their
    scale does not matter; a logistic model with a ridge penalty joins them, and its AUC is that of pairs
    left out of its fit (Airola et al. 2011). The increment's p is that of the likelihood, with the part of
    the signal that the baselines don't explain permuted within cells.

    Raises:
        ValueError: a baseline is missing, or a signal does not have one reading per run.
    """
    missing = [name for name in baselines if name not in signals]
    if missing:
        raise ValueError(f"signals lacks the baseline {missing[0]!r}; give it, or name other baselines")
    for name, readings in signals.items():
        if len(readings) != len(outcomes):
            raise ValueError(f"signals[{name!r}] has {len(readings)} readings for {len(outcomes)} runs")
    rng = np.random.default_rng(seed)
    cells = np.unique([one.cell for one in outcomes], return_inverse=True)[1]
    by_cell = int(cells.max(initial=-1)) + 1 >= _CELLS
    rows = []
    for multiple in landmarks:
        steps = np.array([one.landmark(multiple) for one in outcomes])
        risk = np.array([one.at_risk(step) for one, step in zip(outcomes, steps, strict=True)], dtype=bool)
        positive = np.array([one.generalized is not None for one in outcomes])
        values = {name: values_at(readings, steps) for name, readings in signals.items()}
        for name in signals:
            base = np.array([values[b] for b in baselines if b != name]).reshape(-1, len(outcomes)).T
            usable = risk & np.isfinite(values[name]) & np.isfinite(base).all(axis=1)
            case = _Case(
                values[name][usable],
                base[usable],
                positive[usable],
                cells[usable],
                by_cell=by_cell,
                draws=draws,
                rng=rng,
            )
            rows.append(case.score())
    table = {key: np.array([row[key] for row in rows]) for key in rows[0]} if rows else {}
    shape = (len(landmarks), len(signals))
    columns = {key: column.reshape(shape).T for key, column in table.items()}
    columns |= {key: holm(columns[key]) for key in ("p", "increment_p")}
    return SignalScores(
        names=tuple(signals),
        landmarks=np.array(landmarks),
        resampled="cells" if by_cell else "runs within cells",
        **columns,
    )


def values_at(readings: Sequence[Reading], steps: Array) -> Array:
    """Last value of each run's reading at or before its step (R,); nan if there is none."""
    found = []
    for reading, step in zip(readings, steps, strict=True):
        at = int(np.searchsorted(reading.steps, step, side="right")) - 1 if np.isfinite(step) else -1
        found.append(float(reading.values[at]) if at >= 0 else nan)
    return np.array(found)


class _Case:
    """One signal at one landmark: values (n,), baselines (n, B), outcomes (n,) and cells (n,)."""

    def __init__(
        self,
        values: Array,
        base: Array,
        positive: NDArray[np.bool_],
        cells: NDArray[np.int64],
        *,
        by_cell: bool,
        draws: int,
        rng: np.random.Generator,
    ) -> None:
        self.values, self.positive, self.cells = values, positive, cells
        self.by_cell, self.draws, self.rng = by_cell, draws, rng
        self.pairs = mixed_pairs(positive, cells)
        self.signal = normal_scores(values, cells)
        self.base = np.array([normal_scores(column, cells) for column in base.T]).reshape(-1, len(values)).T

    def score(self) -> dict[str, float]:
        """All numbers of this case."""
        counts = {
            "usable": len(self.values),
            "generalizing": int(self.positive.sum()),
            "cells": len(np.unique(self.cells[self.pairs[:, 0]])),
        }
        if not len(self.pairs):
            return dict.fromkeys(_NUMBERS, nan) | counts
        own = self._bootstrap(wins(self.values, self.pairs))
        without = leave_pair_out(self.base, self.pairs)
        gain = self._bootstrap(leave_pair_out(self._joint(self.signal), self.pairs) - without)
        numbers = (*own, self._auc_p(own.mean), float(without.mean()), *gain, self._increment_p())
        return dict(zip(_NUMBERS, numbers, strict=True)) | counts

    def _bootstrap(self, per_pair: Array) -> Interval:
        return bootstrap(
            per_pair, self.pairs, self.cells, by_cell=self.by_cell, draws=self.draws, rng=self.rng
        )

    def _auc_p(self, auc: float) -> float:
        """Two-sided: how often values shuffled within cells order the pairs as one-sidedly."""

        def as_far() -> bool:
            null = wins(permuted(self.values, self.cells, self.rng), self.pairs).mean()
            return bool(abs(null - 0.5) >= abs(auc - 0.5) - 1e-12)

        return sequential_p(as_far, draws=self.draws)

    def _increment_p(self) -> float:
        """How often a shuffled remainder of the signal improves the fit as much."""
        slopes = np.linalg.lstsq(self.base, self.signal, rcond=None)[0]
        explained = self.base @ slopes
        rest = self.signal - explained
        loss = fit_pairs(self._joint(rest), self.pairs).loss

        def as_good() -> bool:
            null = fit_pairs(self._joint(permuted(rest, self.cells, self.rng)), self.pairs).loss
            return null <= loss + 1e-12

        return sequential_p(as_good, draws=self.draws)

    def _joint(self, signal: Array) -> Array:
        return np.column_stack([self.base, signal])
