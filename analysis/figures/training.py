"""Training curves of a run: accuracy, loss, squared norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...runs.milestones import Milestones, milestones
from .style import COLORS, group_color, log_values, mark_milestones, panels, row_or_column, step_axis

if TYPE_CHECKING:
    from ...runs.store import Run

_LINES = (("train", "-"), ("test", "-"))


def draw(run: Run) -> dict[str, Figure]:
    """Figures by name, of those metrics that the run has: `accuracy_loss`, `squared_norm`."""
    marks = milestones(run)
    figures = {}
    if {"train_correct", "test_correct", "train_loss", "test_loss"} <= set(run.metrics):
        figures["accuracy_loss"], (above, below) = row_or_column(2, height=1.8)
        plot_accuracy(run, above, milestones=marks)
        plot_loss(run, below, milestones=marks)
    if "squared_norm" in run.metrics:
        figures["squared_norm"], axes = panels()
        plot_squared_norm(run, axes[0, 0], milestones=marks)
    return figures


def plot_accuracy(run: Run, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """Share of right answers on both splits against the step."""
    for split, line in _LINES:
        series = run.metrics[f"{split}_correct"]
        share = series.value / run.provenance[f"{split}_total"]
        axes.plot(series.step, share, line, color=COLORS[split], label=split)
    step_axis(axes, series.step)
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("accuracy")
    axes.legend(loc="best")
    mark_milestones(axes, milestones)


def plot_loss(run: Run, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """Mean loss on both splits against the step, both axes logarithmic; zeros are counted in the label."""
    hidden = 0
    for split, line in _LINES:
        series = run.metrics[f"{split}_loss"]
        positive = series.value > 0
        hidden += int((~positive).sum())
        axes.plot(series.step, np.where(positive, series.value, np.nan), line, color=COLORS[split])
    log_values(axes)
    step_axis(axes, series.step)
    axes.set_ylabel(f"loss ({hidden} at 0)" if hidden else "loss")
    mark_milestones(axes, milestones)


def plot_squared_norm(run: Run, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """V = ‖θ‖² against the step, and the part of each parameter group."""
    total = run.metrics["squared_norm"]
    axes.plot(total.step, total.value, color="black", label="all parameters")
    groups = [name for name in run.metrics if name.startswith("squared_norm.")]
    for number, name in enumerate(groups):
        series, group = run.metrics[name], name.removeprefix("squared_norm.")
        axes.plot(series.step, series.value, linewidth=0.9, color=group_color(group, number), label=group)
    log_values(axes)
    step_axis(axes, total.step)
    axes.set_ylabel("squared norm ‖θ‖²")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    mark_milestones(axes, milestones)
