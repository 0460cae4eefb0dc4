"""The delay law of one finished run: what was predicted at memorization, what happened, what the norm did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, nan
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..geometry.norm_law import contraction_rate, decayed_squared_norm
from ..runs import predictors
from ..runs.calibration import curves_of
from ..runs.delay_model import DelayModel, load_baselines
from ..runs.evidence import Evidence, Setting, evidence
from ..runs.milestones import milestones
from ..runs.prediction import predict_run
from ..runs.store import Run
from .brief import brief

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class DelayCurve:
    """V(t) of a run against the law, and every predictor against the actual delay.

    norm_steps (N,), squared_norm (N,): V = ‖θ‖² as logged; law (N,): V_mem(1 − ηλ)^(2(t − T_mem)) from
    memorization on, nan before. Rates are −d ln V/dt per step: decay_rate = −2 ln(1 − ηλ); local_rate with
    its interval, at the information time; mean_rate from memorization to generalization; kappa =
    mean_rate/decay_rate. separated is whether V fell from memorization to generalization, which the law
    calls necessary. predicted (K,) and errors (K,) = ln(predicted/delay) belong to predictors (K names);
    the last one, `published (leaky)`, needs the norm after the fact. What was not reached is nan or None.
    """

    KIND: ClassVar[str] = "delay"
    REVISION: ClassVar[int] = 1

    __repr__ = brief

    norm_steps: NDArray[np.int64]
    squared_norm: FloatArray
    law: FloatArray
    memorized: int | None
    generalized: int | None
    delay: int | None
    budget: int
    used_until_step: int
    norm_memorized: float
    norm_generalized: float
    norm_final: float
    decay_rate: float
    local_rate: float
    local_rate_low: float
    local_rate_high: float
    mean_rate: float
    kappa: float
    separated: bool
    predictors: tuple[str, ...]
    predicted: FloatArray
    errors: FloatArray
    interval: FloatArray
    coverage: float
    probability: float
    verdict: str
    reason: str


def delay_along(run: Run, *, models: Sequence[DelayModel] | None = None) -> DelayCurve:
    """The post-mortem of a run of `train`: law, predictors and outcome side by side.

    Raises:
        ValueError: the run has no configuration, did not memorize, or logged no squared norm.
    """
    found = milestones(run)
    if run.config is None or found.memorized is None or "squared_norm" not in run.metrics:
        raise ValueError(
            f"run={str(run.path)!r} has no confirmed memorization with a logged squared norm; "
            "there is no delay to analyze"
        )
    totals = {f"{split}_total": int(run.provenance[f"{split}_total"]) for split in ("train", "test")}
    setting = Setting.of(run.config, parameters=run.table.size, **totals)
    known = evidence(setting, found.memorized, curves_of(run.metrics))
    steps, norms = run.metrics["squared_norm"]
    forecast = predict_run(run, models=models)
    predicted = {"model": forecast.predicted_delay or nan} | baselines(known, final_norm=float(norms[-1]))
    end = None if found.generalized is None else found.generalized.step
    end_norm = nan if end is None else float(np.interp(end, steps, norms))
    mean_rate = nan if not found.delay else log(known.norm / end_norm) / found.delay
    rate = decay_rate(setting)
    values = np.array(list(predicted.values()))
    return DelayCurve(
        norm_steps=steps,
        squared_norm=norms,
        law=law(steps, known, rate),
        memorized=found.memorized.step,
        generalized=end,
        delay=found.delay,
        budget=found.budget,
        used_until_step=known.used_until_step,
        norm_memorized=known.norm,
        norm_generalized=end_norm,
        norm_final=float(norms[-1]),
        decay_rate=rate,
        local_rate=known.rate.rate,
        local_rate_low=known.rate.low,
        local_rate_high=known.rate.high,
        mean_rate=mean_rate,
        kappa=mean_rate / rate,
        separated=bool(known.norm > (end_norm if end is not None else float(norms[-1]))),
        predictors=tuple(predicted),
        predicted=values,
        errors=np.log(values / found.delay) if found.delay else np.full(len(values), nan),
        interval=np.array(forecast.interval or (nan, nan)),
        coverage=forecast.coverage,
        probability=nan if forecast.probability is None else forecast.probability,
        verdict=forecast.verdict,
        reason=forecast.reason,
    )


def baselines(known: Evidence, *, final_norm: float) -> dict[str, float]:
    """Every other predictor's delay in steps by name, with the constants of the installed calibration."""
    if known.setting.weight_decay == 0:
        return {}
    fitted = load_baselines()
    return {
        "a/(lr wd)": predictors.InverseDecay(**fitted["inverse_decay"]).predict(known),
        "a/(lr wd), task": predictors.InverseDecay(**fitted["inverse_decay_task"]).predict(known),
        "log ratio": predictors.LogRatio(**fitted["log_ratio"]).predict(known),
        "log ratio, successor": predictors.SUCCESSOR.predict(known),
        "local rate": predictors.LocalRateLaw(**fitted["local_rate"]).predict(known),
        "published (leaky)": predictors.published(known, final_norm),
    }


def decay_rate(setting: Setting) -> float:
    """The log-rate of V under the run's weight decay alone; nan where there is none."""
    try:
        return contraction_rate(lr=setting.lr, weight_decay=setting.weight_decay, optimizer=setting.optimizer)
    except ValueError:
        return nan


def law(steps: NDArray[np.int64], known: Evidence, rate: float) -> FloatArray:
    """V by decay alone from memorization on (N,), nan before it."""
    later = steps - known.memorized.step
    return np.where(later >= 0, decayed_squared_norm(known.norm, np.maximum(later, 0), rate=rate), nan)
