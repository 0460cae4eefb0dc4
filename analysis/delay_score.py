"""How well delays are predicted: by predictor, on held-out cells, seeds and tasks, and in the lockbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from ..runs.calibration import Record
from ..runs.predictors import SUCCESSOR, InverseDecay, LocalRateLaw, LogRatio, cell_means, published
from .delay_fit import (
    COVERAGE,
    FEATURES,
    FOLDS,
    budget_questions,
    cross_validated,
    design,
    fit_formula,
    fit_probability,
    known_delay,
    margin,
)

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


def scored(records: Sequence[Record]) -> list[Record]:
    """Records whose generalization came after their information time: those that can be scored."""
    return [record for record in records if record.at_risk and record.delay is not None]


def fitted_predictions(fit: Sequence[Record], test: Sequence[Record]) -> dict[str, FloatArray]:
    """T̂ of every predictor for the records `test`, all fitted to the records `fit`."""
    at_risk = [record for record in fit if record.at_risk]
    known = [record.evidence for record in test]
    law: dict[str, InverseDecay | LogRatio | LocalRateLaw] = {
        "a/(lr wd)": InverseDecay.fit(at_risk),
        "a/(lr wd), task": InverseDecay.fit(at_risk, with_task=True),
        "log ratio": LogRatio.fit(at_risk),
        "log ratio, successor": SUCCESSOR,
        "local rate": LocalRateLaw.fit(at_risk),
    }
    found = {
        name: np.array([nan if e is None else rule.predict(e) for e in known]) for name, rule in law.items()
    }
    leaky = [
        nan if e is None else published(e, float(r.norm[1][-1])) for e, r in zip(known, test, strict=True)
    ]
    model = np.exp(fit_formula(at_risk).log_delay(test))
    return {"model": model} | found | {"published (leaky)": np.array(leaky)}


def held_out_cells(records: Sequence[Record], *, folds: int = FOLDS) -> dict[str, FloatArray]:
    """T̂ of every predictor for each scored record, from records of other cells only."""
    from sklearn.model_selection import GroupKFold

    test = scored(records)
    cells = np.array([record.cell for record in test])
    total: dict[str, FloatArray] = {}
    for _, unseen in GroupKFold(folds).split(cells, groups=cells):
        gone = set(cells[unseen])
        seen = [record for record in records if record.cell not in gone]
        for name, values in fitted_predictions(seen, [test[i] for i in unseen]).items():
            total.setdefault(name, np.full(len(test), nan))[unseen] = values
    return total


def held_out_tasks(records: Sequence[Record]) -> dict[str, FloatArray]:
    """T̂ for each scored record of a task other than addition, from records of addition only."""
    fit = [record for record in records if record.fields["task"] == "add"]
    return fitted_predictions(fit, scored([r for r in records if r.fields["task"] != "add"]))


def held_out_seeds(records: Sequence[Record], *, ridge: float = 1.0) -> dict[str, FloatArray]:
    """T̂ for each scored record when the other seeds of its cell are known.

    `cell mean` is their mean delay. `cell mean and evidence` is the mean of their ln T plus
    Σ_j b_j (x_j − mean x_j over them): within-cell differences of the features, with slopes b by ridge
    regression on all other records, the record's own left out.
    """
    test = scored(records)
    groups = np.array([record.cell for record in test])
    several = np.array([(groups == cell).sum() > 2 for cell in groups])
    features, target = np.nan_to_num(design(test)), np.log([float(record.delay or nan) for record in test])
    features = (features - features.mean(0)) / features.std(0).clip(1e-12)
    found = np.full(len(test), nan)
    for i in np.flatnonzero(several):
        rest = np.arange(len(test)) != i
        x, y = _centered(features[rest], groups[rest]), _centered(target[rest], groups[rest])
        slopes = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
        mine = rest & (groups == groups[i])
        found[i] = target[mine].mean() + (features[i] - features[mine].mean(0)) @ slopes
    means = np.where(several, cell_means(test), nan)
    return {"cell mean and evidence": np.exp(found), "cell mean": means}


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


def concordance(delays: FloatArray, predicted: FloatArray) -> float:
    """Harrell's C-index of n predictions for n uncensored delays: 1 orders all pairs, 0.5 is chance."""
    sooner = delays[:, None] < delays
    agree = (predicted[:, None] < predicted) + 0.5 * (predicted[:, None] == predicted)
    return float(agree[sooner].mean()) if sooner.any() else nan


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


@dataclass(frozen=True)
class Coverage:
    """How many of n records, and of the cells' first records, lay inside their interval."""

    nominal: float
    n: int
    covered: float
    cells: int
    covered_cells: float
    median_width: float


def nested_coverage(records: Sequence[Record], *, folds: int = FOLDS) -> Coverage:
    """Coverage of the interval in nested cross-validation: margin and model from other cells only."""
    from sklearn.model_selection import GroupKFold

    records = [record for record in records if record.at_risk]
    cells = np.array([record.cell for record in records])
    inside, widths = np.zeros(len(records), bool), np.full(len(records), nan)
    for seen, unseen in GroupKFold(folds).split(cells, groups=cells):
        fit, test = [records[i] for i in seen], [records[i] for i in unseen]
        width = margin(fit, cross_validated(fit))
        inside[unseen] = lies_inside(test, fit_formula(fit).log_delay(test), width)
        widths[unseen] = width
    return coverage_of(records, inside, widths)


