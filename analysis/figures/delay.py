"""Figures of the delay: one run against the law, and all calibration runs against every predictor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ...runs.milestones import Milestones, milestones
from .style import COLORS, log_values, mark_milestones, panels, step_axis

if TYPE_CHECKING:
    from ...runs.calibration import Record
    from ...runs.store import Run
    from ..delay import DelayCurve
    from ..delay_score import Score

FloatArray = NDArray[np.float64]


def draw(run: Run, result: DelayCurve) -> dict[str, Figure]:
    """Figures by name: `delay`, the norm against the law above every predictor against the outcome."""
    figure, axes = panels(2, height=1.9)
    plot_delay(result, axes[0, 0], milestones=milestones(run))
    plot_predictors(result, axes[1, 0])
    return {"delay": figure}


def plot_delay(result: DelayCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """V(t) and what weight decay alone would make of it from memorization on."""
    shown = result.norm_steps <= (result.generalized or result.budget) * 1.3
    axes.plot(result.norm_steps[shown], result.squared_norm[shown], color=COLORS["norm"], label="run")
    axes.plot(
        result.norm_steps[shown],
        result.law[shown],
        "--",
        color=COLORS["null"],
        label="decay alone, $2\\eta\\lambda$",
    )
    log_values(axes)
    step_axis(axes, result.norm_steps[shown])
    axes.set_ylabel("squared norm ‖θ‖²")
    axes.legend(loc="lower left")
    mark_milestones(axes, milestones)


def plot_predictors(result: DelayCurve, axes: Axes) -> None:
    """Each predictor's delay, the model's with its interval, and the delay that came."""
    rows = np.arange(len(result.predictors))[::-1]
    axes.plot(result.predicted, rows, "o", color=COLORS["delay"], markersize=4)
    if np.isfinite(result.interval[0]):
        high = min(result.interval[1], result.budget)
        axes.plot([result.interval[0], high], [rows[0]] * 2, color=COLORS["delay"], linewidth=1.2)
    if result.delay is not None:
        axes.axvline(result.delay, color=COLORS["generalized"], linestyle="--", linewidth=0.9)
    axes.set_yticks(rows, result.predictors)
    log_values(axes, which="x", decades=1.5)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("delay in steps (dashed: actual)")


def plot_predicted_actual(
    actual: FloatArray, predicted: FloatArray, axes: Axes, *, margin: float | None = None
) -> None:
    """Predicted against actual delay, both logarithmic, with the conformal band around the diagonal."""
    axes.plot(predicted, actual, "o", color=COLORS["delay"], markersize=2.5, alpha=0.7, markeredgewidth=0)
    ends = np.array([min(actual.min(), predicted.min()) / 1.3, max(actual.max(), predicted.max()) * 1.3])
    axes.plot(ends, ends, color="black", linewidth=0.7)
    if margin is not None:
        lower, upper = ends * np.exp(-margin), ends * np.exp(margin)
        axes.fill_between(ends, lower, upper, color=COLORS["delay"], alpha=0.15, linewidth=0)
    log_values(axes)
    log_values(axes, which="x")
    axes.set(xlim=ends, ylim=ends, aspect="equal", xlabel="predicted delay", ylabel="actual delay")


def plot_scores(scores: Sequence[Score], axes: Axes, *, ceiling: float | None = None) -> None:
    """Mean |ln error| by predictor with its interval over cells; dashed: what noise alone leaves."""
    rows = np.arange(len(scores))[::-1]
    values = np.array([score.mean_log_error for score in scores])
    reach = np.array([[s.mean_log_error - s.low, s.high - s.mean_log_error] for s in scores]).T.clip(0)
    axes.errorbar(values, rows, xerr=reach, fmt="o", color=COLORS["delay"], markersize=4, linewidth=1)
    if ceiling is not None:
        axes.axvline(ceiling, color=COLORS["null"], linestyle="--", linewidth=0.9)
    axes.set_yticks(rows, [score.predictor for score in scores])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    log_values(axes, which="x")
    axes.set_xlabel("mean |ln(predicted/actual)|")


def plot_law(records: Sequence[Record], axes: Sequence[Axes]) -> None:
    """The paper's three pictures: delay against 1/λ, 1/η and ln(V_mem/V_gen)/(2ηλ), over all runs."""
    kept = [r for r in records if r.delay is not None and r.evidence is not None]
    delays = [float(r.delay or 0) for r in kept]
    columns: Mapping[str, list[float]] = {
        "$1/\\lambda$": [1 / r.setting.weight_decay for r in kept],
        "$1/\\eta$": [1 / r.setting.lr for r in kept],
        "$\\ln(V_{mem}/V_{gen})/2\\eta\\lambda$": [_log_ratio(r) / r.setting.decay for r in kept],
    }
    for panel, (label, values) in zip(axes, columns.items(), strict=True):
        panel.plot(values, delays, "o", color=COLORS["delay"], markersize=2.5, alpha=0.7, markeredgewidth=0)
        log_values(panel)
        log_values(panel, which="x", decades=1.2)
        panel.set_xlabel(label)
    axes[0].set_ylabel("delay in steps")


def calibration_figures(
    records: Sequence[Record],
    actual: FloatArray,
    predicted: FloatArray,
    scores: Sequence[Score],
    *,
    margin: float,
    ceiling: float | None,
) -> dict[str, Figure]:
    """Figures by name: predicted against actual, error by predictor, and the three pictures of the law."""
    figures = {}
    figures["delay_predicted"], axes = panels(height=3.4)
    plot_predicted_actual(actual, predicted, axes[0, 0], margin=margin)
    figures["delay_errors"], axes = panels(height=2.4)
    plot_scores(scores, axes[0, 0], ceiling=ceiling)
    figures["delay_law"], axes = panels(1, 3, height=2.2, sharey=True)
    plot_law(records, axes[0])
    return figures


def _log_ratio(record: Record) -> float:
    generalized, known = record.milestones.generalized, record.evidence
    if generalized is None or known is None:
        return float("nan")
    return max(float(np.log(known.norm / record.norm_at(generalized.step))), float("nan"))
