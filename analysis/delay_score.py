"""How good delay predictions are: errors, comparisons by cell, coverage, calls, and what noise leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from numpy.typing import NDArray

from ..runs.calibration import Record
from .delay_fit import COVERAGE, known_delay

FloatArray = NDArray[np.float64]
Predictions = Mapping[str, FloatArray]
RESAMPLES = 10_000


@dataclass(frozen=True)
class Score:
    """Errors of one predictor over n scored records; log error is |ln(T̂/T)|.

    `undefined` of the n had no prediction and count as the shortest delay then possible. low and high
    bound mean_log_error with 95 % confidence (bootstrap over cells). bias is the mean of ln(T̂/T), c_index
    the share of pairs of records that are ordered rightly. p is that of the hypothesis that the reference
    is no better, by sign flips over cells, Holm-corrected over the table; nan for the reference itself.
    """

    predictor: str
    n: int
    undefined: int
    mean_log_error: float
    low: float
    high: float
    median_log_error: float
    mape: float
    median_ape: float
    bias: float
    c_index: float
    p: float = nan


@dataclass(frozen=True)
class Calls:
    """Classification `will it generalize within the budget`: n questions, AUC and Brier score of each."""

    predictor: str
    n: int
    auc: float
    brier: float


@dataclass(frozen=True)
class Coverage:
    """How many of n records, and of the cells' first records, lay inside their interval."""

    nominal: float
    n: int
    covered: float
    cells: int
    covered_cells: float
    median_width: float


def scored(records: Sequence[Record]) -> list[Record]:
    """Records whose generalization came after their information time: those that can be scored."""
    return [record for record in records if record.at_risk and record.delay is not None]


def score(records: Sequence[Record], predictions: Predictions, *, reference: str) -> tuple[Score, ...]:
    """One row per predictor over the scored records, `reference` against every other by cell."""
    test = scored(records)
    kept = np.isfinite(predictions[reference])
    cells = np.array([record.cell for record in test])[kept]
    delays = np.array([float(record.delay or nan) for record in test])[kept]
    floor = np.array([known_delay(record) for record in test])[kept]
    logs = {}
    for name, values in predictions.items():
        values = values[kept]
        logs[name] = np.log(np.where(np.isfinite(values), values, floor) / delays)
    others = [name for name in predictions if name != reference]
    tests = [sign_flip(np.abs(logs[name]) - np.abs(logs[reference]), cells) for name in others]
    corrected = dict(zip(others, holm(tests), strict=True))
    return tuple(
        _row(name, errors, cells, delays, predictions[name][kept], corrected.get(name, nan))
        for name, errors in logs.items()
    )


def sign_flip(differences: FloatArray, cells: NDArray[np.int64], *, resamples: int = RESAMPLES) -> float:
    """One-sided p of mean difference > 0 under random signs of the cells' means, seed 0."""
    means = np.array([differences[cells == cell].mean() for cell in np.unique(cells)])
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (resamples, len(means)))
    return float((1 + ((signs * means).mean(1) >= means.mean() - 1e-12).sum()) / (resamples + 1))


def holm(values: Sequence[float]) -> list[float]:
    """Holm's correction of p values over their family, in the given order."""
    order = np.argsort(values)
    found, largest = [nan] * len(values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[i]))
        found[i] = largest
    return found


def concordance(delays: FloatArray, predicted: FloatArray) -> float:
    """Harrell's C-index of n predictions for n uncensored delays: 1 orders all pairs, 0.5 is chance."""
    sooner = delays[:, None] < delays
    agree = (predicted[:, None] < predicted) + 0.5 * (predicted[:, None] == predicted)
    return float(agree[sooner].mean()) if sooner.any() else nan


def calls(name: str, chances: FloatArray, truth: NDArray[np.bool_]) -> Calls:
    """AUC and Brier score of probabilities (n,) for answers (n,)."""
    from sklearn.metrics import brier_score_loss, roc_auc_score

    auc, brier = roc_auc_score(truth, chances), brier_score_loss(truth, chances)
    return Calls(name, len(truth), float(auc), float(brier))


def lies_inside(records: Sequence[Record], log_delays: FloatArray, width: float) -> NDArray[np.bool_]:
    """Whether each delay lies in its interval; a censored one does unless its budget is already beyond."""
    found = []
    for record, value in zip(records, log_delays, strict=True):
        actual = np.log(record.delay if record.delay is not None else record.bounds[0])
        found.append(abs(actual - value) <= width or (record.delay is None and actual < value))
    return np.array(found)


def coverage_of(records: Sequence[Record], inside: NDArray[np.bool_], widths: FloatArray) -> Coverage:
    """The coverage over records and over the first record of each cell."""
    cells = [record.cell for record in records]
    first = [cells.index(cell) for cell in dict.fromkeys(cells)]
    width = float(np.median(widths))
    return Coverage(
        COVERAGE, len(records), float(inside.mean()), len(first), float(inside[first].mean()), width
    )


def pooled_deviation(groups: Sequence[Sequence[float]]) -> float:
    """sqrt(Σ_g Σ_i (x_gi − mean_g)² / Σ_g (n_g − 1)): the standard deviation within groups.

    Raises:
        ValueError: no group has two values.
    """
    usable = [group for group in groups if len(group) > 1]
    if not usable:
        raise ValueError("groups: none has two values; their spread is unknown")
    freedom = sum(len(group) - 1 for group in usable)
    return sqrt(sum((len(group) - 1) * float(np.var(group, ddof=1)) for group in usable) / freedom)


def _row(
    name: str,
    errors: FloatArray,
    cells: NDArray[np.int64],
    delays: FloatArray,
    predicted: FloatArray,
    p: float,
) -> Score:
    sizes, relative = np.abs(errors), np.abs(np.expm1(errors))
    low, high = _bootstrap(sizes, cells)
    return Score(
        predictor=name,
        n=len(errors),
        undefined=int((~np.isfinite(predicted)).sum()),
        mean_log_error=float(sizes.mean()),
        low=low,
        high=high,
        median_log_error=float(np.median(sizes)),
        mape=float(relative.mean()),
        median_ape=float(np.median(relative)),
        bias=float(errors.mean()),
        c_index=concordance(delays, delays * np.exp(errors)),
        p=p,
    )


def _bootstrap(values: FloatArray, cells: NDArray[np.int64]) -> tuple[float, float]:
    """95 % percentile interval of the mean over resampled cells, seed 0."""
    sums = np.array([[values[cells == c].sum(), (cells == c).sum()] for c in np.unique(cells)])
    chosen = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    totals = sums[chosen].sum(1)
    low, high = np.percentile(totals[:, 0] / totals[:, 1], [2.5, 97.5])
    return float(low), float(high)
