"""Fitting the delay model to calibration records: coefficients, margin over cells, calibrated probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_ndtr

from ..runs.calibration import Record
from ..runs.delay_model import DelayModel
from ..runs.evidence import GROUPS

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Recipe:
    """Which features a model uses, which of them also squared, and how strongly it is penalized."""

    name: str
    features: tuple[str, ...]
    squared: tuple[str, ...]
    penalizer: float


_NORM = ("decay", "lr", "norm", "fall", "rate", "samples", "fraction", "memorization", "size")
_LOGGED = ("loss", "loss_fall", "gradient", "update")
_GROUPS = tuple(f"{kind}_{group}" for kind in ("share", "rate") for group in GROUPS)
FULL = Recipe("full", _NORM + _LOGGED + _GROUPS, ("fraction", "samples", "norm", "share_embedding"), 0.03)
CORE = Recipe("norm and accuracy", _NORM, ("fraction", "samples", "norm"), 0.03)
RECIPES = (FULL, CORE)
"""FULL needs what a run of `train` logs; CORE what any loop can: squared norm and train accuracy."""

COVERAGE = 0.9
FOLDS = 8
BUDGETS = (0.5, 1.0, 2.0, 4.0)
"""Budgets in units of 1/(ηλ), at which `will it generalize within the budget` is asked."""


@dataclass(frozen=True)
class Formula:
    """A fitted log-normal model before its margin is known; see `DelayModel` for the symbols."""

    recipe: Recipe
    centers: FloatArray
    scales: FloatArray
    coefficients: FloatArray
    squares: FloatArray
    intercept: float
    sigma: float

    def log_delay(self, records: Sequence[Record]) -> FloatArray:
        """The median of ln T for each record (n,)."""
        z = np.nan_to_num((design(records, self.recipe) - self.centers) / self.scales)
        result: FloatArray = self.intercept + z @ self.coefficients + z**2 @ self.squares
        return result


def design(records: Sequence[Record], recipe: Recipe) -> FloatArray:
    """The recipe's features of each record (n, k), nan where one was not logged."""
    rows = [known.features() for known in (record.evidence for record in records) if known is not None]
    return np.array([[row[name] for name in recipe.features] for row in rows])


def fit_formula(records: Sequence[Record], recipe: Recipe = FULL) -> Formula:
    """The log-normal accelerated-failure-time model with the largest penalized likelihood.

    Records enter with the interval that certainly holds their delay, infinite above where the run was cut
    off. Those that generalized before their information time are left out: T is the delay given that it is
    still to come. The penalty is penalizer/2 times the sum of squares of ln sigma and of all coefficients,
    each in units of its term's standard deviation, as in lifelines (Davidson-Pilon 2019).

    Raises:
        ValueError: no record is at risk.
    """
    records = [record for record in records if record.at_risk]
    if not records:
        raise ValueError("records: none is at risk at its information time; there is nothing to fit")
    values = design(records, recipe)
    centers, scales = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    scales = np.where(scales > 0, scales, 1.0)  # a feature that never varies says nothing
    z = np.nan_to_num((values - centers) / scales)
    squared = [recipe.features.index(name) for name in recipe.squared]
    terms = np.column_stack([np.ones(len(z)), z, z[:, squared] ** 2])
    bounds = np.log([record.bounds for record in records])
    log_sigma, intercept, *slopes = interval_regression(terms, bounds, penalizer=recipe.penalizer)
    squares = np.zeros(z.shape[1])
    squares[squared] = slopes[z.shape[1] :]
    return Formula(
        recipe=recipe,
        centers=centers,
        scales=scales,
        coefficients=np.array(slopes[: z.shape[1]]),
        squares=squares,
        intercept=intercept,
        sigma=exp(log_sigma),
    )


def interval_regression(terms: FloatArray, bounds: FloatArray, *, penalizer: float) -> list[float]:
    """(ln sigma, b_1, ..., b_k) that minimize −(1/n) Σ_i ln P_i + (penalizer/2)(ln² sigma + Σ_j s_j² b_j²).

    P_i = Φ((bounds_i1 − x_i·b)/sigma) − Φ((bounds_i0 − x_i·b)/sigma) for the rows x_i of terms (n, k); the
    upper of bounds (n, 2) may be infinite. s_j is the standard deviation of term j: 0 for the constant.
    """
    weights = np.array([1.0, *terms.var(axis=0, ddof=1)])

    def loss(parameters: FloatArray) -> tuple[float, FloatArray]:
        sigma, fitted = exp(parameters[0]), terms @ parameters[1:]
        low, high = ((edge - fitted) / sigma for edge in bounds.T)
        chance, at_low, at_high = _interval_chance(low, high)
        slopes = terms.T @ (at_high - at_low) / sigma
        width = (np.where(np.isfinite(high), high, 0.0) * at_high - low * at_low).sum()
        gradient = np.array([width, *slopes]) / len(terms) + penalizer * weights * parameters
        return float(-chance.mean() + penalizer / 2 * (weights * parameters**2).sum()), gradient

    middle = np.where(np.isfinite(bounds[:, 1]), bounds.mean(axis=1), bounds[:, 0])
    start = np.array([log(middle.std() or 1.0), middle.mean(), *np.zeros(terms.shape[1] - 1)])
    found = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-8})
    return [float(value) for value in found.x]


