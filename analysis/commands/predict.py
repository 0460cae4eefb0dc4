"""`grokscope predict`: when a run will generalize, from nothing later than its information time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ...runs.prediction import DelayPrediction, predict_run
from ...runs.store import Run
from .output import print_json


def command(run: Annotated[Path, tyro.conf.Positional], /, *, json: bool = False) -> int:
    """Predict the delay between memorization and generalization, also of a run that is still training.

    Uses nothing after the step at which memorization was confirmed, and no test metric. In JSON `memorized`
    is the step of the sustained crossing, and `memorized_crossing` its interval and confirmation.

    Args:
        run: folder of the run.
        json: print one JSON object.
    """
    prediction = predict_run(Run.open(run))
    if json:
        found = prediction.memorized
        print_json(
            prediction,
            memorized=None if found is None else found.step,
            memorized_crossing=found,
            predicted_generalization=prediction.predicted_generalization,
        )
    else:
        print(_sentence(prediction))
    return 0


def _sentence(p: DelayPrediction) -> str:
    if p.memorized is None:
        return f"no prediction yet: {p.reason}"
    head = (
        f"memorized at step {p.memorized.step} (confirmed at {p.memorized.confirmed}); verdict: {p.verdict}"
    )
    reason = f" ({p.reason})" if p.reason else ""
    if p.predicted_delay is None or p.interval is None:
        return head + reason
    low, high = (f"{bound:.0f}" for bound in p.interval)
    chance = "" if p.probability is None else f"; within the budget with probability {p.probability:.2f}"
    return (
        f"{head}{reason}\n"
        f"predicted delay {p.predicted_delay:.0f} steps, {p.coverage:.0%} interval {low} to {high}: "
        f"generalization near step {p.memorized.step + p.predicted_delay:.0f}{chance}\n"
        f"used nothing after step {p.used_until_step}"
    )
