"""Claims of papers as data, findings about them, and the verdict that follows from both.

A claim is committed before its runs: what the paper says, the primary statistic, and the range of values
that counts as the same. A finding holds that statistic for each independent seed (or cell), and what our
controls make of the paper's interpretation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from .ranking import holm

Scale = Literal["quick", "paper"]
Number = Literal["reproduced", "refuted", "inconclusive", "consistent", "inconsistent", "not testable here"]
Interpretation = Literal["supported", "qualified", "not supported", "undecided"]

MIN_SEEDS = 5


@dataclass(frozen=True)
class Claim:
    """What a paper says, and when we call our number the same."""

    name: str  # within its study, in words: "post-norm follows from decay"
    statement: str  # what the paper says, in one sentence
    published: str  # its number as printed, or the relation it states
    where: str  # section, table or figure
    type: Literal["number", "order", "scaling", "identity", "absence"]
    statistic: str  # what is measured, by the paper's own definition
    low: float  # the accepted range x ± τ of that statistic
    high: float
    exact: bool = False  # a computation without randomness: one value decides

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"claim {self.name!r}: low={self.low} exceeds high={self.high}; swap them")


@dataclass(frozen=True)
class Finding:
    """What was measured for one claim."""

    claim: str
    values: tuple[float, ...]  # the primary statistic, one for each independent seed or cell
    interpretation: Interpretation
    evidence: str  # the controls behind the interpretation, with their numbers
    testable: bool = True  # False: the scale at hand can't decide it; `evidence` says why


def interval(values: Sequence[float], *, level: float = 0.95) -> tuple[float, float]:
    """Student-t interval m ± t_{(1+level)/2, n−1} s/√n for the mean of independent values.

    (−∞, ∞) for fewer than two finite values: nothing is known about their spread.

    Raises:
        ValueError: level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level} must lie between 0 and 1; use 0.95")
    known = _finite(values)
    if known.size < 2:
        return -np.inf, np.inf
    half = stats.t.ppf((1 + level) / 2, known.size - 1) * known.std(ddof=1) / np.sqrt(known.size)
    return float(known.mean() - half), float(known.mean() + half)


def bounds(claim: Claim, finding: Finding) -> tuple[float, float]:
    """The interval that a verdict compares with the claim's range; a point for exact computations."""
    known = _finite(finding.values)
    if claim.exact and known.size:
        return float(known.min()), float(known.max())
    return interval(finding.values)


def p_value(claim: Claim, finding: Finding) -> float:
    """Two-sided p for the hypothesis that the true mean lies in [low, high]; 1 where it can't be tested.

    p = 2 P(T_{n−1} > d√n/s), d the distance of the mean to the range; 0 or 1 for exact claims.
    """
    known = _finite(finding.values)
    if not known.size:
        return 1.0
    low, high = bounds(claim, finding)
    if claim.exact:
        return float(low <= claim.high and claim.low <= high)
    distance = max(claim.low - known.mean(), known.mean() - claim.high)
    if known.size < 2 or distance <= 0:
        return 1.0
    spread = known.std(ddof=1) / np.sqrt(known.size)
    return 0.0 if spread == 0 else float(min(1.0, 2 * stats.t.sf(distance / spread, known.size - 1)))


def verdicts(pairs: Sequence[tuple[Claim, Finding, Scale]], *, alpha: float = 0.05) -> tuple[Number, ...]:
    """A verdict on each number, Holm-corrected over all claims that are given together (one atlas).

    At paper scale: `reproduced` if the interval lies inside the claim's range, `refuted` if it is disjoint
    and its p survives Holm, else `inconclusive`. At quick scale the most that is said is `consistent` (the
    interval meets the range) or `inconsistent` (it doesn't). Statistical claims need at least five seeds.
    """
    adjusted = holm(np.array([p_value(claim, finding) for claim, finding, _ in pairs], dtype=np.float64))
    return tuple(_verdict(*pair, refutable=bool(p < alpha)) for pair, p in zip(pairs, adjusted, strict=True))


def _verdict(claim: Claim, finding: Finding, scale: Scale, *, refutable: bool) -> Number:
    if not finding.testable:
        return "not testable here"
    known = _finite(finding.values)
    if known.size < len(finding.values) or known.size < (1 if claim.exact else MIN_SEEDS):
        return "inconclusive"
    low, high = bounds(claim, finding)
    meets = low <= claim.high and claim.low <= high
    if scale == "quick" and not claim.exact:
        return "consistent" if meets else "inconsistent"
    if claim.low <= low and high <= claim.high:
        return "reproduced"
    return "refuted" if not meets and refutable else "inconclusive"


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64)
    return found[np.isfinite(found)]
