"""Figure of the weight matrices: their norms and ranks along a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...geometry.parameters import group_of
from ...runs.milestones import Milestones, milestones
from ..weights import WeightsCurve
from .style import group_color, is_wide, log_values, mark_milestones, panels, step_axis

if TYPE_CHECKING:
    from ...runs.store import Run

LABELS = {
    "norm": "Frobenius\nnorm",
    "spectral_norm": "spectral\nnorm",
    "stable_rank": "stable\nrank",
    "effective_rank": "effective\nrank",
}
DASHES = ("-", "--", ":", "-.")


def draw(run: Run, result: WeightsCurve) -> dict[str, Figure]:
    """The figure `weights`: one panel for each measure, one line for each matrix."""
    marks = milestones(run)
    figure, axes = panels(len(LABELS), height=1.2, sharex=True)
    for number, (measure, place) in enumerate(zip(LABELS, axes[:, 0], strict=True)):
        plot_weights(result, place, measure=measure)
        mark_milestones(place, marks, labels=number == 0)
        place.label_outer()
    for place in axes[:-1, 0]:
        place.set_xlabel("")
    figure.align_ylabels()
    lines, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=3 if is_wide() else 1, fontsize=6)
    return {"weights": figure}


def plot_weights(
    result: WeightsCurve, axes: Axes, *, measure: str = "stable_rank", milestones: Milestones | None = None
) -> None:
    """One measure of all matrices; the color is that of the parameter group."""
    seen: dict[str, int] = {}
    for number, name in enumerate(result.matrices):
        group = group_of(name)
        dash = DASHES[seen.setdefault(group, 0) % len(DASHES)]
        seen[group] += 1
        values = getattr(result, measure)[:, number]
        axes.plot(result.steps, values, dash, color=group_color(group, number), linewidth=0.9, label=name)
    axes.set_ylabel(LABELS[measure])
    log_values(axes)
    step_axis(axes, result.steps)
    mark_milestones(axes, milestones)
