"""When a signal sets in: the published rule, and a sustained one that does not depend on the cadence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..runs.milestones import milestones

if TYPE_CHECKING:
    from ..runs.store import Run

Array = NDArray[np.float64]
THRESHOLDS = (0.5, 0.9, 0.98)
"""Test accuracies to which a lead is measured."""
SUSTAIN = 100
"""Optimizer steps for which a signal must stay up."""
EXACT = ("raw", "defect", "curvature", "scale_free")
CALIBRATED = {
    "raw": 4860.0,
    "defect": 139.0,
    "curvature": 344.0,
    "scale_free": 1.73,
    "inverse_gradient_norm": 2.76,
}
"""Factors that a further run on random labels exceeds with probability at most .05.

From the 20 runs of docs/configs/sweeps/early_warning_control.toml by
`grokscope lead out/early_warning_control --calibration`, rounded up: memorizing alone raises the defect that
much. Conformal, so exact for exchangeable runs (that size of model, those rates); elsewhere give a factor.
"""


class Onset(NamedTuple):
    """A signal set in after `below` and not later than `step`; both nan if it never did."""

    below: float
    step: float


NEVER = Onset(nan, nan)


def published_onset(
    steps: NDArray[np.int64], values: Array, *, factor: float = 10.0, minimum: float = 20.0
) -> Onset:
    """First measurement from the third on above `minimum` and above `factor` times the baseline.

    The baseline is max(0.1, median of the first three values), whatever their steps (Xu 2026, arXiv
    2602.16746). The numbers were tuned on float32 defects: apply them to those only. With few snapshots
    the baseline holds values from after the transient, and nothing before the third one can be found.
    """
    if len(values) < 3:
        return NEVER
    baseline = max(0.1, float(np.median(values[:3])))
    above = (values > factor * baseline) & (values > minimum)
    above[:2] = False
    return _first(steps, above)


def sustained_onset(
    steps: NDArray[np.int64], values: Array, *, factor: float = 10.0, sustain: int = SUSTAIN
) -> Onset:
    """First step from which the value exceeds `factor` times its first value for `sustain` steps.

    It must hold at every measurement up to the first one `sustain` steps later, which there must be.
    Snapshots in between can only narrow the interval or break a crossing up, never move the baseline.
    """
    above = np.append(False, _sustained_minimum(steps, values, sustain)[1:] > factor * values[0])
    return _first(steps, above)


def alarm_level(steps: NDArray[np.int64], values: Array, *, sustain: int = SUSTAIN) -> float:
    """The factor up to which `sustained_onset` finds an onset in this run; -inf if none does."""
    lowest = _sustained_minimum(steps, values, sustain)[1:]
    known = lowest[~np.isnan(lowest)]
    return float(known.max() / values[0]) if known.size and values[0] > 0 else -inf


def calibrated_factor(levels: Sequence[float], *, rate: float = 0.05) -> float:
    """The factor that a further control run exceeds with probability at most `rate`.

    `levels` are alarm levels of exchangeable control runs, which do not generalize: conformal order
    statistic ⌈(1 − rate)(n + 1)⌉; infinite where n is too small for the rate.

    Raises:
        ValueError: rate is not between 0 and 1.
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate={rate} must be between 0 and 1")
    rank = ceil((1 - rate) * (len(levels) + 1))
    return inf if rank > len(levels) else float(np.sort(levels)[rank - 1])


def onsets(
    steps: NDArray[np.int64], columns: Mapping[str, NDArray[Any]], *, factor: float | None = None
) -> dict[str, Onset]:
    """Onsets by rule: the published one of the float32 defect, the sustained one of every exact value.

    By default each exact value has its own calibrated factor (`CALIBRATED`).
    """
    published = {"published_float32": published_onset(steps, columns["float32_defect"])}
    return published | {
        name: sustained_onset(steps, values, factor=CALIBRATED[name] if factor is None else factor)
        for name, values in exact_columns(columns).items()
    }


def exact_columns(columns: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    """The exact values that have onsets; the reciprocal gradient norm is a trivial one: D contains it."""
    with np.errstate(divide="ignore"):
        inverse = 1 / np.asarray(columns["gradient_norm"], dtype=np.float64)
    return {name: columns[name] for name in EXACT} | {"inverse_gradient_norm": inverse}


def generalization_steps(run: Run, thresholds: Sequence[float] = THRESHOLDS) -> Array:
    """First step at which each test accuracy was reached and kept; nan where it was not.

    See `milestones`; a run without test counts has none.
    """
    try:
        found = [milestones(run, threshold=threshold).generalized for threshold in thresholds]
    except (KeyError, ValueError):
        return np.full(len(thresholds), nan)
    return np.array([nan if crossing is None else crossing.step for crossing in found], dtype=np.float64)


def _first(steps: NDArray[np.int64], above: NDArray[np.bool_]) -> Onset:
    if not above.any():
        return NEVER
    at = int(above.argmax())
    return Onset(float(steps[at - 1]), float(steps[at]))


def _sustained_minimum(steps: NDArray[np.int64], values: Array, sustain: int) -> Array:
    """Per measurement the least value from it to the first one `sustain` steps later; nan without one."""
    ends = np.searchsorted(steps, steps + sustain)
    return np.array([values[i : end + 1].min() if end < len(steps) else nan for i, end in enumerate(ends)])
