"""Figures of learning coefficients: along the run, the chains behind them, and their hyperparameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from ...geometry.llc_null import quadratic_null
from ...geometry.spectrum import SpectralDensity
from ...runs.milestones import Milestones, milestones
from ..llc import LLCCurve
from .style import (
    COLORS,
    MILESTONE_MARKS,
    legend_above,
    log_values,
    mark_milestones,
    panels,
    row_or_column,
    step_axis,
)

if TYPE_CHECKING:
    from ...runs.store import Run

Array = NDArray[np.float64]
_TILTED, _PUBLISHED, _NULL, _HOT = COLORS["llc"], COLORS["trajectory"], COLORS["null"], COLORS["test"]
# How a verdict is drawn: marker, and whether it is filled.
_MARKS = {"ok": ("o", True), "suspect": ("o", False), "invalid": ("x", False)}
_STEP_COLORS = (COLORS["delay"], COLORS["trajectory"], "#000000")


def draw(run: Run, result: LLCCurve) -> dict[str, Figure]:
    """Figures by name: `llc`, `llc_traces`, `llc_sensitivity`."""
    marks = milestones(run)
    figures = {}
    if len(result.scaled_llc):
        figures["llc"], (above, below) = row_or_column(2, height=2.3)
        plot_scaled(result, below, milestones=marks)
    else:
        figures["llc"], axes = panels(height=2.4)
        above = axes[0, 0]
    plot_llc(result, above, milestones=marks)
    shown = np.unique([0, len(result.steps) // 2, len(result.steps) - 1])
    figures["llc_traces"], axes = panels(len(shown), 1, height=1.4, sharex=True)
    for place, at in zip(axes.ravel(), shown, strict=True):
        plot_traces(result, place, int(at))
    axes[-1, 0].set_xlabel("draw")
    figures["llc_sensitivity"], axes = panels(height=2.3)
    plot_sensitivity(result, axes[0, 0])
    return figures


def plot_llc(result: LLCCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """Published and tilted λ̂ with two standard errors and verdicts, over what the Hessian predicts.

    Filled marks are `ok`, open ones `suspect`, crosses `invalid`.
    """
    _band(axes, result.steps, result.quadratic, result.quadratic_stderr, "Hessian alone")
    _estimates(axes, result.steps, result.llc, result.stderr, result.verdict, _PUBLISHED, "published")
    _estimates(axes, result.steps, result.tilted, result.tilted_stderr, result.verdict, _TILTED, "tilted")
    _finish(axes, result, milestones, labels=True, label=r"learning coefficient $\hat\lambda$")


def plot_scaled(result: LLCCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """Published λ̂ at the localization that follows the norm, γ‖θ‖²/P constant."""
    steps, null = result.steps, result.scaled_quadratic
    _band(axes, steps, null, result.scaled_quadratic_stderr, "Hessian alone")
    scaled = (result.scaled_llc, result.scaled_stderr, result.scaled_verdict)
    _estimates(axes, steps, *scaled, _PUBLISHED, "published")
    _finish(axes, result, milestones, labels=False, label=r"$\hat\lambda$ at constant $\gamma\|\theta\|^2/P$")


def _band(axes: Axes, steps: NDArray[Any], value: Array, stderr: Array, label: str) -> None:
    axes.plot(steps, value, "--", color=_NULL, label=label)
    axes.fill_between(steps, value - 2 * stderr, value + 2 * stderr, color=_NULL, alpha=0.2, linewidth=0)


def _estimates(
    axes: Axes,
    steps: NDArray[np.int64],
    value: Array,
    stderr: Array,
    verdicts: tuple[str, ...],
    color: str,
    label: str,
) -> None:
    axes.errorbar(steps, value, 2 * stderr, color=color, linewidth=0.9, capsize=1.5, label=label)
    for verdict, (marker, filled) in _MARKS.items():
        at = np.array([each == verdict for each in verdicts])
        face = color if filled else "white"
        (marks,) = axes.plot(steps[at], value[at], marker, color=color, markersize=4, linestyle="none")
        marks.set(markerfacecolor=face, clip_on=not at.any())  # unclipped, no marks would take up room


def _finish(axes: Axes, result: LLCCurve, milestones: Milestones | None, *, labels: bool, label: str) -> None:
    axes.axhline(0, color="black", linewidth=0.5)
    for name, (marker, filled) in _MARKS.items():
        if name in result.verdict:
            face = "black" if filled else "white"
            axes.plot([], [], marker, color="black", markerfacecolor=face, markersize=4, label=name)
    for name, (_, fill) in MILESTONE_MARKS.items() if labels else ():
        if getattr(milestones, name, None) is not None:
            (mark,) = axes.plot([], [], "v", color=COLORS[name], markersize=3.5, label=name)
            mark.set(fillstyle=fill, markeredgewidth=0.7)
    axes.set_ylabel(label)
    step_axis(axes, result.steps)
    legend_above(axes, columns=3)
    mark_milestones(axes, milestones, labels=False)


def plot_traces(result: LLCCurve, axes: Axes, at: int) -> None:
    """nβ(L − L*) of the chains at snapshot number `at`, cold ones solid, hot ones dashed, and their mean."""
    traces = result.traces[at]
    cold = len(traces) - len(traces) // 2
    for chain, draws in enumerate(traces):
        color, line = (_TILTED, "-") if chain < cold else (_HOT, "--")
        label = {0: "cold", cold: "hot"}.get(chain)
        axes.plot(draws, line, color=color, linewidth=0.6, alpha=0.8, label=label)
    axes.axhline(result.llc[at], color="black", linewidth=0.8)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set_ylabel(r"$n\beta\,\Delta L$")
    axes.set_title(f"step {result.steps[at]}, {result.verdict[at]}", fontsize=7, loc="left")
    if at == 0:
        axes.legend(loc="lower right", bbox_to_anchor=(1.02, 1.0), ncols=2, borderaxespad=0.1)


def plot_sensitivity(result: LLCCurve, axes: Axes) -> None:
    """λ̂ against localization at several step sizes (two standard errors), over what the Hessian predicts.

    Where the grid was not measured, only the prediction and the run's own estimate are shown.
    """
    gammas = result.sensitivity_localization
    at = int(np.flatnonzero(result.steps == result.sensitivity_at)[0])
    dense = np.geomspace(gammas[0], gammas[-1], 60)
    null = _quadratic(result, at, dense)
    _band(axes, dense, null[:, 0], null[:, 1], "Hessian alone")
    rows = zip(result.sensitivity_step_size, result.sensitivity_llc, result.sensitivity_stderr, strict=True)
    for (step_size, value, stderr), color in zip(rows, _STEP_COLORS, strict=True):
        if not np.isnan(value).all():
            label = rf"$\epsilon$ = {step_size:.2g}"
            axes.errorbar(
                gammas, value, 2 * stderr, fmt="o-", color=color, markersize=3, capsize=1.5, label=label
            )
    own = result.localization[at], result.llc[at], 2 * result.stderr[at]
    axes.errorbar(*own, fmt="s", color=_PUBLISHED, markersize=4, capsize=1.5, label="this run")
    log_values(axes, which="x")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _scientific(value)))
    axes.set_xlabel(r"localization $\gamma$")
    axes.set_ylabel(rf"$\hat\lambda$ at step {result.sensitivity_at}")
    legend_above(axes, columns=3)


def _scientific(value: float) -> str:
    """Like 2·10⁵; values below a thousand as they are."""
    if value < 1000:
        return f"{value:g}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return rf"{mantissa}$\cdot$10$^{{{int(exponent)}}}$"


def _quadratic(result: LLCCurve, at: int, localizations: Array) -> Array:
    """λ_quad and its standard error (G, 2) at snapshot number `at`, for localizations (G,)."""
    nodes, weights = result.density_nodes[at], result.density_weights[at]
    density = SpectralDensity(nodes, weights, result.dimension, nodes.size)
    nb = result.num_beta
    return np.array([quadratic_null(density, num_beta=nb, localization=float(g)) for g in localizations])
