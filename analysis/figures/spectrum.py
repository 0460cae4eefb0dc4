"""Figures of a spectrum: eigenvalues with their ceilings, gate ratios, densities at three moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ...runs.milestones import Milestones, milestones
from ..spectrum import SpectrumCurve
from .style import COLORS, legend_above, log_values, mark_milestones, panels, step_axis

if TYPE_CHECKING:
    from ...runs.store import Run

MOMENT_COLORS = ("#56B4E9", "#0072B2", "#D55E00")
KERNEL = 0.12  # standard deviation in decades
GATE_STYLES = (
    ("black", "o-", 1.4),
    ("black", "s:", 0.9),
    ("#0072B2", "^--", 0.9),
    ("#56B4E9", "v--", 0.9),
    ("#D55E00", "d--", 0.9),
    ("#009E73", "x--", 0.9),
)


def draw(run: Run, result: SpectrumCurve) -> dict[str, Figure]:
    """Figures by name: `spectrum`, `gates`, and `spectral_density` if densities were taken."""
    marks = milestones(run)
    figures = {}
    figures["spectrum"], axes = panels(height=3.4)
    plot_spectrum(result, axes[0, 0], milestones=marks)
    if np.isfinite(result.gates).any():
        figures["gates"], axes = panels(height=3.0)
        plot_gates(result, axes[0, 0], milestones=marks)
    if len(result.density_steps):
        figures["spectral_density"], axes = panels(height=2.4)
        plot_density(result, axes[0, 0])
    return figures


def plot_spectrum(result: SpectrumCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """Extreme eigenvalues with 95 % limits, trace and ceilings, on an axis that shows zero and below."""
    color, steps, k = COLORS["spectrum"], result.steps, result.largest.shape[1]
    for i in range(k):
        label = f"$\\lambda_1$ to $\\lambda_{{{k}}}$" if i == 0 else None
        (drawn,) = axes.plot(steps, result.largest[:, i], "o-", color=color, linewidth=1.0, label=label)
        drawn.set(alpha=1 - 0.6 * i / k, clip_on=False)
    axes.fill_between(steps, result.largest[:, 0], result.edges[:, 0], color=color, alpha=0.25, linewidth=0)
    low, limit = result.smallest[:, 0], result.edges[:, k]
    (drawn,) = axes.plot(steps, low, "o-", color=COLORS["train"], linewidth=1.0, label="$\\lambda_{min}$")
    drawn.set(clip_on=False)
    axes.fill_between(steps, limit, low, color=COLORS["train"], alpha=0.25, linewidth=0, label="95 % limits")
    axes.plot(steps, result.trace, ":", color=COLORS["null"], label="trace", linewidth=1.0)
    _plot_ceilings(result, axes)
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set_yscale("symlog", linthresh=_linear_range(result), linscale=0.5)
    axes.set_ylabel("eigenvalue of the Hessian")
    step_axis(axes, steps)
    legend_above(axes)
    mark_milestones(axes, milestones, rise=42)


def plot_gates(result: SpectrumCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """Ratios of curvature to ceiling by every definition; below the line at 1 a gate is open."""
    for g, (name, (color, line, width)) in enumerate(zip(result.gate_names, GATE_STYLES, strict=True)):
        ratios = result.gates[:, g]
        shown = np.isfinite(ratios)
        if shown.any():
            (drawn,) = axes.plot(result.steps[shown], ratios[shown], line, color=color, label=name)
            drawn.set(linewidth=width, clip_on=False)
    axes.axhline(1, color="black", linewidth=0.7)
    if (result.gates[np.isfinite(result.gates)] > 0).all():
        log_values(axes)
    else:
        axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylabel("curvature / ceiling")
    step_axis(axes, result.steps)
    legend_above(axes, columns=2)
    mark_milestones(axes, milestones, rise=32)


def plot_density(result: SpectrumCurve, axes: Axes) -> None:
    """Share of eigenvalues per decade at three moments, mean over probes; linear around zero.

    The quadrature's nodes are smoothed in the scale of the axis: few products see little of the bulk, so a
    bump is a node and not an eigenvalue.
    """
    reach = float(np.abs(result.density_nodes[result.density_weights > 0]).max())
    threshold = float(10.0 ** np.floor(np.log10(max(reach * 1e-4, result.roundoff.max(), 1e-30))))
    ends = _scaled(np.array([-reach, reach]), threshold) * 1.05
    grid = np.linspace(ends[0], ends[1], 600)
    for step, nodes, weights, color in zip(
        result.density_steps, result.density_nodes, result.density_weights, MOMENT_COLORS, strict=False
    ):
        offsets = (grid[:, None, None] - _scaled(nodes, threshold)) / KERNEL
        kernel = np.exp(-(offsets**2) / 2) / (KERNEL * np.sqrt(2 * np.pi))
        axes.plot(grid, (kernel * weights).sum(axis=2).mean(axis=1), color=color, label=f"step {step}")
    axes.set_yscale("log")
    axes.set_ylim(1e-6, 10)
    decades = np.arange(np.log10(threshold) + 1, np.floor(np.log10(reach)) + 1, 2)
    marks = np.concatenate([-(10.0 ** decades[::-1]), [0.0], 10.0**decades])
    axes.set_xticks(_scaled(marks, threshold), [_power(mark) for mark in marks])
    axes.set_xlim(*_shown(result, threshold, ends))
    axes.set_xlabel("eigenvalue of the Hessian")
    axes.set_ylabel("share of eigenvalues\nper decade")
    legend_above(axes, columns=3)


def _scaled(values: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    """Decades beyond the threshold on either side of zero, linear within it."""
    return np.asarray(np.arcsinh(values / threshold) / np.log(10))


def _shown(result: SpectrumCurve, threshold: float, ends: NDArray[np.float64]) -> tuple[float, float]:
    """From a decade below the lowest node to the upper end."""
    lowest = float(result.density_nodes[result.density_weights > 0].min())
    return float(_scaled(np.array([lowest]), threshold)[0] - 0.5), float(ends[1])


def _power(value: float) -> str:
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    return f"${sign}10^{{{round(np.log10(abs(value)))}}}$"


def _plot_ceilings(result: SpectrumCurve, axes: Axes) -> None:
    if np.isfinite(result.ceilings).any():
        for c, (name, line) in enumerate((("mean", "--"), ("along $u$", "-."))):
            column = (0, 3)[c]
            axes.plot(
                result.steps,
                result.ceilings[:, column],
                line,
                color="black",
                linewidth=0.8,
                label=f"ceiling, {name}",
            )
        edge = result.largest[:, 0] / result.gate
        axes.plot(
            result.steps,
            edge,
            "-",
            color=COLORS["norm"],
            linewidth=0.8,
            label="adaptive edge",
        )
    elif np.isfinite(result.edge):
        axes.axhline(result.edge, color="black", linestyle="--", linewidth=0.8, label="edge of stability")


def _linear_range(result: SpectrumCurve) -> float:
    """Where the symlog axis begins to be linear: a thousandth of the top, a power of ten."""
    return float(10.0 ** np.floor(np.log10(max(np.abs(result.largest).max(), 1e-30) * 1e-3)))
