"""All figures of a run, as pictures with words for those who don't see them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..found import Found
from . import synoptic, training

if TYPE_CHECKING:
    from ...runs.store import Run


def gallery(run: Run, results: Found) -> Iterator[tuple[str, Figure]]:
    """(file name without ending, figure) for all there is to draw of a run."""
    yield from training.draw(run).items()
    yield from synoptic.draw(run, results.by_kind).items()
    for (kind, name), result in results.results.items():
        if find_spec(f".{kind}", __package__) is None:
            continue
        drawn: dict[str, Figure] = import_module(f".{kind}", __package__).draw(run, result)
        suffix = "" if name is None else f"-{name}"
        yield from ((f"{stem}{suffix}", figure) for stem, figure in drawn.items())


def png(figure: Figure, *, dpi: int = 180) -> bytes:
    """The figure as the bytes of a PNG file."""
    image = BytesIO()
    figure.savefig(image, format="png", dpi=dpi, metadata={"Software": None})
    return image.getvalue()


def alternative(figure: Figure) -> str:
    """What a figure shows, in words: per axes what is against what, and where each named line goes."""
    return " ".join(filter(None, (_said(axes) for axes in figure.axes)))


def _said(axes: Axes) -> str:
    up, across = (" ".join(text.split()) for text in (axes.get_ylabel(), axes.get_xlabel()))
    if hasattr(axes, "_colorbar"):
        return f"Colors: {up}."
    if not up:  # rows with names
        rows = [label.get_text() for label in axes.get_yticklabels() if label.get_text()]
        up, across = f"{len(rows)} rows ({', '.join(rows)})", across or axes.get_title()
    lines = [f"{line.get_label()} from {ends}" for line in axes.lines if (ends := _ends(line))]
    shown = f"{up} against {across}" if across else up
    return f"{shown}: {', '.join(lines)}." if lines else f"{shown}."


def _ends(line: object) -> str:
    """The first and the last value of a line that has a name."""
    values = np.asarray(line.get_ydata(), dtype=np.float64)  # type: ignore[attr-defined]
    values = values[np.isfinite(values)]
    if str(line.get_label()).startswith("_") or len(values) < 3:  # type: ignore[attr-defined]
        return ""
    return f"{values[0]:.3g} to {values[-1]:.3g}"
