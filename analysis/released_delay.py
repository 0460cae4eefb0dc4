"""Curves that the delay law's authors released (arXiv 2603.13331): their numbers again, and our predictors.

The folder holds full_results1.json (10 seeds of one setting), full_results2.json (weight-decay sweep) and
full_results9.json (multiplication) of github.com/ClevixLab/grokking-norm-separation. Times are the
authors' own: first logged step at which an accuracy is at least 0.99.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..geometry.norm_law import LocalRate, local_rate
from ..runs.delay_model import DelayModel, load_baselines, load_models
from ..runs.evidence import Evidence, Setting
from ..runs.milestones import Crossing
from ..runs.predictors import SUCCESSOR, InverseDecay, LocalRateLaw, LogRatio, published

FloatArray = NDArray[np.float64]
FILES = {
    "one setting": "full_results1.json",
    "decay sweep": "full_results2.json",
    "mul": "full_results9.json",
}


@dataclass(frozen=True)
class ReleasedScore:
    """Errors of a predictor on one released file, over the n runs that generalized after information time."""

    data: str
    predictor: str
    n: int
    undefined: int
    mape: float
    mean_log_error: float
    bias: float


def norm_separation(directory: str | Path) -> dict[str, Any]:
    """The published numbers recomputed from the released curves, and every predictor's score on them.

    `published arithmetic` is ln(V_mem/V_final)/(2ηλ), the only rate that gives the paper's own figures (its
    text says otherwise); it and `fitted rate` see the run's end. Ours use the entry at memorization and one
    to each side of it, so their information time is one logged interval after memorization.

    Raises:
        ValueError: a file is missing.
    """
    runs = {name: _read(Path(directory) / file) for name, file in FILES.items()}
    model = load_models()[-1]  # nothing but norm and accuracy was released
    table = [row for name, found in runs.items() for row in _scores(name, found, model)]
    one, sweep = runs["one setting"], runs["decay sweep"]
    return {
        "published": {
            "mean delay": float(np.mean([_delay(run) for run in one])),
            "mean T_escape by theory": float(np.mean([_published(run) for run in one])),
            "mape, published arithmetic": _mape([_published(run) for run in one], one),
            "mape, fitted rate": _mape([_fitted(run) for run in one], one),
            "mape, nominal rate": _mape([2 * _published(run) for run in one], one),
            "mape, mean of the other seeds": _mape(_others(one), one),
            "slope of T_grok on 1/lambda": _slope(sweep)[0],
            "intercept": _slope(sweep)[1],
        },
        "violations of V_mem > V_final": [_violations(name, found) for name, found in runs.items()],
        "scores": table,
    }


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"released_data={str(path)!r} can't be read: {error.strerror}; give the folder with {path.name}"
        ) from None
    runs: list[dict[str, Any]] = found["runs"] if isinstance(found, dict) else found
    return [{"eta": 1e-3, "lam": 1.0} | run for run in runs]


def _grokked(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [run for run in runs if run["T_grok"] and run["T_mem"] and _delay(run) > 0]


def _delay(run: dict[str, Any]) -> float:
    return float(run["T_grok"] - run["T_mem"])


def _published(run: dict[str, Any]) -> float:
    ratio = log(run["V_at_mem"] / run["V_final"])
    return ratio / (2 * run["eta"] * run["lam"]) if ratio > 0 else nan


def _fitted(run: dict[str, Any]) -> float:
    return log(run["V_at_mem"] / run["V_final"]) / (1 - float(run["fit"]["rate_fit"]))


def _violations(name: str, runs: Sequence[dict[str, Any]]) -> str:
    kept = _grokked(runs)
    return f"{name}: {sum(run['V_final'] >= run['V_at_mem'] for run in kept)} of {len(kept)}"


def _others(runs: Sequence[dict[str, Any]]) -> list[float]:
    """For each run the mean delay of the other runs of the same p and λ."""
    keys = [(run["p"], run["lam"]) for run in runs]
    delays = [_delay(run) for run in runs]
    peers = [[d for j, d in enumerate(delays) if j != i and keys[j] == keys[i]] for i in range(len(runs))]
    return [float(np.mean(found)) if found else nan for found in peers]


def _mape(predicted: Sequence[float], runs: Sequence[dict[str, Any]]) -> float:
    actual = np.array([_delay(run) for run in runs])
    return float(np.nanmean(np.abs(np.array(predicted) / actual - 1)))


def _slope(runs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Slope and intercept of T_grok on 1/λ over the decays that the authors kept (0.1 to 1)."""
    kept = [run for run in _grokked(runs) if 0.1 <= run["lam"] <= 1]
    slope, intercept = np.polyfit([1 / run["lam"] for run in kept], [run["T_grok"] for run in kept], 1)
    return float(slope), float(intercept)


