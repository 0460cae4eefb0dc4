"""The look of all figures: sizes, colors, the step axis, milestones, saving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import blended_transform_factory
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ...runs.milestones import Milestones

Width = Literal["single", "double"]

# Okabe and Ito (2008): distinguishable with every common color blindness.
COLORS = {
    "train": "#0072B2",
    "test": "#D55E00",
    "norm": "#009E73",
    "trajectory": "#0072B2",
    "commutator": "#CC79A7",
    "spectrum": "#D55E00",
    "llc": "#009E73",
    "gradient": "#E69F00",
    "delay": "#56B4E9",
    "null": "#7F7F7F",
    "memorized": "#595959",
    "generalized": "#000000",
}
# Tol's muted scheme (2021) for parameter groups: none of them is a color of COLORS.
GROUP_COLORS = {
    "embedding": "#332288",
    "attention": "#CC6677",
    "feedforward": "#44AA99",
    "norm": "#999933",
    "head": "#882255",
}
_MORE_COLORS = ("#88CCEE", "#DDCC77", "#117733", "#AA4499")
# No hue: what is measured has all of them. Dash and marker tell the two apart in gray and in print.
MILESTONE_MARKS: dict[str, tuple[str, str]] = {"memorized": (":", "none"), "generalized": ("--", "full")}
WIDTHS: dict[Width, float] = {"single": 3.4, "double": 7.0}  # inches, a journal's one and two columns
_width: ContextVar[Width] = ContextVar("width", default="single")


@contextmanager
def paper(width: Width = "single") -> Iterator[None]:
    """Within it, figures have the paper's style and the width of one or two columns."""
    token = _width.set(width)
    with mpl.rc_context(fname=Path(__file__).with_name("paper.mplstyle")):
        try:
            yield
        finally:
            _width.reset(token)


def panels(
    rows: int = 1, columns: int = 1, *, height: float = 2.2, **options: Any
) -> tuple[Figure, NDArray[Any]]:
    """A figure of the current width with axes (rows, columns); `height` in inches is that of one row.

    `options` go to `Figure.subplots` (sharex, ...). Needs no pyplot, so figures close by themselves.
    """
    with mpl.rc_context(fname=Path(__file__).with_name("paper.mplstyle")):
        figure = Figure(figsize=(WIDTHS[_width.get()], height * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **options)


def is_wide() -> bool:
    """Whether figures now have the width of two columns."""
    return _width.get() == "double"


def row_or_column(count: int, *, height: float = 2.0) -> tuple[Figure, NDArray[Any]]:
    """A figure with axes (count,): below each other in one column's width, side by side in two."""
    figure, axes = panels(*((1, count) if is_wide() else (count, 1)), height=height)
    return figure, axes.ravel()


def step_axis(axes: Axes, steps: Sequence[int] | NDArray[np.int64], *, label: str = "optimizer step") -> None:
    """A logarithmic x axis from the first to the last of `steps` that shows step 0.

    It is linear up to the first step above 0 and logarithmic beyond; runs that span little are shown on a
    linear axis.
    """
    steps = np.asarray(steps)
    last, start = float(steps.max()), linear_until(steps)
    axes.set_xlabel(label)
    if last < 30 * start:
        axes.set_xlim(float(steps.min()), max(last, 1.0) * 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        return
    axes.set_xscale("symlog", linthresh=start, linscale=0.5)
    axes.set_xlim(float(steps.min()), last * 1.08)
    powers = 10.0 ** np.arange(np.log10(start), np.floor(np.log10(last)) + 1)
    axes.xaxis.set_major_locator(FixedLocator([0.0, *powers]))
    axes.xaxis.set_minor_locator(FixedLocator(np.outer(powers, np.arange(2, 10)).ravel().tolist()))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: short(step)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def log_values(axes: Axes, *, which: Literal["x", "y"] = "y", decades: float = 2.5) -> None:
    """A logarithmic axis with few labels: at 1, 2 and 5 below so many decades, else at powers of ten.

    Call it after drawing: what is drawn decides.
    """
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    narrow = np.log10(high / low) < decades
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axis.set_minor_formatter(NullFormatter())
    if narrow:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def legend_above(axes: Axes, *, columns: int = 2, **options: Any) -> None:
    """The legend above the axes, where it covers nothing; `options` go to `Axes.legend`."""
    options = {"borderaxespad": 0.2} | options
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, **options)


def linear_until(steps: NDArray[np.int64]) -> float:
    """The power of ten at or above the first step past 0: where a symlog scale should start to be one."""
    later = steps[steps > 0]
    return float(10.0 ** np.ceil(np.log10(later.min()))) if later.size else 1.0


def short(step: float) -> str:
    """A step in few characters: 0, 50, 1k, 20k, 1.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if step >= size:
            return f"{step / size:g}{letter}"
    return f"{step:g}"


def group_color(name: str, number: int) -> str:
    """The color of a parameter group; `number` decides for names that are not of our models."""
    return GROUP_COLORS.get(name, _MORE_COLORS[number % len(_MORE_COLORS)])


def mark_milestones(
    axes: Axes, milestones: Milestones | None, *, labels: bool = True, rise: float = 0.0
) -> None:
    """Memorization and generalization as bands from last-below to first-above, a line at the step.

    Open and full triangles stand for them on every figure. Their names stand above the axes at two
    heights, toward the middle, so that they neither meet nor leave the figure; `rise` points higher where
    a legend is above the axes. Call it after the limits are set.
    """
    place = blended_transform_factory(axes.transData, axes.transAxes)
    for (name, (dash, fill)), height in zip(MILESTONE_MARKS.items(), (4, 12), strict=True):
        crossing = getattr(milestones, name, None)
        if crossing is None:
            continue
        color = COLORS[name]
        axes.axvspan(crossing.below or 0, crossing.step, color=color, alpha=0.12, linewidth=0, zorder=0)
        axes.axvline(crossing.step, color=color, linewidth=0.8, linestyle=dash, zorder=0)
        (mark,) = axes.plot([crossing.step], [1.0], "v", color=color, markersize=3.5, transform=place)
        mark.set(fillstyle=fill, clip_on=False, zorder=4, markeredgewidth=0.7)
        if labels:
            across = (axes.transData + axes.transAxes.inverted()).transform((crossing.step, 1.0))[0]
            side: Literal["left", "right"] = "right" if across > 0.5 else "left"
            text = axes.annotate(
                name,
                (crossing.step, 1.0),
                xycoords=place,
                xytext=(0, height + rise),
                textcoords="offset points",
            )
            text.set(fontsize=6.5, color=color, ha=side, va="bottom")


def save_figure(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `<stem>.png` and `<stem>.pdf` (fonts embedded as TrueType, no dates); their paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".pdf")
    with mpl.rc_context(fname=Path(__file__).with_name("paper.mplstyle")):
        figure.savefig(paths[0], metadata={"Software": None})
        figure.savefig(paths[1], metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return paths
