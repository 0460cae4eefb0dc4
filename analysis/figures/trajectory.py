"""Figures of a trajectory: its first two components, and explained variance against the nulls."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ...runs.milestones import Milestones, milestones
from ..trajectory import TrajectoryCurve
from .labels import free_sides, write_beside
from .style import (
    COLORS,
    MILESTONE_MARKS,
    legend_above,
    linear_until,
    log_values,
    mark_milestones,
    panels,
    row_or_column,
    short,
    step_axis,
)

if TYPE_CHECKING:
    from ...runs.store import Run


def draw(run: Run, result: TrajectoryCurve) -> dict[str, Figure]:
    """Figures by name: `trajectory`, `explained_variance`, `explained_variance_matrices`, if they apply."""
    marks = milestones(run)
    figures = {}
    if result.scores.shape[1] > 1:
        figures["trajectory"], axes = panels(height=2.6)
        plot_trajectory(result, axes[0, 0], milestones=marks)
    figures["explained_variance"], (above, below) = row_or_column(2)
    plot_explained_variance(result, above)
    plot_windows(result, below, milestones=marks)
    if result.matrices:
        figures["explained_variance_matrices"], axes = panels(height=0.8 + 0.16 * len(result.matrices))
        plot_matrices(result, axes[0, 0])
    return figures


def plot_trajectory(result: TrajectoryCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """The snapshots in their first two components, colored by step (logarithmic, step 0 included)."""
    x, y = result.scores[:, 0], result.scores[:, 1]
    steps = result.steps
    first = linear_until(steps)
    norm = SymLogNorm(linthresh=first, linscale=0.5, vmin=steps[0], vmax=steps[-1])
    axes.plot(x, y, color="0.8", linewidth=0.6, zorder=1)
    points = axes.scatter(x, y, c=steps, norm=norm, s=8, linewidths=0, zorder=2)
    bar = cast(Figure, axes.get_figure()).colorbar(points, ax=axes, label="optimizer step", aspect=30)
    powers = 10.0 ** np.arange(0, 12)
    shown = [float(steps[0]), *powers[(powers >= first) & (powers <= steps[-1])]]
    bar.ax.yaxis.set_major_locator(FixedLocator(shown))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda step, _: short(step)))
    _mark_snapshots(result, axes, milestones)
    share = 100 * result.explained_variance
    axes.set_xlabel(f"component 1 ({share[0]:.1f} %)")
    axes.set_ylabel(f"component 2 ({share[1]:.1f} %)")


def plot_explained_variance(result: TrajectoryCurve, axes: Axes) -> None:
    """Explained variance of the components and of the three nulls, on a logarithmic scale."""
    lines = (
        ("run", result.explained_variance, COLORS["trajectory"], "o-", 1.2),
        ("run, decay removed", result.without_decay, COLORS["trajectory"], "o:", 0.9),
        ("random walk", result.random_walk_null, COLORS["null"], "s--", 0.9),
        ("Ornstein-Uhlenbeck", result.ornstein_uhlenbeck_null, "black", "^--", 0.9),
    )
    number = np.arange(1, len(result.explained_variance) + 1)
    for label, values, color, line, width in lines:
        axes.plot(
            number, np.where(values > 0, values, np.nan), line, color=color, linewidth=width, label=label
        )
    log_values(axes)
    axes.set_xticks(number)
    axes.set_xlabel("component")
    axes.set_ylabel("explained variance")
    legend_above(axes)


def plot_windows(result: TrajectoryCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """The first component's explained variance in windows from the start to each step, and its null."""
    axes.plot(result.window_steps, result.window_explained, "o-", color=COLORS["trajectory"], label="run")
    axes.plot(
        result.window_steps,
        result.window_null,
        "s--",
        color=COLORS["null"],
        linewidth=0.9,
        label="random walk",
    )
    step_axis(axes, result.steps, label="end of the window (optimizer step)")
    axes.set_ylim(0, 1.03)
    axes.set_ylabel("explained by\nfirst component")
    axes.legend(loc="lower left")
    mark_milestones(axes, milestones)


def plot_matrices(result: TrajectoryCurve, axes: Axes) -> None:
    """The first component's explained variance per weight matrix (dots) and its null (ticks)."""
    place = np.arange(len(result.matrices))[::-1]
    axes.plot(result.matrix_explained[:, 0], place, "o", color=COLORS["trajectory"], label="run")
    axes.plot(result.matrix_null[:, 0], place, "|", color=COLORS["null"], markersize=7, label="random walk")
    axes.set_yticks(place, [_short_name(name) for name in result.matrices])
    axes.set_xlim(0, 1.03)
    axes.set_xlabel("explained by first component")
    legend_above(axes)


def _short_name(name: str) -> str:
    """A parameter's name without what every transformer layer repeats, at most 24 characters of it."""
    for long, brief in (
        ("encoder.layers.", "layer "),
        (".self_attn", ""),
        ("in_proj_weight.", ""),
        (".weight", ""),
    ):
        name = name.replace(long, brief)
    return name if len(name) <= 24 else "…" + name[-23:]


def _mark_snapshots(result: TrajectoryCurve, axes: Axes, milestones: Milestones | None) -> None:
    """Names at the start, the end and the snapshots nearest to the milestones, off the line."""
    marked = {"start": int(result.steps[0]), "end": int(result.steps[-1])}
    for name in ("memorized", "generalized"):
        crossing = getattr(milestones, name, None)
        if crossing is not None and result.steps[0] <= crossing.step <= result.steps[-1]:
            marked[name] = crossing.step
    at = {name: int(np.argmin(abs(result.steps - step))) for name, step in marked.items()}
    axes.margins(0.12)
    for (name, i), side in zip(at.items(), free_sides(result.scores[:, :2], at, axes), strict=True):
        x, y = result.scores[i, :2]
        fill = "black" if MILESTONE_MARKS.get(name, ("", ""))[1] == "full" else "none"
        axes.plot(
            x, y, "o", markersize=6, markerfacecolor="none", markeredgecolor="black", markeredgewidth=0.7
        )
        if name in MILESTONE_MARKS:
            axes.plot(x, y, "v", markersize=3, color="black", markerfacecolor=fill, markeredgewidth=0.6)
        write_beside(axes, result.scores[i], name, side)
