"""The synoptic figure: all that was measured of a run over one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray

from ...runs.milestones import Milestones, milestones
from ..synopsis import Line, Panel, hidden, synopsis
from .style import COLORS, is_wide, legend_above, log_values, mark_milestones, panels, step_axis

if TYPE_CHECKING:
    from ...runs.store import Run

DASHES = {"solid": "-", "dashed": "--", "dotted": ":"}


def draw(run: Run, results: Mapping[str, Any]) -> dict[str, Figure]:
    """Figures by name: `synoptic`, or none for a run that logged and measured nothing."""
    shown = synopsis(run, results)
    if not shown:
        return {}
    figure, axes = panels(len(shown), height=1.0 if is_wide() else 1.2, sharex=True)
    plot_synoptic(shown, list(axes[:, 0]), milestones=milestones(run))
    figure.align_ylabels()
    return {"synoptic": figure}


def plot_synoptic(
    shown: Sequence[Panel], axes: Sequence[Axes], *, milestones: Milestones | None = None
) -> None:
    """One panel per axes, from top to bottom; the milestones go through all of them."""
    every = np.unique(np.concatenate([line.steps for panel in shown for line in panel.lines]))
    for number, (panel, place) in enumerate(zip(shown, axes, strict=True)):
        plot_panel(panel, place)
        step_axis(place, every)
        mark_milestones(place, milestones, labels=number == 0, rise=0 if is_wide() else 9)
        place.label_outer()
    for place in axes[:-1]:
        place.set_xlabel("")


def plot_panel(panel: Panel, axes: Axes) -> None:
    """The panel's lines with their bounds, those that can't be trusted with open markers, and its spans."""
    for span in panel.spans:
        axes.axvspan(span.low, span.high, color=COLORS[span.color], alpha=0.2, linewidth=0, label=span.label)
    for line in panel.lines:
        plot_line(line, axes)
    count = hidden(panel)
    axes.set_ylabel(panel.label + (f"\n({count} at or below 0)" if count else ""))
    if panel.scale == "log":
        log_values(axes, decades=1.5)
    if panel.scale == "symlog":
        signed_values(axes, panel)
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    if is_wide():
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), borderaxespad=0, fontsize=6)
    else:
        legend_above(axes, columns=3, fontsize=5.5, columnspacing=1.0, handletextpad=0.4)


def plot_line(line: Line, axes: Axes) -> None:
    """One line; a value with a note gets an open marker, since the note says what is wrong with it."""
    color = COLORS[line.color]
    if line.low is not None and line.high is not None:
        axes.fill_between(line.steps, line.low, line.high, color=color, alpha=0.25, linewidth=0)
    (drawn,) = axes.plot(line.steps, line.values, DASHES[line.dash], color=color, label=line.label)
    drawn.set_linewidth(1.2 if line.main else 0.9)
    if line.marked:
        doubtful = np.array([bool(note) for note in line.notes] or [False] * len(line.steps))
        for chosen, face in ((~doubtful, color), (doubtful, "white")):
            (marks,) = axes.plot(line.steps[chosen], line.values[chosen], "o", color=color, markersize=2.8)
            marks.set(markerfacecolor=face, markeredgewidth=0.7)


def signed_values(axes: Axes, panel: Panel) -> None:
    """A vertical axis that is linear around zero and logarithmic beyond, so negative values are shown."""
    values = np.concatenate([line.values for line in panel.lines])
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    threshold = 10.0 ** np.floor(np.log10(np.median(sizes) / 10)) if sizes.size else 1.0
    axes.set_yscale("symlog", linthresh=threshold, linscale=0.5)
    low, high = axes.get_ylim()
    powers = 10.0 ** np.arange(np.log10(threshold), 16)
    ticks = np.array([0.0, *np.stack([powers, -powers], axis=1).ravel()[::-1]])
    axes.yaxis.set_major_locator(FixedLocator(_apart(axes, ticks[(ticks >= low) & (ticks <= high)])))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axhline(0, color="0.8", linewidth=0.6, zorder=0)


def _apart(axes: Axes, ticks: NDArray[np.float64]) -> list[float]:
    """Those of ticks, by precedence, that leave room for each other's labels."""
    scale = 72 / (axes.figure.dpi or 72)
    heights = axes.transData.transform([(1, tick) for tick in ticks])[:, 1] * scale
    kept: list[int] = []
    for i, height in enumerate(heights):
        if all(abs(height - heights[j]) > 11 for j in kept):
            kept.append(i)
    return [float(ticks[i]) for i in kept]
