"""Figure of the progress measures: losses, power in frequencies, commutativity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...runs.milestones import Milestones, milestones
from ..progress import ProgressCurve
from .style import COLORS, is_wide, legend_above, log_values, mark_milestones, panels, step_axis

if TYPE_CHECKING:
    from ...runs.store import Run


def draw(run: Run, result: ProgressCurve) -> dict[str, Figure]:
    """The figure `progress`: what applies of losses, shares and commutativity, from top to bottom."""
    marks = milestones(run)
    parts = [plot_losses] + [plot_shares] * bool(result.order)
    if np.isfinite(result.commutativity_all).any():
        parts.append(plot_commutativity)
    figure, axes = panels(len(parts), height=1.5 if is_wide() else 1.7, sharex=True)
    for part, place in zip(parts, axes[:, 0], strict=True):
        part(result, place, milestones=marks if part is parts[0] else None)
        if part is not parts[0]:
            mark_milestones(place, marks, labels=False)
        place.label_outer()
    for place in axes[:-1, 0]:
        place.set_xlabel("")
    figure.align_ylabels()
    return {"progress": figure}


def plot_progress(result: ProgressCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """The losses; see `plot_shares` and `plot_commutativity` for the rest."""
    plot_losses(result, axes, milestones=milestones)


def plot_losses(result: ProgressCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """Train, test, restricted (of test pairs) and excluded loss (of training pairs)."""
    for name, color, dash in (
        ("train", "train", "-"),
        ("excluded", "train", ":"),
        ("test", "test", "-"),
        ("restricted", "test", ":"),
    ):
        values = getattr(result, f"{name}_loss")
        if np.isfinite(values).any():
            axes.plot(result.steps, values, dash, color=COLORS[color], label=name)
    axes.set_ylabel("loss")
    log_values(axes)
    step_axis(axes, result.steps)
    legend_above(axes, columns=4, fontsize=6)
    mark_milestones(axes, milestones, rise=9)


def plot_shares(result: ProgressCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """Share of the logits' power in waves of the answer, and participation ratio over frequencies."""
    axes.plot(result.steps, result.wave_share, color=COLORS["norm"], label="all frequencies")
    axes.plot(result.steps, result.key_share, color=COLORS["commutator"], label="key frequencies")
    axes.axhline(result.random_share, color=COLORS["null"], linestyle="--", linewidth=0.8, label="if random")
    axes.plot(result.steps, result.participation, ":", color="black", label="participation")
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("share of\nlogit power")
    step_axis(axes, result.steps)
    legend_above(axes, columns=4 if is_wide() else 2, fontsize=6)
    mark_milestones(axes, milestones)


def plot_commutativity(result: ProgressCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """Symmetric KL between the answers to (a, b) and (b, a), by which of them were trained on."""
    for name, color, label in (
        ("commutativity", "trajectory", "one trained on"),
        ("commutativity_unseen", "test", "neither"),
        ("commutativity_all", "null", "all pairs"),
    ):
        values = getattr(result, name)
        if np.isfinite(values).any():
            axes.plot(result.steps, values, color=COLORS[color], label=label)
    axes.set_ylabel("commutativity\nviolation")
    if result.commutativity_all.max() > 0:
        log_values(axes)
    step_axis(axes, result.steps)
    legend_above(axes, columns=3, fontsize=6)
    mark_milestones(axes, milestones)