def _scores(name: str, runs: Sequence[dict[str, Any]], model: DelayModel) -> list[ReleasedScore]:
    known = [(run, _evidence(run)) for run in _grokked(runs)]
    kept = [(run, e) for run, e in known if run["T_grok"] > e.used_until_step]
    fitted = load_baselines()
    rules: dict[str, InverseDecay | LogRatio | LocalRateLaw] = {
        "a/(lr wd)": InverseDecay(**fitted["inverse_decay"]),
        "a/(lr wd), task": InverseDecay(**fitted["inverse_decay_task"]),
        "log ratio": LogRatio(**fitted["log_ratio"]),
        "log ratio, successor": SUCCESSOR,
        "local rate": LocalRateLaw(**fitted["local_rate"]),
    }
    predicted = {"model": [float(np.exp(model.log_delay(e.features()))) for _, e in kept]}
    predicted |= {label: [rule.predict(e) for _, e in kept] for label, rule in rules.items()}
    predicted["mean of the other seeds"] = _others([run for run, _ in kept])
    predicted["published (leaky)"] = [published(e, run["V_final"]) for run, e in kept]
    actual = np.array([_delay(run) for run, _ in kept])
    return [_row(name, label, np.array(values), actual) for label, values in predicted.items()]


def _row(name: str, label: str, predicted: FloatArray, actual: FloatArray) -> ReleasedScore:
    defined = np.isfinite(predicted)
    logs = np.log(predicted[defined] / actual[defined])
    if not len(logs):
        return ReleasedScore(name, label, len(actual), len(actual), nan, nan, nan)
    return ReleasedScore(
        data=name,
        predictor=label,
        n=len(actual),
        undefined=int((~defined).sum()),
        mape=float(np.abs(np.expm1(logs)).mean()),
        mean_log_error=float(np.abs(logs).mean()),
        bias=float(logs.mean()),
    )


def _evidence(run: dict[str, Any]) -> Evidence:
    """What was known one logged interval after memorization; without curves, at memorization itself."""
    p, memorized = int(run["p"]), int(run["T_mem"])
    setting = Setting(run["eta"], run["lam"], int(0.5 * p * p), p * p, 257 * p + 198_784)
    if "logs" not in run:
        rate = LocalRate(nan, nan, nan, 0)
        crossing = Crossing(None, memorized, memorized)
        return Evidence(setting, crossing, nan, run["V_at_mem"], run["V_at_mem"], rate)
    steps, norms = np.array(run["logs"]["steps"]), np.array(run["logs"]["V_t"])
    at = int(np.searchsorted(steps, memorized))
    around = slice(max(at - 1, 0), at + 2)
    crossing = Crossing(int(steps[max(at - 1, 0)]), memorized, int(steps[min(at + 1, len(steps) - 1)]))
    rate = local_rate(steps[around], norms[around])
    return Evidence(setting, crossing, float(norms[0]), float(norms[at]), float(norms[around][-1]), rate)
