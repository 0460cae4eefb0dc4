"""Figures of commutators: normalizations, float32 against exact, and subspaces against their nulls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...runs.milestones import Milestones, milestones
from ..commutator import CommutatorCurve
from .style import COLORS, legend_above, log_values, mark_milestones, panels, row_or_column, step_axis

if TYPE_CHECKING:
    from ...runs.store import Run

_EXACT, _ROUNDED, _NULL = COLORS["commutator"], COLORS["trajectory"], COLORS["null"]
_BASIS_COLORS = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73")
_NAMES = {
    "raw": "raw ‖[A, B]‖",
    "defect": "defect $D$",
    "curvature": "curvature $C_1$",
    "scale_free": "scale-free $C_0$",
}


def draw(run: Run, result: CommutatorCurve) -> dict[str, Figure]:
    """Figures by name: `commutator`, `commutator_float32`, `commutator_noise`, `commutator_subspaces`."""
    marks = milestones(run)
    figures = {}
    figures["commutator"], axes = panels(2, 2, height=1.7, sharex=True)
    for k, (name, place) in enumerate(zip(_NAMES, axes.ravel(), strict=True)):
        plot_normalization(result, place, name, milestones=marks, labels=k == 0)
    for place in axes[0]:
        place.set_xlabel("")
    figures["commutator_float32"], axes = panels(2, height=1.6, height_ratios=(2, 1), sharex=True)
    plot_float32(result, axes[0, 0], milestones=marks)
    plot_excess(result, axes[1, 0], milestones=marks)
    axes[0, 0].set_xlabel("")
    figures["commutator_noise"], (above, below) = row_or_column(2)
    plot_parts(result, above, milestones=marks)
    plot_alignment(result, below, milestones=marks)
    figures["commutator_subspaces"], axes = panels(height=2.6)
    plot_subspaces(result, axes[0, 0], milestones=marks)
    return figures


def plot_commutator(result: CommutatorCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """The exact defect with the float32 one and its noise: `plot_float32` under the analysis' name."""
    plot_float32(result, axes, milestones=milestones)


def plot_normalization(
    result: CommutatorCurve,
    axes: Axes,
    name: str,
    *,
    milestones: Milestones | None = None,
    labels: bool = True,
) -> None:
    """One normalization (raw, defect, curvature, scale_free), its quartiles, and rounding where it has it."""
    low, high = getattr(result, f"{name}_quartiles").T
    axes.fill_between(result.steps, low, high, color=_EXACT, alpha=0.25, linewidth=0)
    axes.plot(result.steps, getattr(result, name), "o-", color=_EXACT, markersize=2.5)
    beside = {
        "raw": ("float32 rounding", result.noise_floor, _NULL),
        "defect": ("float32 rounding", result.defect_floor, _NULL),
        "curvature": ("‖Hg‖ / ‖g‖", result.curvature_proper, "black"),
    }
    if name in beside:
        label, values, color = beside[name]
        axes.plot(result.steps, values, ":", color=color, label=label)
        axes.legend(loc="upper left", fontsize=6, handlelength=1.2, borderaxespad=0)
        log_values(axes)
    else:
        axes.set_ylim(0, 1)
    axes.set_ylabel(_NAMES[name])
    step_axis(axes, result.steps)
    mark_milestones(axes, milestones, labels=labels)


def plot_float32(result: CommutatorCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """The published float32 defect, its rounding error, and the exact value."""
    noisy = result.below_floor >= 0.5
    axes.plot(result.steps, result.defect, "o-", color=_EXACT, markersize=2.5, label="exact")
    axes.plot(
        result.steps, result.float32_defect, "s-", color=_ROUNDED, markersize=2.5, label="float32 steps"
    )
    axes.plot(
        result.steps[noisy],
        result.float32_defect[noisy],
        "s",
        markersize=6,
        markerfacecolor="none",
        markeredgecolor=_ROUNDED,
        markeredgewidth=0.7,
        label="… mostly rounding",
    )
    axes.plot(result.steps, result.defect_floor, ":", color=_NULL, label="rounding error")
    axes.plot([], [], ":", color="black", label="gradient differences")
    log_values(axes)
    axes.set_ylabel("commutator defect $D$")
    step_axis(axes, result.steps)
    legend_above(axes)
    mark_milestones(axes, milestones, labels=False)


def plot_excess(result: CommutatorCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """How many times too large the float32 defect is, and that of gradient differences beside it."""
    axes.axhline(1, color=_EXACT, linewidth=0.8)
    ratio = result.float32_defect / result.defect
    axes.plot(result.steps, ratio, "s-", color=_ROUNDED, markersize=2.5)
    axes.plot(result.steps, result.compensated_defect / result.defect, ":", color="black")
    log_values(axes)
    axes.set_ylabel("over exact")
    step_axis(axes, result.steps)
    mark_milestones(axes, milestones, labels=False)


def plot_parts(result: CommutatorCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """The bracket's gradient noise, curvature noise and cross term."""
    lines = (
        ("bracket", result.raw, "o-", _EXACT),
        ("gradient noise", result.gradient_noise, "--", COLORS["gradient"]),
        ("curvature noise", result.curvature_noise, "--", COLORS["spectrum"]),
        ("cross term", result.cross_noise, ":", _NULL),
    )
    for label, values, line, color in lines:
        axes.plot(result.steps, values, line, color=color, markersize=2.5, label=label)
    log_values(axes)
    axes.set_ylabel("norm")
    step_axis(axes, result.steps)
    legend_above(axes)
    mark_milestones(axes, milestones, labels=False)


def plot_alignment(result: CommutatorCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """|cos| of bracket and next displacement against random signs and isotropy."""
    axes.plot(result.steps, result.alignment, "o-", color=_EXACT, markersize=2.5, label="next displacement")
    axes.plot(result.steps, result.alignment_null, "s--", color=_NULL, markersize=2, label="random signs")
    axes.axhline(result.alignment_chance, color="black", linestyle=":", linewidth=0.8, label="isotropic")
    log_values(axes)
    axes.set_ylabel("|cos| with bracket")
    step_axis(axes, result.steps)
    legend_above(axes)
    mark_milestones(axes, milestones, labels=False)


def plot_subspaces(result: CommutatorCurve, axes: Axes, *, milestones: Milestones | None = None) -> None:
    """Energy inside each subspace over that of random directions in the same tensors.

    Shaded up to two standard deviations of the null that scatters most.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = result.inside_fraction / result.inside_null
        spread = (result.inside_null_deviation / result.inside_null)[:, ~np.isnan(ratio).all(axis=0)]
    high = 1 + 2 * np.nan_to_num(spread).max(axis=1, initial=0)
    axes.fill_between(result.steps, 1 / high, high, color=_NULL, alpha=0.2, linewidth=0)
    axes.axhline(1, color=_NULL, linestyle="--", linewidth=0.8, label="null ± 2σ")
    for k, (basis, color) in enumerate(zip(result.bases, _BASIS_COLORS, strict=True)):
        if not np.isnan(ratio[:, k]).all():
            axes.plot(result.steps, ratio[:, k], "o-", color=color, markersize=2.5, label=basis)
    log_values(axes)
    axes.set_ylabel("energy inside / matched null")
    step_axis(axes, result.steps)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, borderaxespad=0.2)
    mark_milestones(axes, milestones, labels=False)
