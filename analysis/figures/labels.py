"""Where a label beside a point on a path covers neither the path nor another label."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

Array = NDArray[np.float64]
_SIDES = ((1, 1), (-1, 1), (1, -1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
_WIDTH, _HEIGHT, _GAP = 4.6, 9.0, 4.0  # points: a character and a line of 6.5 pt text, and the air around


def free_sides(path: Array, labels: Mapping[str, int], axes: Axes) -> list[tuple[int, int]]:
    """The side, (right, up) in {-1, 0, 1}, on which to write each label at its point of path (N, 2).

    It is the side whose box covers the least of the path, of boxes already taken, and of what is outside
    the axes. Call it after the limits are set.
    """
    figure = axes.get_figure()
    scale = 72 / (figure.dpi if figure is not None else 72)
    ends = axes.transData.transform(path) * scale
    dense = np.concatenate([ends[:1], *(_between(a, b) for a, b in pairwise(ends))])
    frame = np.reshape(axes.bbox.extents, (2, 2)) * scale
    taken: list[Array] = []
    sides = []
    for name, i in labels.items():
        boxes = [_box(ends[i], side, len(name)) for side in _SIDES]
        costs = [_cost(box, dense, taken, frame) for box in boxes]
        best = int(np.argmin(costs))
        taken.append(boxes[best])
        sides.append(_SIDES[best])
    return sides


def write_beside(axes: Axes, point: Array, name: str, side: tuple[int, int], **style: Any) -> None:
    """Write a name beside a point (2,), on the side that `free_sides` found."""
    across, up = side
    text = axes.annotate(name, (point[0], point[1]), xytext=(6 * across, 6 * up), textcoords="offset points")
    horizontal = "left" if across > 0 else "right" if across < 0 else "center"
    vertical = "bottom" if up > 0 else "top" if up < 0 else "center"
    text.set(fontsize=6.5, ha=horizontal, va=vertical, **style)


def _between(start: Array, end: Array) -> Array:
    """Points from start to end, at most two points of print apart."""
    count = max(1, int(np.hypot(*(end - start)) / 2))
    return start + (end - start) * (np.arange(1, count + 1)[:, None] / count)


def _box(point: Array, side: tuple[int, int], length: int) -> Array:
    """Lower left and upper right corner (2, 2) of a text beside a point."""
    size = np.array([_WIDTH * length, _HEIGHT])
    center = point + np.array(side) * (size / 2 + _GAP)
    return np.array([center - size / 2 - 1, center + size / 2 + 1])


def _cost(box: Array, path: Array, taken: list[Array], frame: Array) -> float:
    inside = np.all((path > box[0]) & (path < box[1]), axis=1).sum()
    met = sum(bool(np.all((box[0] < other[1]) & (other[0] < box[1]))) for other in taken)
    outside = np.any((box[0] < frame[0]) | (box[1] > frame[1]))
    return float(inside + 100 * met + 50 * outside)
