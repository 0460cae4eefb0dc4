"""Figure of the delay-law study: one norm against the law, its scalings, and what the norms rest on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..study import Measured
from .style import COLORS, legend_above, log_values, panels

Array = NDArray[np.float64]
Arrays = Mapping[str, Array]
_SWEEPS = {"λ": COLORS["train"], "η": COLORS["test"], "p": COLORS["norm"], "embedding": COLORS["commutator"]}


def draw(measured: Measured) -> Figure:
    """V(t) of one run; delay over 1/λ, 1/η and the law; V_mem over V_0; V at and after generalization."""
    found = measured.arrays
    figure, axes = panels(2, 3, height=2.3)
    _example(axes[0, 0], found)
    _delays(axes[0, 1], 1 / found["λ/weight_decay"], found["λ/delay"], "1/λ", COLORS["train"])
    _delays(axes[0, 2], 1 / found["η/lr"], found["η/delay"], "1/η", COLORS["test"])
    _law(axes[1, 0], found)
    _origin(axes[1, 1], found)
    _after(axes[1, 2], found)
    for place in axes.ravel():
        legend_above(place, fontsize=6)
    return figure


def _example(axes: Axes, found: Arrays) -> None:
    """The squared norm of a run, and what decay alone would make of it from memorization on."""
    steps, norm = found["steps"], found["norm"]
    memorized, generalized, decay = found["example"]
    later = steps >= memorized
    alone = np.interp(memorized, steps, norm) * np.exp(-decay * (steps[later] - memorized))
    axes.plot(steps, norm, color=COLORS["norm"], label="V(t)")
    axes.plot(steps[later], alone, "--", color=COLORS["null"], label="decay alone, 2ηλ")
    for at, name in ((memorized, "memorized"), (generalized, "generalized")):
        axes.axvline(at, color=COLORS[name], linewidth=0.7, linestyle=":", label=name)
    axes.set(xlabel="step", ylabel="squared norm V")
    log_values(axes)


def _delays(axes: Axes, x: Array, delays: Array, label: str, color: str) -> None:
    """Every run, and the proportional law through the mean of ln T."""
    axes.plot(x.ravel(), delays.ravel(), "o", color=color, markersize=2.5, label="runs")
    line = np.array([x.min(), x.max()])
    constant = np.exp(np.nanmean(np.log(np.where(delays > 0, delays, np.nan) / x)))
    axes.plot(line, constant * line, "--", color=COLORS["null"], label="proportional")
    axes.set(xlabel=label, ylabel="delay in steps")
    log_values(axes)
    log_values(axes, which="x")


def _law(axes: Axes, found: Arrays) -> None:
    for name, color in _SWEEPS.items():
        law, delay = found[f"{name}/law"].ravel(), found[f"{name}/delay"].ravel()
        axes.plot(law, delay, "o", color=color, markersize=2.5, label=f"over {name}")
    ends = np.array([np.nanmin(found["λ/law"]), np.nanmax(found["λ/law"])])
    axes.plot(ends, ends, color="black", linewidth=0.6)
    axes.set(xlabel="ln(V$_{mem}$/V$_{end}$)/2ηλ", ylabel="delay in steps")
    log_values(axes)
    log_values(axes, which="x")


def _origin(axes: Axes, found: Arrays) -> None:
    """V at memorization over V at step 0: equal fall is a line of slope one."""
    start, memorized = found["embedding/start"], found["embedding/norm_memorized"]
    axes.plot(start.ravel(), memorized.ravel(), "o", color=_SWEEPS["embedding"], markersize=2.5, label="runs")
    line = np.array([start.min(), start.max()])
    axes.plot(line, np.nanmean(memorized / start) * line, "--", color=COLORS["null"], label="slope 1")
    axes.set(xlabel="V at step 0", ylabel="V at memorization")
    log_values(axes)
    log_values(axes, which="x")


def _after(axes: Axes, found: Arrays) -> None:
    """V of every run of the λ sweep at memorization, at generalization, and at the end."""
    names = ("norm_memorized", "norm_generalized", "norm_end")
    values = np.array([found[f"λ/{name}"].ravel() for name in names])
    for i, cell in enumerate(found["λ/weight_decay"]):
        rows = slice(i * cell.size, (i + 1) * cell.size)
        axes.plot(range(3), values[:, rows], "o-", color=f"C{i}", markersize=2.5, linewidth=0.5)
        axes.plot([], [], "o-", color=f"C{i}", markersize=2.5, linewidth=0.5, label=f"λ = {cell[0]:g}")
    axes.set_xticks(range(3), ("memorized", "generalized", "end"))
    axes.set(xlim=(-0.3, 2.3), ylabel="squared norm V")
    log_values(axes)
