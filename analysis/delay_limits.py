"""What limits every delay prediction: how much of ln T a state decides, and how much of that one can see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..runs.calibration import WINDOW, Record
from .delay_fit import FULL
from .delay_score import pooled_deviation, scored

FloatArray = NDArray[np.float64]
FOLDS = 12
RIDGE = 30.0


@dataclass(frozen=True)
class Spread:
    """How far ln T of n runs scatters within groups that share all but what `differs`, and what that leaves.

    deviation is the pooled standard deviation over the groups; mean_log_error = deviation · sqrt(2/π) is
    the mean |ln| error of who knows everything that is shared.
    """

    differs: str
    groups: int
    n: int
    deviation: float
    mean_log_error: float


@dataclass(frozen=True)
class Explained:
    """How much of ln T within cells some knowledge explains, over n runs.

    share = 1 − Σ(y − ŷ)²/Σy², y being ln T minus its cell's mean and ŷ a ridge regression on knowledge
    that is centered in the same way, by slopes from other cells; 0 is as good as the cell's mean.
    """

    knowledge: str
    n: int
    share: float
    mean_log_error: float


def spread(differs: str, delays: Mapping[str, Sequence[int | None]]) -> Spread:
    """The spread within the groups of `delays`; None, a run that was cut off, is left out."""
    logs = [[float(np.log(d)) for d in group if d is not None] for group in delays.values()]
    deviation = pooled_deviation(logs)
    usable = [group for group in logs if len(group) > 1]
    return Spread(
        differs, len(usable), sum(map(len, usable)), deviation, deviation * float(np.sqrt(2 / np.pi))
    )


def explained(records: Sequence[Record]) -> tuple[Explained, ...]:
    """What is known at the information time and WINDOW steps later explains, beside what is hidden.

    All rows are of the runs that generalize after the later of the two times.
    """
    kept = [r for r in scored(records) if (r.delay or 0) > _waited(r)]
    target = np.log([float(r.delay or np.nan) for r in kept])
    known, later = _features(kept), _features([_delayed(r) for r in kept])
    hidden = np.array([[np.log(r.hidden["test_loss"]), r.hidden["test_accuracy"]] for r in kept])
    rows = {
        "evidence of the model": known,
        f"the same evidence {WINDOW} steps later": later,
        "test loss and accuracy (a leak)": hidden,
        "evidence and leak": np.hstack([known, hidden]),
    }
    cells = np.array([r.cell for r in kept])
    return tuple(_explained(name, values, target, cells) for name, values in rows.items())


def centered(values: FloatArray, groups: NDArray[np.int64]) -> FloatArray:
    """Values (n, ...) minus the mean of their group."""
    result = np.array(values, dtype=np.float64)
    for group in np.unique(groups):
        result[groups == group] -= result[groups == group].mean(0)
    return result


def _explained(name: str, values: FloatArray, target: FloatArray, cells: NDArray[np.int64]) -> Explained:
    x, y = centered(values, cells), centered(target, cells)
    x = x / np.where(x.std(0) > 1e-9, x.std(0), np.inf)  # what is the same within cells says nothing
    fitted, unique = np.zeros_like(y), np.unique(cells)
    for k in range(FOLDS):
        unseen = np.isin(cells, unique[k::FOLDS])
        seen = x[~unseen]
        slopes = np.linalg.solve(seen.T @ seen + RIDGE * np.eye(x.shape[1]), seen.T @ y[~unseen])
        fitted[unseen] = x[unseen] @ slopes
    rest = y - fitted
    return Explained(name, len(y), float(1 - (rest @ rest) / (y @ y)), float(np.abs(rest).mean()))


def _features(records: Sequence[Record]) -> FloatArray:
    rows = [known.features() for known in (record.evidence for record in records) if known is not None]
    found: FloatArray = np.nan_to_num([[row[name] for name in FULL.features] for row in rows])
    return found


def _waited(record: Record) -> int:
    memorized = record.milestones.memorized
    return 0 if memorized is None else memorized.confirmed + WINDOW - memorized.step


def _delayed(record: Record) -> Record:
    """The record as if memorization had been confirmed WINDOW steps later."""
    memorized = record.milestones.memorized
    if memorized is None:
        return record
    later = memorized._replace(confirmed=memorized.confirmed + WINDOW)
    return replace(record, milestones=replace(record.milestones, memorized=later))
