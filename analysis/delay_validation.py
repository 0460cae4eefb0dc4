"""Delay predictions of records that the predictors have not seen: held-out cells, tasks and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import numpy as np
from numpy.typing import NDArray

from ..runs.calibration import Record
from ..runs.delay_model import DelayModel
from ..runs.predictors import SUCCESSOR, InverseDecay, LocalRateLaw, LogRatio, cell_means, published
from .delay_fit import (
    CORE,
    FOLDS,
    FULL,
    budget_questions,
    cross_validated,
    design,
    fit_formula,
    fit_probability,
    margin,
)
from .delay_limits import centered
from .delay_score import Calls, Coverage, calls, coverage_of, lies_inside, scored

FloatArray = NDArray[np.float64]


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
    models = {"model": FULL, "model, norm and accuracy": CORE}
    ours = {name: np.exp(fit_formula(at_risk, recipe).log_delay(test)) for name, recipe in models.items()}
    return ours | found | {"published (leaky)": np.array(leaky)}


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
    features, target = design(test, FULL), np.log([float(record.delay or nan) for record in test])
    features = np.nan_to_num((features - features.mean(0)) / features.std(0).clip(1e-12))
    found = np.full(len(test), nan)
    for i in np.flatnonzero(several):
        rest = np.arange(len(test)) != i
        x, y = centered(features[rest], groups[rest]), centered(target[rest], groups[rest])
        slopes = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
        mine = rest & (groups == groups[i])
        found[i] = target[mine].mean() + (features[i] - features[mine].mean(0)) @ slopes
    means = np.where(several, cell_means(test), nan)
    return {"cell mean and evidence": np.exp(found), "cell mean": means}


def nested(records: Sequence[Record], *, folds: int = FOLDS) -> tuple[Coverage, tuple[Calls, ...]]:
    """Coverage of the interval, and how good the probability is, on held-out cells.

    In each fold model, margin and probability come from the other cells only: they are cross-validated
    among these. The probability is compared with the base rate and with that of a/(ηλ).
    """
    from sklearn.model_selection import GroupKFold

    records = [record for record in records if record.at_risk]
    cells = np.array([record.cell for record in records])
    inside, widths = np.zeros(len(records), bool), np.full(len(records), nan)
    parts = []
    for seen, unseen in GroupKFold(folds).split(cells, groups=cells):
        fit, test = [records[i] for i in seen], [records[i] for i in unseen]
        formula, within = fit_formula(fit), cross_validated(fit)
        widths[unseen] = margin(fit, within)
        logs = formula.log_delay(test)
        inside[unseen] = lies_inside(test, logs, margin(fit, within))
        slope, offset = fit_probability(fit, within, formula.sigma)
        scores, answers = budget_questions(test, logs)
        parts.append((_chances(scores / formula.sigma, slope, offset), *_simple_chances(fit, test), answers))
    return coverage_of(records, inside, widths), judged(parts)


def fitted_calls(fit: Sequence[Record], test: Sequence[Record], model: DelayModel) -> tuple[Calls, ...]:
    """The calls of a finished model on the records `test`, against rules fitted to `fit`."""
    fit, test = ([record for record in part if record.at_risk] for part in (fit, test))
    logs = np.array([model.log_delay(r.evidence.features()) for r in test if r.evidence is not None])
    scores, answers = budget_questions(test, logs)
    ours = _chances(scores / model.sigma, model.slope, model.offset)
    return judged([(ours, *_simple_chances(fit, test), answers)])


def judged(
    parts: Sequence[tuple[FloatArray, FloatArray, FloatArray, NDArray[np.bool_]]],
) -> tuple[Calls, ...]:
    """AUC and Brier score of the chances by model, a/(ηλ) and base rate, over all parts together."""
    ours, simple, base, answers = (np.concatenate(column) for column in zip(*parts, strict=True))
    rows = {"model": ours, "a/(lr wd)": simple, "base rate": base}
    return tuple(calls(name, chances, answers.astype(bool)) for name, chances in rows.items())


def _chances(scores: FloatArray, slope: float, offset: float) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-(offset + slope * scores))))


def _simple_chances(fit: Sequence[Record], test: Sequence[Record]) -> tuple[FloatArray, FloatArray]:
    """The chance of each question by a/(ηλ) and by the base rate alone."""
    rule = InverseDecay.fit(fit)
    logs = [
        np.log([rule.predict(r.evidence) for r in part if r.evidence is not None]) for part in (fit, test)
    ]
    slope, offset = fit_probability(fit, logs[0], 1.0)
    scores, _ = budget_questions(test, logs[1])
    rate = budget_questions(fit, logs[0])[1].mean()
    return _chances(scores, slope, offset), np.full(len(scores), rate)
