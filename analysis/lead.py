"""How the time of a signal's onset depends on the time of generalization, over runs.

A lead is t − c for an onset at c. If c were the same for all runs, the lead would still grow with t, and
faster than in proportion: log(t − c) has slope t/(t − c) > 1 in log t. So the published power law stands
beside that null, and the question is asked of the onsets themselves, censored ones included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import log_ndtr
from scipy.stats import chi2

from .onset import Onset

Array = NDArray[np.float64]
_LEAST_SIGMA = 1e-3  # of log onset: intervals this narrow are exact for all purposes
_DEVIANCE = float(chi2.ppf(0.95, 1))


@dataclass(frozen=True)
class PowerLaw:
    """lead = coefficient · t^exponent by least squares in logarithms, beside its constant-onset null."""

    exponent: float
    coefficient: float
    r_squared: float
    null_exponent: float  # of leads t − c with one c, the geometric mean of the onsets
    null_r_squared: float
    onset_slope: float  # of log onset on log t: 0 for a constant onset, 1 for a proportional one
    onset_r_squared: float
    runs: int
    dropped: int  # without onset, without generalization or with a lead of 0 or less; the fit ignores them


def power_law(onsets: Sequence[float], generalized: Sequence[float]) -> PowerLaw:
    """The lead-time power law of the literature (Xu 2026, arXiv 2602.16746 and 2602.16967), with its null.

    onsets (n,) and generalized (n,) are steps, nan where there is none. Runs that don't lead are dropped,
    as published, which is a selection; `onset_regression` keeps them.

    Raises:
        ValueError: fewer than three runs lead.
    """
    onset, t = np.asarray(onsets, dtype=np.float64), np.asarray(generalized, dtype=np.float64)
    kept = (t > onset) & (onset > 0)
    if kept.sum() < 3:
        raise ValueError(f"onsets: only {kept.sum()} runs have an onset before generalization; need 3")
    onset, t = onset[kept], t[kept]
    exponent, intercept, r_squared = _line(np.log(t), np.log(t - onset))
    constant = float(np.exp(np.log(onset).mean()))
    later = t > constant
    null = _line(np.log(t[later]), np.log(t[later] - constant)) if later.sum() > 2 else (nan, nan, nan)
    slope, _, onset_r_squared = _line(np.log(t), np.log(onset))
    return PowerLaw(
        exponent=exponent,
        coefficient=float(np.exp(intercept)),
        r_squared=r_squared,
        null_exponent=null[0],
        null_r_squared=null[2],
        onset_slope=slope,
        onset_r_squared=onset_r_squared,
        runs=int(kept.sum()),
        dropped=int((~kept).sum()),
    )


@dataclass(frozen=True)
class OnsetRegression:
    """log onset = a_cell + slope · log t + sigma · noise, by maximum likelihood over censored onsets."""

    slope: float  # 0 for an event that knows nothing of t, 1 for one at a fixed fraction of it
    low: float  # 95 % profile-likelihood interval
    high: float
    p: float  # likelihood ratio against slope 0
    sigma: float
    runs: int
    censored: int  # runs without an onset, which count as later than their last step
    excluded: int  # runs without generalization, which have no t


def onset_regression(
    onsets: Sequence[Onset],
    generalized: Sequence[float],
    budgets: Sequence[float],
    cells: Sequence[str] | None = None,
) -> OnsetRegression:
    """Slope of log onset on log generalization time within cells, every onset an interval.

    onsets (n,) are intervals (below, step], nan where there is none: later than the budget then. A normal
    error on the logarithm; one intercept per cell. Compare the slope with those of `trivial` events (loss
    or gradient norm below a level: `falls_below`) and of shuffled onsets (`shuffled_slopes`).

    Raises:
        ValueError: lengths differ, or fewer than three runs generalize.
    """
    names = ["all"] * len(onsets) if cells is None else list(cells)
    if not len(onsets) == len(generalized) == len(budgets) == len(names):
        raise ValueError(
            f"onsets={len(onsets)}, generalized={len(generalized)}, budgets={len(budgets)}, "
            f"cells={len(names)}: give one of each per run"
        )
    t = np.asarray(generalized, dtype=np.float64)
    kept = np.isfinite(t)
    if kept.sum() < 3:
        raise ValueError(f"generalized: only {kept.sum()} runs generalize; need 3")
    lower, upper = _bounds(onsets, np.asarray(budgets, dtype=np.float64))
    data = _Data(lower[kept], upper[kept], np.log(t[kept]), np.array(names)[kept])
    best = data.fit()
    deviance = 2 * (data.fit(slope=0.0)[0] - best[0])
    return OnsetRegression(
        slope=best[1],
        low=data.end(best, -1),
        high=data.end(best, +1),
        p=float(chi2.sf(max(deviance, 0.0), 1)),
        sigma=best[2],
        runs=int(kept.sum()),
        censored=int(np.isinf(upper[kept]).sum()),
        excluded=int((~kept).sum()),
    )


def shuffled_slopes(
    onsets: Sequence[Onset],
    generalized: Sequence[float],
    budgets: Sequence[float],
    cells: Sequence[str] | None = None,
    *,
    draws: int = 99,
    seed: int = 0,
) -> Array:
    """Slopes (draws,) after onsets are shuffled among the runs of a cell that generalize: the null.

    An onset moves together with its budget, so that a censored run stays censored at its own time.
    """
    rng = np.random.default_rng(seed)
    names = np.array(["all"] * len(onsets) if cells is None else list(cells))
    eligible = np.isfinite(np.asarray(generalized, dtype=np.float64))
    slopes = []
    for _ in range(draws):
        order = np.arange(len(onsets))
        for name in np.unique(names):
            members = np.flatnonzero((names == name) & eligible)
            order[members] = rng.permutation(members)
        moved, until = [onsets[int(i)] for i in order], [budgets[int(i)] for i in order]
        slopes.append(onset_regression(moved, generalized, until, cells).slope)
    return np.array(slopes)


def falls_below(steps: NDArray[np.int64], values: Array, level: float) -> Onset:
    """A trivial event: the first measurement below `level`, such as a loss or a gradient norm."""
    below = np.asarray(values) < level
    if not below.any():
        return Onset(nan, nan)
    at = int(below.argmax())
    return Onset(float(steps[at - 1]) if at else 0.0, float(steps[at]))


class _Data:
    """Censored log onsets and the likelihood of a line through them."""

    def __init__(self, lower: Array, upper: Array, log_t: Array, cells: NDArray[np.str_]) -> None:
        self.lower, self.upper, self.log_t = lower, upper, log_t
        self.cells, self.cell = np.unique(cells, return_inverse=True)
        finite = np.where(np.isinf(upper), lower, np.where(np.isinf(lower), upper, (lower + upper) / 2))
        self.middle = finite

    def fit(self, slope: float | None = None, start: float = 0.0) -> tuple[float, float, float]:
        """Least negative log likelihood with its slope and sigma; the slope may be given."""
        free = slope is None
        first = start if slope is None else slope
        residual = self.middle - first * self.log_t
        intercepts = [residual[self.cell == k].mean() for k in range(len(self.cells))]
        spread = max(float(residual.std()), 0.1)
        x0 = np.array([*intercepts, np.log(spread), *([first] if free else [])])
        found = minimize(
            lambda x: self._loss(x, slope),
            x0,
            method="L-BFGS-B",
            bounds=[(None, None)] * len(self.cells)
            + [(np.log(_LEAST_SIGMA), None)]
            + ([(None, None)] if free else []),
        )
        sigma = float(np.exp(found.x[len(self.cells)]))
        return float(found.fun), float(found.x[-1]) if slope is None else slope, sigma

    def end(self, best: tuple[float, float, float], side: int) -> float:
        """Where the profile deviance leaves its 95 % quantile on one side; infinite if it does not."""

        def excess(slope: float) -> float:
            return 2 * (self.fit(slope)[0] - best[0]) - _DEVIANCE

        reach = max(0.1, best[2] / (sqrt(len(self.log_t)) * max(float(self.log_t.std()), 1e-9)))
        for _ in range(20):
            if excess(best[1] + side * reach) > 0:
                return float(brentq(excess, best[1], best[1] + side * reach, xtol=1e-4))
            reach *= 2
        return side * inf

    def _loss(self, x: Array, slope: float | None) -> float:
        k = len(self.cells)
        line = x[self.cell] + (x[-1] if slope is None else slope) * self.log_t
        sigma = np.exp(x[k])
        low, high = (self.lower - line) / sigma, (self.upper - line) / sigma
        # In the upper tail both values of Φ are 1: work with the mirrored interval there.
        mirrored = low > 0
        low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
        top, bottom = log_ndtr(high), log_ndtr(low)
        gap = np.minimum(bottom - top, -1e-300)
        return float(-(top + np.log(-np.expm1(gap))).sum())


def _bounds(onsets: Sequence[Onset], budgets: Array) -> tuple[Array, Array]:
    """Log bounds of each onset: (-inf, ...] from the start on, (log budget, inf) without an onset."""
    pairs = np.array([tuple(onset) for onset in onsets], dtype=np.float64).reshape(-1, 2)
    missing = np.isnan(pairs[:, 1])
    with np.errstate(divide="ignore"):
        lower = np.log(np.where(missing, budgets, pairs[:, 0]))
        upper = np.where(missing, inf, np.log(pairs[:, 1]))
    return lower, upper


def _line(x: Array, y: Array) -> tuple[float, float, float]:
    """Slope, intercept and R² of a least-squares line; nan where x or y does not vary."""
    if np.ptp(x) == 0:
        return nan, nan, nan
    slope, intercept = np.polyfit(x, y, 1)
    r = np.corrcoef(x, y)[0, 1] if np.ptp(y) > 0 else nan
    return float(slope), float(intercept), float(r**2)
