"""What happened in a run, as lines over one time axis: the data of the synoptic figure and of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..runs.milestones import Milestones
    from ..runs.store import Run
    from .commutator import CommutatorCurve
    from .delay import DelayCurve
    from .llc import LLCCurve
    from .spectrum import SpectrumCurve
    from .trajectory import TrajectoryCurve

Array = NDArray[np.float64]
Scale = Literal["linear", "log", "symlog"]
Dash = Literal["solid", "dashed", "dotted"]
Align = Literal["step", "memorized", "generalized", "milestones"]
ALIGNED = {
    "step": "optimizer step",
    "memorized": "steps since memorization",
    "generalized": "steps since generalization",
    "milestones": "0 memorized, 1 generalized",
}
_LONG = 24  # characters of a name that a legend has room for


class Line(NamedTuple):
    """Values over steps. `low` and `high` bound each value; `notes` is a word on each, such as a verdict."""

    label: str
    color: str  # a name in figures.style.COLORS
    steps: NDArray[np.int64]  # (N,)
    values: Array  # (N,) nan where undefined
    dash: Dash = "solid"
    marked: bool = False  # few points: each has a marker
    low: Array | None = None  # (N,)
    high: Array | None = None  # (N,)
    notes: tuple[str, ...] = ()  # N, or none
    main: bool = False  # stands for the panel when several runs are compared


class Span(NamedTuple):
    """A stretch of steps that is no value, such as a predicted interval."""

    label: str
    color: str
    low: float
    high: float


class Panel(NamedTuple):
    """Lines that share a vertical axis."""

    key: str
    label: str
    scale: Scale
    lines: tuple[Line, ...]
    limits: tuple[float, float] | None = None
    spans: tuple[Span, ...] = ()


def synopsis(run: Run, results: Mapping[str, Any]) -> tuple[Panel, ...]:
    """The panels of a run, of those metrics and results (by kind) that are there, from top to bottom.

    Accuracy and loss; squared norm with the decay law and the predicted interval; commutator defect in
    curvature units with its rounding floor; top and bottom eigenvalues with their ceilings; learning
    coefficient with verdicts; explained variance against a random walk. Costs no gradients.
    """
    panels = [_accuracy(run), _loss(run), _norm(run, results.get("delay"))]
    makers: dict[str, Callable[[Any], Panel]] = {
        "commutator": _commutator,
        "spectrum": _spectrum,
        "llc": _llc,
        "trajectory": _trajectory,
    }
    panels += [maker(results[kind]) for kind, maker in makers.items() if kind in results]
    return tuple(panel for panel in panels if panel is not None)


def aligned(steps: NDArray[Any], milestones: Milestones, align: Align) -> Array | None:
    """Steps (N,) in the time that `align` names: since a milestone, or τ = (t − T_mem)/(T_gen − T_mem).

    None for a run that did not reach the milestone (or reached both at once).
    """
    if align == "step":
        return steps.astype(np.float64)
    memorized, generalized = milestones.memorized, milestones.generalized
    if align == "milestones":
        if memorized is None or not milestones.delay:
            return None
        return np.asarray((steps - memorized.step) / milestones.delay, dtype=np.float64)
    crossing = memorized if align == "memorized" else generalized
    return None if crossing is None else (steps - crossing.step).astype(np.float64)


def _accuracy(run: Run) -> Panel | None:
    splits = [split for split in ("train", "test") if f"{split}_correct" in run.metrics]
    lines = []
    for split in splits:
        series = run.metrics[f"{split}_correct"]
        share = series.value / run.provenance[f"{split}_total"]
        lines.append(Line(split, split, series.step, share, main=split == splits[-1]))
    return Panel("accuracy", "accuracy", "linear", tuple(lines), limits=(-0.03, 1.03)) if lines else None


def _loss(run: Run) -> Panel | None:
    splits = [split for split in ("train", "test") if f"{split}_loss" in run.metrics]
    found = [(split, run.metrics[f"{split}_loss"]) for split in splits]
    lines = [Line(n, n, s.step, np.asarray(s.value, float), main=n == splits[-1]) for n, s in found]
    return Panel("loss", "loss", "log", tuple(lines)) if lines else None


def _norm(run: Run, delay: DelayCurve | None) -> Panel | None:
    if "squared_norm" not in run.metrics:
        return None
    steps, values = run.metrics["squared_norm"]
    lines = [Line("‖θ‖²", "norm", steps, np.asarray(values, float), main=True)]
    spans: tuple[Span, ...] = ()
    if delay is not None:
        shown = delay.law > np.nanmin(values) / 5
        lines.append(Line("decay alone", "null", delay.norm_steps[shown], delay.law[shown], "dashed"))
        if delay.memorized is not None and np.isfinite(delay.interval).all():
            low, high = delay.memorized + delay.interval
            label = f"predicted, {100 * delay.coverage:.0f} % ({delay.verdict})"
            spans = (Span(label, "delay", float(low), float(high)),)
    return Panel("squared_norm", "squared\nnorm", "log", tuple(lines), spans=spans)


def _commutator(curve: CommutatorCurve) -> Panel:
    low, high = curve.curvature_quartiles.T
    floor = curve.noise_floor / curve.gradient_norm
    notes = tuple(
        "float32 rounding above" if f > c else "" for f, c in zip(floor, curve.curvature, strict=True)
    )
    lines = (
        Line("defect", "commutator", curve.steps, curve.curvature, "solid", True, low, high, notes, True),
        Line("rounding in float32", "null", curve.steps, floor, "dotted"),
        Line("‖Hg‖/‖g‖", "gradient", curve.steps, curve.curvature_proper, "dashed"),
    )
    return Panel("commutator", f"defect C₁\nbatch {curve.batch_size}", "log", lines)


def _spectrum(curve: SpectrumCurve) -> Panel:
    """Both ends of the spectrum, and what the optimizer's stability edge is an edge of."""
    count = curve.largest.shape[1]
    doubts = [_doubts(curve.converged[:, k], curve.extremal[:, k]) for k in (0, count)]
    top, bottom = curve.largest[:, 0], curve.smallest[:, 0]
    lines = [
        Line("top, λ(H)", "spectrum", curve.steps, top, "solid", True, notes=doubts[0], main=True),
        Line("bottom, λ(H)", "spectrum", curve.steps, bottom, "dashed", True, notes=doubts[1]),
    ]
    if np.isfinite(curve.preconditioned).any():
        doubt = _doubts(curve.preconditioned_extremal, curve.preconditioned_extremal)
        lines.append(
            Line("top, λ(P⁻¹H)", "gradient", curve.steps, curve.preconditioned, "solid", True, notes=doubt)
        )
    if np.isfinite(curve.edge):
        lines.append(Line("stability edge", "null", curve.steps, np.full(len(top), curve.edge), "dotted"))
    return Panel("spectrum", "eigenvalues", "symlog", tuple(lines))