def coverage_of(records: Sequence[Record], inside: NDArray[np.bool_], widths: FloatArray) -> Coverage:
    """The coverage over records and over the first record of each cell."""
    cells = [record.cell for record in records]
    first = [cells.index(cell) for cell in dict.fromkeys(cells)]
    width = float(np.median(widths))
    return Coverage(
        COVERAGE, len(records), float(inside.mean()), len(first), float(inside[first].mean()), width
    )


def nested_calls(records: Sequence[Record], *, folds: int = FOLDS) -> tuple[Calls, ...]:
    """AUC and Brier score of the probability on held-out cells, against the base rate and a/(ηλ)."""
    from sklearn.model_selection import GroupKFold

    records = [record for record in records if record.at_risk]
    cells = np.array([record.cell for record in records])
    labels: list[NDArray[np.bool_]] = []
    chances: dict[str, list[FloatArray]] = {"model": [], "a/(lr wd)": [], "base rate": []}
    for seen, unseen in GroupKFold(folds).split(cells, groups=cells):
        fit, test = [records[i] for i in seen], [records[i] for i in unseen]
        asked = {"model": _model_calls(fit, test), "a/(lr wd)": _simple_calls(fit, test)}
        answers = asked["model"][1]
        labels.append(answers)
        base = budget_questions(fit, np.zeros(len(fit)))[1].mean()
        for name, (chance, _) in asked.items():
            chances[name].append(chance)
        chances["base rate"].append(np.full(len(answers), base))
    truth = np.concatenate(labels)
    return tuple(calls(name, np.concatenate(values), truth) for name, values in chances.items())


def calls(name: str, chances: FloatArray, truth: NDArray[np.bool_]) -> Calls:
    """AUC and Brier score of probabilities (n,) for answers (n,)."""
    from sklearn.metrics import brier_score_loss, roc_auc_score

    auc, brier = roc_auc_score(truth, chances), brier_score_loss(truth, chances)
    return Calls(name, len(truth), float(auc), float(brier))


@dataclass(frozen=True)
class NoiseCeiling:
    """What no predictor can beat: the spread of ln T over branches from one and the same state.

    deviation is the pooled SD(ln T | state) over the branched cells; mean_log_error the mean |ln| error
    that it leaves to a perfect predictor, deviation · sqrt(2/π).
    """

    cells: int
    branches: int
    censored: int
    deviation: float
    mean_log_error: float


def noise_ceiling(delays: Mapping[str, Sequence[int | None]]) -> NoiseCeiling:
    """The ceiling from the delays of branches by parent run; None for a branch that was cut off."""
    known = [[np.log(d) for d in found if d is not None] for found in delays.values()]
    usable = [found for found in known if len(found) > 1]
    freedom = sum(len(found) - 1 for found in usable)
    deviation = sqrt(sum((len(found) - 1) * np.var(found, ddof=1) for found in usable) / freedom)
    total = sum(map(len, delays.values()))
    lost = total - sum(map(len, known))
    return NoiseCeiling(len(usable), total, lost, deviation, deviation * sqrt(2 / pi))


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


def _centered(values: FloatArray, groups: NDArray[np.int64]) -> FloatArray:
    result = np.array(values)
    for group in np.unique(groups):
        result[groups == group] -= result[groups == group].mean(0)
    return result


def lies_inside(records: Sequence[Record], log_delays: FloatArray, width: float) -> NDArray[np.bool_]:
    """Whether each delay lies in its interval; a censored one does unless its budget is already beyond."""
    found = []
    for record, value in zip(records, log_delays, strict=True):
        actual = np.log(record.delay if record.delay is not None else record.bounds[0])
        found.append(abs(actual - value) <= width or (record.delay is None and actual < value))
    return np.array(found)


def _model_calls(fit: Sequence[Record], test: Sequence[Record]) -> tuple[FloatArray, NDArray[np.bool_]]:
    formula = fit_formula(fit)
    slope, offset = fit_probability(fit, cross_validated(fit), formula.sigma)
    scores, answers = budget_questions(test, formula.log_delay(test))
    return 1 / (1 + np.exp(-(offset + slope * scores / formula.sigma))), answers


def _simple_calls(fit: Sequence[Record], test: Sequence[Record]) -> tuple[FloatArray, NDArray[np.bool_]]:
    rule = InverseDecay.fit(fit)
    logs = [
        np.log([rule.predict(r.evidence) for r in part if r.evidence is not None]) for part in (fit, test)
    ]
    slope, offset = fit_probability(fit, logs[0], 1.0)
    scores, answers = budget_questions(test, logs[1])
    return 1 / (1 + np.exp(-(offset + slope * scores))), answers


__all__ = ["FEATURES", "Calls", "Coverage", "NoiseCeiling", "Score"]
