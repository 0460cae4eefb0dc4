"""Figure of the feature-lottery study: the reduced flow, the lottery, and the stages of grokking."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import COLORS, legend_above, panels, step_axis

if TYPE_CHECKING:
    from ..study import Measured

_RULES = ("earliest\nblow-up", "largest\nmagnitude", "smallest\n|D|", "chance")


def draw(measured: Measured) -> Figure:
    """Four panels: one unit's frequencies, who names the winner, features under AdamW, grokking."""
    figure, axes = panels(2, 2, height=2.2)
    plot_flow(measured, axes[0, 0])
    plot_lottery(measured, axes[0, 1])
    plot_features(measured, axes[1, 0])
    plot_grokking(measured, axes[1, 1])
    return figure


def plot_flow(measured: Measured, axes: Axes) -> None:
    """Input amplitudes of one unit's frequencies under gradient descent, and by the reduced flow (dashed)."""
    times, found, predicted = (measured.arrays[n] for n in ("times", "amplitudes", "predicted"))
    winner = int(found[-1].argmax())
    for k in range(found.shape[1]):
        color = COLORS["trajectory"] if k == winner else COLORS["null"]
        axes.plot(times, found[:, k], color=color, linewidth=1.2 if k == winner else 0.6)
        axes.plot(times, predicted[:, k], "--", color="black", linewidth=0.6)
    axes.set_yscale("log")
    axes.set_xlabel("time / predicted blow-up (dashed: reduced flow)")
    axes.set_ylabel("amplitude of each frequency")


def plot_lottery(measured: Measured, axes: Axes) -> None:
    """Share of units whose frequency each rule names at initialization, every seed a dot."""
    arms = (("descent", "gradient descent", "test", -0.12), ("adam", "AdamW", "train", 0.12))
    for name, label, color, shift in arms:
        shares = measured.arrays[name][:, :4]
        places = np.arange(4) + shift
        axes.bar(places, shares.mean(0), 0.22, color=COLORS[color], alpha=0.35, linewidth=0)
        for n, row in enumerate(shares):
            axes.plot(places, row, ".", color=COLORS[color], markersize=4, label=None if n else label)
    axes.set_xticks(range(4), _RULES, fontsize=6.5)
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("winners named at the start")
    legend_above(axes)


def plot_features(measured: Measured, axes: Axes) -> None:
    """Inverse participation and misalignment of all units under AdamW, every seed a line."""
    steps, found = measured.arrays["full_steps"], measured.arrays["full_features"]
    shown = ((0, "train", "inverse participation"), (1, "test", "mean |sin D|"))
    for column, color, label in shown:
        axes.plot(steps, found[:, :, column].T, color=COLORS[color], linewidth=0.8)
        axes.plot([], [], color=COLORS[color], label=label)
    step_axis(axes, steps)
    axes.set_ylim(0, 1)
    axes.set_ylabel("AdamW on all pairs")
    legend_above(axes)


def plot_grokking(measured: Measured, axes: Axes) -> None:
    """Train and test accuracy and inverse participation of the network that groks, test without decay."""
    arrays = measured.arrays
    curves = (
        ("grok_evaluated", "grok_train", "train", "-", "train"),
        ("grok_evaluated", "grok_test", "test", "-", "test"),
        ("still_evaluated", "still_test", "test", ":", "test, no decay"),
        ("grok_steps", "grok_participation", "norm", "-", "participation"),
    )
    for steps, values, color, dash, label in curves:
        axes.plot(arrays[steps], arrays[values].T, dash, color=COLORS[color], linewidth=0.8)
        axes.plot([], [], dash, color=COLORS[color], label=label)
    step_axis(axes, arrays["grok_evaluated"])
    axes.set_ylim(0, 1.03)
    axes.set_ylabel("grokking, p = 31")
    legend_above(axes)
