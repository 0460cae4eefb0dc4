"""Figure of the ridge study: exact losses, times against their bounds, and the networks beyond."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..studies import _ridge_models as models
from ..studies import ridge_grokking as study
from ..study import Measured
from .style import COLORS, legend_above, log_values, panels

Array = NDArray[np.float64]


def draw(measured: Measured) -> Figure:
    """Losses at weak and strong decay; t1 and t2 over λ, ν² and n; random features; two-layer network."""
    found = measured.arrays
    variance, features, network = found["variance"], found["features"], found["network"]
    figure, axes = panels(2, 3, height=2.3)
    _losses(axes[0, 0], found["curve_steps"], found["curve_train"], found["curve_population"])
    ridge = found["ridge"][:, : len(study.RIDGES)]
    _times(axes[0, 1], study.RIDGES, ridge[:, :, 0], ridge[:, :, 1], "weight decay λ")
    axes[0, 1].plot(study.RIDGES, ridge[:, :, 2].mean(0), ":", color=COLORS["train"], label="bound on t₁")
    axes[0, 1].plot(study.RIDGES, ridge[:, :, 3].mean(0), ":", color=COLORS["test"], label="bound on t₂")
    _times(axes[0, 2], study.VARIANCES, variance[:, :, 0], variance[:, :, 1], "initial variance ν²")
    _samples(axes[1, 0], found["samples"])
    mapped = "weight decay λ (ReLU features)"
    _times(axes[1, 1], models.FEATURE_RIDGES, features[:, :, 0], features[:, :, 1], mapped)
    strengths = found["network_ridge"].tolist()
    _times(axes[1, 2], strengths, network[:, :, 0], network[:, :, 1], "weight decay λ (two layers)")
    for place in axes.ravel()[1:]:
        legend_above(place, fontsize=6)
    axes[0, 0].legend(loc="lower left", fontsize=6)
    return figure


def _losses(axes: Axes, steps: Array, train: Array, population: Array) -> None:
    for row, dash in enumerate(("-", ":")):
        axes.plot(steps, train[row], dash, color=COLORS["train"], label="" if row else "train")
        axes.plot(steps, population[row], dash, color=COLORS["test"], label="" if row else "population")
    axes.plot([], [], "-", color="black", label="λ = 1e-5")
    axes.plot([], [], ":", color="black", label="λ = .1")
    axes.axhline(0.01, color=COLORS["null"], linewidth=0.6, linestyle="--")
    axes.set(xlabel="step", ylabel="loss", ylim=(1e-6, 3))
    log_values(axes)
    log_values(axes, which="x")


def _times(axes: Axes, x: Sequence[float], memorized: Array, generalized: Array, label: str) -> None:
    """Mean times with one faint line for each draw."""
    for values, color, name in ((memorized, "train", "t₁"), (generalized, "test", "t₂")):
        axes.plot(x, values.T, color=COLORS[color], linewidth=0.4, alpha=0.3)
        axes.plot(x, values.mean(0), "o-", color=COLORS[color], markersize=3, label=name)
    axes.set(xlabel=label, ylabel="steps")
    log_values(axes)
    log_values(axes, which="x", decades=1.5)


def _samples(axes: Axes, samples: Array) -> None:
    """2ηλt₂ against ln(1 − n/m), beside the line of slope one through the first point."""
    share = np.log1p(-np.array(study.SAMPLES) / models.Setting().features)
    scaled = 2 * models.Setting().ridge * samples[:, :, 1]
    axes.plot(share, scaled.T, "o", color=COLORS["test"], markersize=2, alpha=0.3)
    axes.plot(share, scaled.mean(0), "o-", color=COLORS["test"], markersize=3, label="exact")
    line = scaled.mean(0)[0] + share - share[0]
    axes.plot(share, line, "--", color=COLORS["null"], label="slope 1 (equation 8)")
    axes.set(xlabel="ln(1 − n/m)", ylabel="2ηλ t₂")
