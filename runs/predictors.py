"""Predictors of the delay that a calibrated model has to beat; each sees evidence only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, nan

import numpy as np
from numpy.typing import NDArray

from .calibration import Record
from .evidence import Evidence


@dataclass(frozen=True)
class InverseDecay:
    """T̂ = a/(ηλ), or a N^b (f/(1−f))^c/(ηλ) with N training samples, a fraction f of all."""

    constant: float
    samples: float = 0.0
    fraction: float = 0.0

    @classmethod
    def fit(cls, records: Sequence[Record], *, with_task: bool = False) -> InverseDecay:
        """Least squares in ln T over uncensored records."""
        features, delays = _table(records)
        target = np.log(delays) + features["decay"]
        columns = [np.ones(len(target))] + [features[name] for name in ("samples", "fraction") if with_task]
        solution = np.linalg.lstsq(np.column_stack(columns), target, rcond=None)[0]
        return cls(*map(float, solution))

    def predict(self, known: Evidence) -> float:
        """The delay in steps."""
        x = known.features()
        return exp(self.constant + self.samples * x["samples"] + self.fraction * x["fraction"] - x["decay"])


@dataclass(frozen=True)
class LogRatio:
    """T̂ = ln(V/V*)/(2κηλ), V the squared norm at memorization; nan where V is below the target V*."""

    kappa: float
    target: float

    @classmethod
    def fit(cls, records: Sequence[Record]) -> LogRatio:
        """κ and V* with the least mean |ln(T̂/T)| over uncensored records, V* below every V."""
        features, delays = _table(records)
        norms, unit = np.exp(features["norm"]), delays * 2 * np.exp(features["decay"])
        fits = []
        for target in np.geomspace(norms.min() / 1e4, norms.min() * 0.999, 400):
            kappas = np.log(norms / target) / unit
            kappa = float(np.exp(np.median(np.log(kappas))))
            fits.append((float(np.abs(np.log(kappas / kappa)).mean()), kappa, float(target)))
        return cls(*min(fits)[1:])

    def predict(self, known: Evidence) -> float:
        """The delay in steps, nan where the law has none."""
        ratio = log(known.norm / self.target)
        return ratio / (self.kappa * known.setting.decay) if ratio > 0 else nan


@dataclass(frozen=True)
class LocalRateLaw:
    """T̂ = ln(V/V*)/rate with V* = V/ratio: the local log-rate of V alone decides; nan where V rises."""

    log_ratio: float

    @classmethod
    def fit(cls, records: Sequence[Record]) -> LocalRateLaw:
        """The median of ln(rate · T) over uncensored records whose norm falls."""
        known = [(r.evidence, r.delay) for r in records]
        products = [e.rate.rate * delay for e, delay in known if e is not None and delay and e.rate.rate > 0]
        return cls(float(np.median(products)))

    def predict(self, known: Evidence) -> float:
        """The delay in steps, nan where the norm does not fall."""
        return self.log_ratio / known.rate.rate if known.rate.rate > 0 else nan


SUCCESSOR = LogRatio(kappa=0.252, target=2501.0)
"""The successor's law with its published constants (arXiv 2605.18845), frozen."""


def published(known: Evidence, final_norm: float) -> float:
    """The law's published arithmetic, ln(V_mem/V_final)/(2ηλ): it needs the norm after the fact.

    nan where the final norm is not below the one at memorization.
    """
    ratio = log(known.norm / final_norm)
    return ratio / known.setting.decay if ratio > 0 else nan


def cell_means(records: Sequence[Record]) -> NDArray[np.float64]:
    """For each record the mean delay of the other uncensored records of its cell; nan if there is none."""
    found = []
    for record in records:
        others = [
            r.delay for r in records if r.cell == record.cell and r is not record and r.delay is not None
        ]
        found.append(float(np.mean(others)) if others else nan)
    return np.array(found)


def _table(records: Sequence[Record]) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """Features by name and delays, of uncensored records that were at risk at their information time."""
    known = [(r.evidence, r.delay) for r in records if r.at_risk and r.delay is not None]
    rows = [e.features() for e, _ in known if e is not None]
    if not rows:
        raise ValueError("records: none is at risk and uncensored; there is nothing to fit")
    features = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return features, np.array([delay for _, delay in known], dtype=np.float64)
