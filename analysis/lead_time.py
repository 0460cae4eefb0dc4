"""Lead times of onsets over runs, with every null beside them; and the calibration of the onset rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..runs.milestones import milestones
from .lead import OnsetRegression, PowerLaw, falls_below, onset_regression, power_law, shuffled_slopes
from .onset import EXACT, Onset, alarm_level, calibrated_factor, exact_columns, onsets, published_onset
from .result import StaleResult, load, result_path, save
from .signals import outcome

if TYPE_CHECKING:
    from ..runs.store import Run
    from .commutator import CommutatorCurve

NAME = "onset"
THRESHOLD = 0.9  # of the published lead times
_COUNT = 20  # snapshots up to generalization


@dataclass(frozen=True)
class Course:
    """What one run contributes: onsets by rule, generalization (nan for none), last step and cell."""

    onsets: Mapping[str, Onset]
    generalized: float
    budget: int
    cell: str


@dataclass(frozen=True)
class LeadTime:
    """One rule over all runs. None where too few runs have an onset."""

    rule: str
    trivial: bool  # an event of the loss or gradient norm, which any rule should beat
    leads: int  # runs whose onset comes before generalization
    runs: int  # that generalize
    law: PowerLaw | None  # over all runs, as published
    within: OnsetRegression | None  # log onset on log t within cells: null slope 0
    shuffled: tuple[float, float]  # 2.5 % and 97.5 % of its slopes for onsets shuffled within cells


@dataclass(frozen=True)
class Calibrated:
    """A factor of the sustained rule, from runs that cannot generalize."""

    signal: str
    factor: float
    rate: float  # bound on the false alarms of a further control
    controls: int
    alarms: int  # of the controls, each half of them by the largest level of the other half
    expected_alarms: float  # of these, if controls are exchangeable


def onset_curve(run: Run) -> CommutatorCurve:
    """The commutators that onsets are read from, kept beside the run as `commutator-onset.h5`.

    At up to 20 snapshots: the first ones, then even in the step, to generalization or the end.
    """
    from .commutator import CommutatorCurve, commutator_along

    rows = _rows(run)
    if result_path(CommutatorCurve.KIND, run, name=NAME).exists():
        try:
            found = load(CommutatorCurve, run, name=NAME)
            if np.array_equal(found.steps, run.steps[rows]):
                return found
        except StaleResult:
            pass
    curve = commutator_along(run, snapshots=rows, pairs=3, split_pairs=0, rank=2, singular=1, name=NAME)
    save(curve, run, name=NAME)
    return curve


def course(run: Run) -> Course:
    """The onsets of a run by every rule, and by two trivial events: a tenth of a first value."""
    curve = onset_curve(run)
    columns = {name: getattr(curve, name) for name in (*EXACT, "gradient_norm", "float32_defect")}
    found = onsets(curve.steps, columns)
    for name in ("train_loss", "gradient_norm"):
        series = run.metrics[name]
        found[f"{name} / 10"] = falls_below(series.step, series.value, float(series.value[0]) / 10)
    reached = milestones(run, threshold=THRESHOLD).generalized
    return Course(
        onsets=found,
        generalized=np.nan if reached is None else float(reached.step),
        budget=int(run.steps[-1]),
        cell=outcome(run).cell,
    )


def lead_times(courses: Sequence[Course], *, draws: int = 99) -> tuple[LeadTime, ...]:
    """Every rule's power law with its constant-onset null, and its censored regression within cells.

    Raises:
        ValueError: no runs.
    """
    if not courses:
        raise ValueError("courses are empty; give at least three runs that generalize")
    t = np.array([one.generalized for one in courses])
    budgets, cells = [float(one.budget) for one in courses], [one.cell for one in courses]
    found = []
    for rule in courses[0].onsets:
        each = [one.onsets[rule] for one in courses]
        steps = np.array([onset.step for onset in each])
        leads = int((steps < t).sum())
        enough = np.isfinite(t).sum() >= 3 and np.isfinite(steps[np.isfinite(t)]).sum() >= 3
        slopes = (
            shuffled_slopes(each, t.tolist(), budgets, cells, draws=draws) if enough else np.array([np.nan])
        )
        found.append(
            LeadTime(
                rule=rule,
                trivial=rule == "inverse_gradient_norm" or rule.endswith("/ 10"),
                leads=leads,
                runs=int(np.isfinite(t).sum()),
                law=power_law(steps.tolist(), t.tolist()) if leads >= 3 else None,
                within=onset_regression(each, t.tolist(), budgets, cells) if enough else None,
                shuffled=(float(np.quantile(slopes, 0.025)), float(np.quantile(slopes, 0.975))),
            )
        )
    return tuple(found)


def calibrate(curves: Sequence[CommutatorCurve], *, rate: float = 0.05) -> tuple[Calibrated, ...]:
    """The factor for each exact signal from the curves of control runs (see `calibrated_factor`).

    `alarms` tests it: controls of even and odd place against the largest level of the other n/2, which
    each exceeds with probability 1/(n/2 + 1).

    Raises:
        ValueError: fewer than three controls.
    """
    if len(curves) < 3:
        raise ValueError(f"curves: {len(curves)} controls calibrate nothing; give 19 for a rate of .05")
    found = []
    for signal in (*EXACT, "inverse_gradient_norm"):
        levels = [
            alarm_level(curve.steps, exact_columns({n: getattr(curve, n) for n in _NEEDED})[signal])
            for curve in curves
        ]
        halves = levels[::2], levels[1::2]
        alarms = sum(level > max(halves[1 - k]) for k in (0, 1) for level in halves[k])
        expected = sum(len(halves[k]) / (len(halves[1 - k]) + 1) for k in (0, 1))
        factor = calibrated_factor(levels, rate=rate)
        found.append(Calibrated(signal, factor, rate, len(levels), alarms, expected))
    return tuple(found)


def published_alarms(curves: Sequence[CommutatorCurve]) -> int:
    """In how many of the control runs the published rule sounds."""
    found = [published_onset(curve.steps, curve.float32_defect) for curve in curves]
    return sum(bool(np.isfinite(onset.step)) for onset in found)


_NEEDED = (*EXACT, "gradient_norm")


def _rows(run: Run) -> NDArray[np.int64]:
    """All early snapshots of the published baseline, then an even grid to generalization."""
    reached = milestones(run, threshold=0.98).generalized
    end = run.steps[-1] if reached is None else min(reached.confirmed, run.steps[-1])
    inside = np.flatnonzero(run.steps <= end)
    grid = np.linspace(0, end, _COUNT - 3)
    nearest = [int(np.argmin(abs(run.steps[inside] - step))) for step in grid]
    return np.unique(np.concatenate([inside[:3], inside[nearest]]))
