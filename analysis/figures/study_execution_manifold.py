"""Figure of the execution-manifold study: components, onsets, orthogonality, interventions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import COLORS, legend_above, panels

if TYPE_CHECKING:
    from ..study import Measured

_OPERATIONS = ("add", "sub", "mul")
_OWN, _NULL, _OTHER = COLORS["commutator"], COLORS["null"], COLORS["trajectory"]


def draw(measured: Measured) -> Figure:
    """Four panels: first components, onsets over delays, energy inside the manifold, interventions."""
    figure, axes = panels(2, 2, height=2.3)
    plot_components(measured, axes[0, 0])
    plot_onsets(measured, axes[0, 1])
    plot_energy(measured, axes[1, 0])
    plot_arms(measured, axes[1, 1])
    return figure


def plot_components(measured: Measured, axes: Axes) -> None:
    """PC1 of the attention matrices by operation; the published range is shaded."""
    found = measured.arrays["components"]  # (operations, seeds, 4)
    axes.axhspan(0.68, 0.83, color=_NULL, alpha=0.2, linewidth=0, label="published")
    columns = (("run", 0, "o", _OWN), ("random walk", 1, "s", _NULL), ("all, without decay", 2, "^", _OTHER))
    for label, column, marker, color in columns:
        at = np.arange(len(found))[:, None] + 0.2 * (column - 1) + np.zeros(found.shape[1])
        axes.plot(at.ravel(), found[..., column].ravel(), marker, color=color, markersize=3, label=label)
    axes.set_xticks(np.arange(len(found)), _OPERATIONS[: len(found)])
    axes.set_ylim(0, 1)
    axes.set_ylabel("first component, share")
    legend_above(axes, columns=2)


def plot_onsets(measured: Measured, axes: Axes) -> None:
    """Onsets over generalization times of all runs, by rule; on the line the onset comes too late."""
    table = measured.arrays["onsets"].reshape(-1, measured.arrays["onsets"].shape[-1])
    t = table[:, -1]
    rules = (
        ("float32 $D$", 0, "s", _OTHER),
        ("exact $D$", 1, "o", _OWN),
        ("loss / 10", 3, "x", "black"),
        ("‖g‖ / 10", 4, "+", _NULL),
    )
    for label, column, marker, color in rules:
        label += "" if np.isfinite(table[:, column]).any() else ": never"
        axes.plot(t, table[:, column], marker, color=color, markersize=3.5, label=label)
    known = np.sort(t[np.isfinite(t)])
    axes.plot(known, known, color="black", linewidth=0.7)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("generalization step")
    axes.set_ylabel("onset step")
    legend_above(axes, columns=2)


def plot_energy(measured: Measured, axes: Axes) -> None:
    """Energy of the bracket inside directions over k/P, along each run."""
    found = measured.arrays["energy"]  # (seeds, points, 4)
    at = np.linspace(0, 1, found.shape[1])
    lines = (
        ("own trajectory", 1, "-", _OWN),
        ("same matrices", 2, "--", _NULL),
        ("other seed", 3, ":", _OTHER),
    )
    for label, column, style, color in lines:
        for k, row in enumerate(found[..., column]):
            axes.plot(at, row, style, color=color, linewidth=0.8, label=label if k == 0 else None)
    axes.axhline(1, color="black", linewidth=0.6)
    axes.set_yscale("log")
    axes.set_xlabel("share of the way to generalization")
    axes.set_ylabel("energy inside / chance")
    legend_above(axes, columns=3)


def plot_arms(measured: Measured, axes: Axes) -> None:
    """Generalization time of each arm over that of the undisturbed run; runs that never do at the edge."""
    ratio = measured.arrays["arms"][..., 0] / measured.arrays["before"]
    edge = 1.15 * max(float(np.nanmax(ratio, initial=1.0)), 1.5)
    axes.axvline(1, color=_NULL, linewidth=0.8)
    for k, row in enumerate(ratio):
        known = np.isfinite(row)
        axes.plot(row[known], np.full(known.sum(), k), "o", color=_OWN, markersize=3)
        lost = int((~known).sum())
        if lost:
            axes.plot([edge], [k], "x", color=_OTHER, markersize=4)
            axes.annotate(
                f"{lost} never",
                (edge, k),
                (-4, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=6,
            )
    axes.set_yticks(
        np.arange(len(ratio)), [_short(name) for name in measured.arrays["names"].tolist()], fontsize=6
    )
    axes.invert_yaxis()
    axes.set_xlabel("generalization time / undisturbed")


def _short(name: str) -> str:
    for long, short in (
        ("random in the same matrices", "matched"),
        ("random directions", "random"),
        ("in the matrices only", "matrices"),
        ("decay frozen", "no decay"),
    ):
        name = name.replace(long, short)
    return name
