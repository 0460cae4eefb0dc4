"""Several runs over one time axis: individual curves, aligned at steps or at milestones.

A mean over runs smears a jump into a ramp, so there is none here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...runs.milestones import Milestones
from ..synopsis import ALIGNED, Align, Line, Panel, aligned
from .style import MILESTONE_MARKS, legend_above, log_values, panels, step_axis

RUN_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


class Compared(NamedTuple):
    """What a comparison needs of a run."""

    panels: tuple[Panel, ...]
    milestones: Milestones


def draw(runs: Mapping[str, Compared], *, align: Align = "step") -> dict[str, Figure]:
    """Figures by name, `compare_<panel>`: the main line of that panel of every run that has it."""
    figures = {}
    for key in dict.fromkeys(panel.key for run in runs.values() for panel in run.panels):
        figures[f"compare_{key}"], axes = panels(height=2.4)
        plot_overlay(runs, key, axes[0, 0], align=align)
    return figures


def plot_overlay(runs: Mapping[str, Compared], key: str, axes: Axes, *, align: Align = "step") -> None:
    """The main line of one panel of each run; what can't be aligned is counted in the label."""
    drawn: list[tuple[Panel, Line]] = []
    colors = run_colors(len(runs))
    for (name, run), color in zip(runs.items(), colors, strict=True):
        panel = next((panel for panel in run.panels if panel.key == key), None)
        line = None if panel is None else next((line for line in panel.lines if line.main), None)
        times = None if line is None else aligned(line.steps, run.milestones, align)
        if panel is None or line is None or times is None:
            continue
        drawn.append((panel, line))
        axes.plot(
            times,
            line.values,
            "o-" if line.marked else "-",
            color=color,
            label=_clipped(name),
            markersize=2.5,
        )
        _mark(axes, run.milestones, align, line, color)
    _finish(axes, drawn, align, missing=len(runs) - len(drawn))
    if drawn and len(drawn) <= 8:
        legend_above(axes, columns=2 if max(map(len, runs)) <= 20 else 1)


def run_colors(count: int) -> list[str]:
    """A color per run: distinct ones for up to seven, shades from dark to light beyond."""
    if count <= len(RUN_COLORS):
        return list(RUN_COLORS[:count])
    shades = mpl.colormaps["viridis"](np.linspace(0, 0.9, count))
    return [mpl.colors.to_hex(shade) for shade in shades]


def _clipped(name: str) -> str:
    """A name in at most 44 characters, its middle left out."""
    return name if len(name) <= 44 else f"{name[:21]}…{name[-22:]}"


def _mark(axes: Axes, found: Milestones, align: Align, line: Line, color: str) -> None:
    """The milestones of a run on its line, as triangles."""
    for name, (_, fill) in MILESTONE_MARKS.items():
        crossing = getattr(found, name)
        if crossing is None or not line.steps[0] <= crossing.step <= line.steps[-1]:
            continue
        at = aligned(np.array([crossing.step]), found, align)
        if at is None:
            continue
        height = np.interp(crossing.step, line.steps, line.values)
        axes.plot(at, [height], "v", color=color, markersize=4, fillstyle=fill, markeredgewidth=0.7)


def _finish(axes: Axes, drawn: Sequence[tuple[Panel, Line]], align: Align, *, missing: int) -> None:
    if drawn:
        panel, line = drawn[0]
        axes.set_ylabel(" ".join(panel.label.split()) + f": {line.label}")
        if panel.scale == "log":
            log_values(axes)
        elif panel.scale == "symlog":
            axes.axhline(0, color="0.8", linewidth=0.6, zorder=0)
        if panel.limits is not None:
            axes.set_ylim(*panel.limits)
    label = ALIGNED[align] + (f" ({missing} without)" if missing else "")
    if align == "step" and drawn:
        step_axis(axes, np.unique(np.concatenate([line.steps for _, line in drawn])), label=label)
    else:
        axes.set_xlabel(label)
