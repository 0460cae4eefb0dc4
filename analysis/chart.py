"""The data of the page's interactive chart, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .figures.style import COLORS
from .synopsis import Line, Panel

if TYPE_CHECKING:
    from ..runs.milestones import Milestones

LIMIT = 4000  # points of a line; longer ones keep the least and the greatest of every stretch


def chart(name: str, color: str, panels: tuple[Panel, ...], milestones: Milestones) -> dict[str, Any]:
    """One run for the chart: its panels with all lines, and its milestones; undefined values are None."""
    crossings = {key: getattr(milestones, key) for key in ("memorized", "generalized")}
    return {
        "name": name,
        "color": color,
        "milestones": {key: found and found._asdict() for key, found in crossings.items()},
        "panels": [_panel(panel) for panel in panels],
    }


def thinned(values: NDArray[Any], limit: int = LIMIT) -> NDArray[np.int64]:
    """Indices into values (N,) of at most `limit`: all, or the extremes of equal stretches and the ends."""
    if len(values) <= limit:
        return np.arange(len(values), dtype=np.int64)
    known = np.nan_to_num(values.astype(np.float64), nan=0.0)
    kept = {0, len(values) - 1}
    for stretch in np.array_split(np.arange(len(values)), limit // 2 - 1):
        kept |= {int(stretch[np.argmin(known[stretch])]), int(stretch[np.argmax(known[stretch])])}
    return np.array(sorted(kept), dtype=np.int64)


def _panel(panel: Panel) -> dict[str, Any]:
    spans = [span._asdict() | {"color": COLORS[span.color]} for span in panel.spans]
    return {
        "key": panel.key,
        "label": panel.label.replace("\n", " "),
        "scale": panel.scale,
        "limits": panel.limits,
        "lines": [_line(line) for line in panel.lines],
        "spans": spans,
    }


def _line(line: Line) -> dict[str, Any]:
    kept = thinned(line.values)
    bounds = {"low": line.low, "high": line.high}
    return {
        "label": line.label,
        "color": COLORS[line.color],
        "dash": line.dash,
        "marked": line.marked,
        "main": line.main,
        "steps": line.steps[kept].tolist(),
        "values": _numbers(line.values[kept]),
        "notes": [line.notes[i] for i in kept] if line.notes else [],
        "thinned": len(kept) < len(line.values),
    } | {name: None if bound is None else _numbers(bound[kept]) for name, bound in bounds.items()}


def _numbers(values: NDArray[Any]) -> list[float | None]:
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values]
