"""Figures of a loss surface: the plane with the trajectory on it, how true it is, and a straight line."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator
from numpy.typing import NDArray

from ...runs.milestones import Milestones, milestones
from ..surface import Surface
from .labels import free_sides, write_beside
from .style import COLORS, MILESTONE_MARKS, log_values, mark_milestones, panels, row_or_column, step_axis

if TYPE_CHECKING:
    from ...runs.store import Run


def draw(run: Run, result: Surface) -> dict[str, Figure]:
    """Figures by name: `surface`, `surface_truth` (the loss against the plane's), `surface_line`."""
    marks = milestones(run)
    figures = {}
    figures["surface"], axes = panels(height=2.9)
    plot_surface(result, axes[0, 0], milestones=marks)
    figures["surface_truth"], (above, below) = row_or_column(2)
    plot_truth(result, above, milestones=marks)
    plot_residual(result, below, milestones=marks)
    figures["surface_line"], axes = panels(height=2.2)
    plot_line(result, axes[0, 0])
    return figures


def plot_surface(result: Surface, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """Levels of the loss (logarithmic; unshaded where it is not positive), the snapshots, the milestones."""
    heights = np.ma.masked_invalid(np.where(result.surface > 0, result.surface, np.nan))
    low, high = float(heights.min()), float(heights.max())
    levels = np.geomspace(low, max(high, low * 1.001), 24)
    scale = LogNorm(low, levels[-1])
    filled = axes.contourf(result.first, result.second, heights, levels=levels, norm=scale, cmap="cividis")
    bar = cast(Figure, axes.get_figure()).colorbar(filled, ax=axes, label=f"{result.split} loss", aspect=30)
    few = high / low < 100
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.ax.minorticks_off()
    axes.plot(*result.scores.T, "o-", color="white", markersize=2, linewidth=0.7)
    axes.set(xlim=result.first[[0, -1]], ylim=result.second[[0, -1]])
    at = {"start": 0, "end": len(result.steps) - 1}
    for name in MILESTONE_MARKS:
        crossing = getattr(milestones, name, None)
        if crossing is not None:
            at[name] = int(np.argmin(abs(result.steps - crossing.step)))
    for (name, i), side in zip(at.items(), free_sides(result.scores, at, axes), strict=True):
        _name(axes, result.scores[i], name, side)
    share = 100 * result.explained_variance
    axes.set_xlabel(f"component 1 ({share[0]:.1f} %)")
    axes.set_ylabel(f"component 2 ({share[1]:.1f} %)")


def plot_truth(result: Surface, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """The loss of the snapshots and that of their projections onto the plane."""
    color = COLORS[result.split]
    axes.plot(result.steps, result.loss, "o-", color=color, markersize=2.5, label="snapshot")
    axes.plot(
        result.steps, result.plane_loss, "s--", color=COLORS["null"], markersize=2, label="its projection"
    )
    log_values(axes)
    step_axis(axes, result.steps)
    axes.set_ylabel(f"{result.split} loss")
    axes.legend(loc="lower left")
    mark_milestones(axes, milestones)


def plot_residual(result: Surface, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """How far each snapshot lies from the plane, and from the plane's center within it."""
    within = np.linalg.norm(result.scores, axis=1)
    axes.plot(result.steps, result.residual, "o-", color="black", markersize=2.5, label="off the plane")
    axes.plot(result.steps, within, ":", color=COLORS["trajectory"], label="within, from the mean")
    axes.set_ylim(bottom=0)
    step_axis(axes, result.steps)
    axes.set_ylabel("distance")
    axes.legend(loc="best")
    mark_milestones(axes, milestones, labels=False)


def plot_line(result: Surface, axes: Axes) -> None:
    """The loss along the straight line between two snapshots, with the chord between its ends."""
    start, stop = result.line_steps
    axes.plot(result.line_fraction, result.line_loss, "o-", color=COLORS[result.split], markersize=2.5)
    axes.plot([0, 1], result.line_loss[[0, -1]], ":", color=COLORS["null"], linewidth=0.9)
    axes.set_xlabel(f"from step {start} (0) to step {stop} (1)")
    axes.set_ylabel(f"{result.split} loss")
    axes.set_title(f"barrier above the chord: {result.barrier:.3g}")


def _name(axes: Axes, point: NDArray[np.float64], name: str, side: tuple[int, int]) -> None:
    """A marker and a name beside a snapshot, white on the dark surface."""
    fill = "white" if MILESTONE_MARKS.get(name, ("", ""))[1] == "full" else "none"
    shape = "v" if name in MILESTONE_MARKS else "o"
    axes.plot(*point, shape, markersize=5, color="white", markerfacecolor=fill, markeredgewidth=0.8)
    frame = {"color": "black", "alpha": 0.45, "pad": 1.0, "linewidth": 0}
    write_beside(axes, point, name, side, color="white", bbox=frame)
