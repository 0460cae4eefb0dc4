"""When a spectral gate opens: from where on the ratio of curvature to ceiling stays below one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LASTING = 2
"""Consecutive snapshots below one that count as open."""


class Opening(NamedTuple):
    """One gate's opening: after step `closed` and not later than step `opened` (−1: there is no such step).

    `verdict` is `opens`, `opened before memorization`, `never closed`, `stays closed` or `unknown`, and for
    the first two ` (closes again)` where a later snapshot is closed.
    """

    verdict: str
    closed: int
    opened: int


def gate_opening(
    steps: NDArray[np.int64], ratios: NDArray[np.float64], memorized: int | None, *, lasting: int = LASTING
) -> Opening:
    """The opening of a gate with ratios (S,) of curvature to ceiling at steps (S,); NaN where not measured.

    The gate is open below one. Its opening is where the open stretch begins that holds the first `lasting`
    consecutive open snapshots at or after `memorized`: a gate that was open before memorization opened then.
    """
    known = np.isfinite(ratios)
    steps, is_open = steps[known], ratios[known] < 1
    if memorized is None or not len(steps) or steps[-1] < memorized:
        return Opening("unknown", -1, -1)
    if is_open.all():
        return Opening("never closed", -1, int(steps[0]))
    after = range(int(np.searchsorted(steps, memorized)), len(steps) - lasting + 1)
    first = next((i for i in after if is_open[i : i + lasting].all()), None)
    if first is None:
        return Opening("stays closed", int(steps[~is_open][-1]), -1)
    before = np.flatnonzero(~is_open[:first])
    begin = int(before[-1]) + 1 if len(before) else 0
    verdict = "opens" if steps[begin] >= memorized else "opened before memorization"
    again = "" if is_open[first:].all() else " (closes again)"
    return Opening(verdict + again, int(steps[begin - 1]) if begin else -1, int(steps[begin]))