def _interval_chance(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ln(Φ(high) − Φ(low)), and the normal density at low and at high over that difference."""
    flip = low > 0  # the difference is exact in the lower tail only
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    chance = log_ndtr(b) + np.log1p(-np.exp(log_ndtr(a) - log_ndtr(b)))
    at_low, at_high = (np.exp(-(edge**2) / 2 - log(sqrt(2 * pi)) - chance) for edge in (low, high))
    return chance, at_low, at_high


def fit_model(records: Sequence[Record], recipe: Recipe = FULL, *, calibration: str) -> DelayModel:
    """The whole model: formula from all records, margin and probability from cross-validation over cells."""
    records = [record for record in records if record.at_risk]
    held_out = cross_validated(records, recipe)
    formula = fit_formula(records, recipe)
    values = design(records, recipe)
    slope, offset = fit_probability(records, held_out, formula.sigma)
    censored = np.mean([record.delay is None for record in records])
    return DelayModel(
        name=recipe.name,
        features=recipe.features,
        centers=_floats(formula.centers),
        scales=_floats(formula.scales),
        coefficients=_floats(formula.coefficients),
        squares=_floats(formula.squares),
        intercept=formula.intercept,
        sigma=formula.sigma,
        low=_floats(np.nanmin(values, axis=0)),
        high=_floats(np.nanmax(values, axis=0)),
        margin=margin(records, held_out),
        coverage=COVERAGE,
        slope=slope,
        offset=offset,
        two_sided=bool(censored < 0.05),
        runs=len(records),
        cells=len({record.cell for record in records}),
        calibration=calibration,
    )


def cross_validated(records: Sequence[Record], recipe: Recipe = FULL, *, folds: int = FOLDS) -> FloatArray:
    """The ln T̂ of each record (n,) by models that saw no record of its cell."""
    from sklearn.model_selection import GroupKFold

    cells = np.array([record.cell for record in records])
    predicted = np.full(len(records), np.nan)
    for seen, unseen in GroupKFold(min(folds, len(set(cells)))).split(cells, groups=cells):
        formula = fit_formula([records[i] for i in seen], recipe)
        predicted[unseen] = formula.log_delay([records[i] for i in unseen])
    return predicted


def margin(records: Sequence[Record], predicted: FloatArray, *, coverage: float = COVERAGE) -> float:
    """The conformal half-width of ln T over cells.

    One record stands for a cell, so that a new cell's record is exchangeable with them; of the K residuals
    |ln T − ln T̂| the ⌈coverage (K + 1)⌉-th smallest is the margin (infinite if K is too small). That is
    done for the first record of each cell, the second, ...; the median is returned. A censored record's
    residual is at least what its budget shows.
    """
    by_cell: dict[int, list[float]] = {}
    for record, value in zip(records, predicted, strict=True):
        by_cell.setdefault(record.cell, []).append(_residual(record, value))
    rounds = max(map(len, by_cell.values()))
    choices = [[found[k % len(found)] for found in by_cell.values()] for k in range(rounds)]
    rank = ceil(coverage * (len(by_cell) + 1))
    if rank > len(by_cell):
        return float("inf")
    return float(np.median([sorted(residuals)[rank - 1] for residuals in choices]))


def fit_probability(records: Sequence[Record], predicted: FloatArray, sigma: float) -> tuple[float, float]:
    """(slope, offset) of P(T ≤ B) = logistic(offset + slope (ln B − ln T̂)/sigma) over BUDGETS/(ηλ)."""
    from sklearn.linear_model import LogisticRegression

    scores, labels = budget_questions(records, predicted)
    fitted = LogisticRegression(C=1e6).fit(scores[:, None] / sigma, labels)
    return float(fitted.coef_[0, 0]), float(fitted.intercept_[0])


def budget_questions(
    records: Sequence[Record], predicted: FloatArray
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """(ln B − ln T̂, whether T ≤ B) for each record and each budget B whose answer is known."""
    asked = []
    for record, value in zip(records, predicted, strict=True):
        for units in BUDGETS:
            budget = units * 2 / record.setting.decay
            known = record.delay is not None or budget <= record.bounds[0]
            if known and budget > known_delay(record):
                asked.append((log(budget) - value, record.delay is not None and record.delay <= budget))
    table = np.array(asked)
    return table[:, 0], table[:, 1].astype(bool)


def _residual(record: Record, predicted: float) -> float:
    if record.delay is None:
        return max(log(record.bounds[0]) - predicted, 0.0)
    return abs(log(record.delay) - predicted)


def known_delay(record: Record) -> float:
    """Steps from memorization to the information time: a run at risk has at least that delay."""
    memorized = record.milestones.memorized
    return 0.0 if memorized is None else float(memorized.confirmed - memorized.step)


def _floats(values: FloatArray) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
