"""`grokscope analyze delay`: the delay law of a run, predicted against actual."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ...runs.store import Run
from ..delay import DelayCurve, delay_along
from ..result import save
from .output import print_json, print_table


def command(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    name: str | None = None,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Compare the delay of a run with every predictor, and its squared norm with the law.

    The post-mortem: it uses the whole run. `grokscope predict` is the forecast.

    Args:
        run: folder of the run.
        name: name of the result, to keep several.
        out: folder of the result; by default the run's.
        json: print one JSON object.
        quiet: accepted for uniformity; this analysis takes no time.
    """
    opened = Run.open(run)
    curve = delay_along(opened)
    path = save(curve, opened, name=name, directory=out)
    if json:
        print_json(curve)
    else:
        _show(curve, path)
    return 0


def _show(curve: DelayCurve, path: Path) -> None:
    reached = (
        f"generalized {curve.generalized}" if curve.generalized is not None else f"not by {curve.budget}"
    )
    low, high = curve.interval
    print(
        f"memorized {curve.memorized}, {reached}: delay {curve.delay}\n"
        f"squared norm {curve.norm_memorized:.4g} at memorization, {curve.norm_generalized:.4g} at "
        f"generalization, {curve.norm_final:.4g} at the end; fell: {'yes' if curve.separated else 'no'}\n"
        f"log-rate a step: decay alone {curve.decay_rate:.3g}, local {curve.local_rate:.3g} "
        f"[{curve.local_rate_low:.3g}, {curve.local_rate_high:.3g}], mean {curve.mean_rate:.3g} "
        f"(kappa {curve.kappa:.3g})\n"
        f"verdict: {curve.verdict} {curve.reason}\n"
        f"{curve.coverage:.0%} interval {low:.0f} to {high:.0f}; saved as {path}"
    )
    print_table(
        {
            "predictor": curve.predictors,
            "predicted": list(curve.predicted),
            "ln(predicted/actual)": list(curve.errors),
        }
    )