def _doubts(converged: NDArray[Any], extremal: NDArray[Any]) -> tuple[str, ...]:
    """What is not proven of each eigenvalue."""
    return tuple(
        "" if c and e else "perhaps not the end" if c else "not converged"
        for c, e in zip(converged, extremal, strict=True)
    )


def _llc(curve: LLCCurve) -> Panel:
    """The published and the tilted estimate with two standard errors, and what the Hessian explains."""
    doubts = tuple("" if verdict == "ok" else str(verdict) for verdict in curve.verdict)
    reach = 2 * curve.tilted_stderr
    low, high = curve.tilted - reach, curve.tilted + reach
    lines = (
        Line("tilted λ̂", "llc", curve.steps, curve.tilted, "solid", True, low, high, doubts, True),
        Line("published λ̂", "llc", curve.steps, curve.llc, "dotted", True, notes=doubts),
        Line("quadratic", "null", curve.steps, curve.quadratic, "dashed"),
    )
    return Panel("llc", "learning\ncoefficient", _signed_scale(lines), lines)


def _signed_scale(lines: Sequence[Line]) -> Scale:
    """Linear, or signed logarithmic where some values are far larger than most."""
    values = np.abs(np.concatenate([line.values for line in lines]))
    values = values[np.isfinite(values) & (values > 0)]
    return "symlog" if values.size and values.max() > 30 * np.median(values) else "linear"


def _trajectory(curve: TrajectoryCurve) -> Panel:
    lines = (
        Line(
            "first component",
            "trajectory",
            curve.window_steps,
            curve.window_explained,
            marked=True,
            main=True,
        ),
        Line("random walk", "null", curve.window_steps, curve.window_null, "dashed"),
    )
    return Panel("trajectory", "explained\nvariance", "linear", lines, limits=(0, 1.03))


def hidden(panel: Panel) -> int:
    """How many values a logarithmic panel can't show: zeros and negative ones."""
    if panel.scale != "log":
        return 0
    return sum(int((line.values <= 0).sum()) for line in panel.lines)


def names_of(paths: Sequence[Any]) -> list[str]:
    """A short, distinct name per run: the folder's, with as many parents as it takes.

    Of long names, such as a sweep gives, only the parts between underscores in which they differ.

    Raises:
        ValueError: a run is named twice.
    """
    resolved = [path.resolve().parts for path in paths]
    if len(set(resolved)) < len(resolved):
        raise ValueError(f"runs={[str(path) for path in paths]} names a run twice; give each once")
    depth = 1
    while len({parts[-depth:] for parts in resolved}) < len(resolved):
        depth += 1
    names = ["/".join(parts[-depth:]) for parts in resolved]
    return _differing(names) if max(map(len, names), default=0) > _LONG else names


def _differing(names: Sequence[str]) -> list[str]:
    """The parts in which names differ; the names themselves where that leaves any two the same."""
    split = [name.split("_") for name in names]
    if len({len(parts) for parts in split}) > 1:
        return list(names)
    kept = [i for i, parts in enumerate(zip(*split, strict=True)) if len(set(parts)) > 1]
    short = ["_".join(parts[i] for i in kept) for parts in split]
    return short if len(set(short)) == len(short) and all(short) else list(names)
