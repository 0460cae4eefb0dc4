"""Figure of the square-waves study: built networks, networks read while they learn, and the phase sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import COLORS, legend_above, panels, step_axis

if TYPE_CHECKING:
    from ..study import Measured

_KINDS = (("cosine-cosine", "train", "o"), ("square-cosine", "test", "s"), ("square-square", "norm", "^"))
_PUBLISHED = (
    (0.3653, 0.7482, 0.9793, 0.9999),
    (0.4449, 0.7968, 0.9849, 1.0),
    (0.3314, 0.6512, 0.9375, 0.9989),
)


def draw(measured: Measured) -> Figure:
    """Three panels: accuracy of built networks, of ideal networks read along training, the phase sum."""
    figure, axes = panels(1, 3, height=2.3)
    plot_construction(measured, axes[0, 0])
    plot_extraction(measured, axes[0, 1])
    plot_phase_sum(measured, axes[0, 2])
    return figure


def plot_construction(measured: Measured, axes: Axes) -> None:
    """Accuracy of networks built from random phases over their size; circles are the published table."""
    units, built = measured.arrays["units"], measured.arrays["built"]
    for n, (kind, color, marker) in enumerate(_KINDS):
        mean, spread = built[..., n].mean(1), built[..., n].std(1)
        axes.errorbar(
            units, mean, spread, color=COLORS[color], marker=marker, markersize=2.5, linewidth=0.9, label=kind
        )
        axes.plot(
            units, _PUBLISHED[n], "o", color="black", markersize=7, markeredgewidth=0.6, fillstyle="none"
        )
    axes.set_xscale("log")
    axes.set_xticks(units, [str(number) for number in units])
    axes.minorticks_off()
    axes.set_xlabel("hidden units (circles: published)")
    axes.set_ylabel("accuracy of built networks")
    legend_above(axes, columns=1)


def plot_extraction(measured: Measured, axes: Axes) -> None:
    """Test accuracy of square-cosine networks from the weights along training, and of the networks."""
    arrays = measured.arrays
    seen = set()
    for noise, steps, ideal, real in zip(
        arrays["noise"], arrays["steps"], arrays["ideal"], arrays["real"], strict=True
    ):
        name, color = _arm(float(noise))
        label = None if name in seen else name
        seen.add(name)
        axes.plot(steps, ideal, color=color, linewidth=0.8, alpha=0.8, label=label)
        axes.plot(steps, real, ":", color=color, linewidth=0.9, alpha=0.8)
    step_axis(axes, np.unique(arrays["steps"]))
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("test accuracy, read waves")
    axes.annotate("dotted: the network itself", (0.03, 0.9), xycoords="axes fraction", fontsize=6.5)
    legend_above(axes, columns=1)


def plot_phase_sum(measured: Measured, axes: Axes) -> None:
    """Mean cosine of output phase minus sum of input phases over all units, each run a line."""
    arrays = measured.arrays
    for noise, values in zip(arrays["noise"], arrays["agreement"], strict=True):
        axes.plot(range(3), values, ".-", color=_arm(float(noise))[1], linewidth=0.8, alpha=0.8)
    axes.axhline(0, color=COLORS["null"], linewidth=0.6)
    axes.set_xticks(range(3), ["start", "saturation", "end"])
    axes.set_xlim(-0.2, 2.2)
    axes.set_ylim(-0.35, 1.05)
    axes.set_ylabel(r"mean $\cos(\phi_{out} - \phi_a - \phi_b)$")


def _arm(noise: float) -> tuple[str, str]:
    if noise > 0.9:
        return "random labels", COLORS["null"]
    color = COLORS["train"] if noise == 0 else COLORS["test"]
    return ("clean labels" if noise == 0 else "noisy labels"), color
