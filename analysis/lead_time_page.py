"""Lead times over runs as one page of markdown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .lead_time import THRESHOLD, Course, LeadTime
from .onset import CALIBRATED

_FACTORS = {name.replace("_", " "): factor for name, factor in CALIBRATED.items()}


def page(found: Sequence[LeadTime], courses: Sequence[Course]) -> str:
    """The page: one row per onset rule, trivial events last."""
    t = np.array([one.generalized for one in courses])
    cells = len({one.cell for one in courses})
    when = f", at steps {np.nanmin(t):.0f} to {np.nanmax(t):.0f}" if np.isfinite(t).any() else ""
    lines = [
        "# Lead times: does an early onset of the commutator tell when a run will generalize?",
        "",
        "Written by these commands; don't edit it by hand.",
        "",
        "    grokscope sweep docs/configs/sweeps/lead_time.toml --out out/lead_time",
        "    grokscope lead out/lead_time --out docs/lead_time.md",
        "",
        f"{len(courses)} runs in {cells} cells (learning rates), {int(np.isfinite(t).sum())} reach test "
        f"accuracy {THRESHOLD:g}{when}.",
        "",
        "**Power law** lead = C tᵅ over all runs that lead, as published (Xu 2026: α 1.27 ± .03, R² .97), "
        "beside the same fit for leads t − c with one constant onset c: its exponent exceeds 1 by algebra. "
        "**Onset on t**: slope of log onset on log t over all runs, 0 for a constant one. **Within cells**: "
        "censored regression with an intercept per learning rate, with its 95 % interval, beside the slopes "
        "of onsets shuffled within cells; it is what an onset knows beyond the learning rate.",
        "",
        "An exact signal sets in when it exceeds its first value so many times for 100 steps as at most one "
        f"in 20 runs on random labels does ({', '.join(f'{k} {v:.3g}' for k, v in _FACTORS.items())}; "
        "`grokscope lead out/early_warning_control --calibration`). The published rule, ten times the median "
        "of the first three float32 values and above 20, has no such bound.",
        "",
        "| onset | leads | α | R² | α of a constant onset | its R² | onset on t | within cells | shuffled |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(one) for one in found),
        "",
    ]
    return "\n".join(lines)


def _row(one: LeadTime) -> str:
    law, within = one.law, one.within
    fit = ["–"] * 5
    if law is not None:
        numbers = (law.exponent, law.r_squared, law.null_exponent, law.null_r_squared, law.onset_slope)
        fit = [f"{number:.2f}" for number in numbers]
    inside, shuffled = "–", "–"
    if within is not None:
        inside = f"{within.slope:+.2f} [{within.low:+.2f}, {within.high:+.2f}]"
        shuffled = f"[{one.shuffled[0]:+.2f}, {one.shuffled[1]:+.2f}]"
    name = f"{one.rule.replace('_', ' ')}{' (trivial)' if one.trivial else ''}"
    return f"| {' | '.join([name, f'{one.leads} of {one.runs}', *fit, inside, shuffled])} |"
