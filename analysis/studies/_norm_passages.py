"""One run's passage from memorization to generalization, by the definitions of the delay law's authors."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, nan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...runs.milestones import Crossing, milestones
from ...runs.store import Run
from ..released_delay import norm_separation

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Passage:
    """Times and squared norms of a run; what was not reached is nan.

    Times are the first evaluations with an accuracy of .99, norms V there; `start` is V at step 0 and
    `norm_end` at the end of the run. decay = 2ηλ; fitted_rate = −k of the fit A e^(kt) + C to V from
    memorization on. steps (n,) and norm (n,) are the curve itself.
    """

    lr: float
    weight_decay: float
    memorized: float
    generalized: float
    start: float
    norm_memorized: float
    norm_generalized: float
    norm_end: float
    fitted_rate: float
    train_accuracy: float
    test_accuracy: float
    steps: NDArray[np.int64]
    norm: Array

    @property
    def decay(self) -> float:
        """2ηλ, the log-rate of V under decay alone."""
        return 2 * self.lr * self.weight_decay

    @property
    def delay(self) -> float:
        """Steps from memorization to generalization."""
        return self.generalized - self.memorized

    @property
    def log_ratio(self) -> float:
        """ln(V_mem/V_post), V_post at the end of the run; nan where V has not fallen."""
        fell = self.norm_memorized > self.norm_end
        return log(self.norm_memorized / self.norm_end) if fell else nan

    @property
    def law(self) -> float:
        """The delay by the arithmetic of the released code: log_ratio/(2ηλ)."""
        return self.log_ratio / self.decay


def passage(path: Path) -> Passage:
    """The passage of a finished run of `train`; nan throughout for one that failed."""
    run = Run.open(path)
    if run.config is None:
        raise ValueError(f"run={str(path)!r} has no configuration; it is none of this study")
    found = milestones(run)
    steps, norm = run.metrics["squared_norm"]
    memorized, generalized = _step(found.first_memorized), _step(found.first_generalized)
    at_memorized, at_generalized = (
        nan if np.isnan(at) else float(np.interp(at, steps, norm)) for at in (memorized, generalized)
    )
    return Passage(
        lr=run.config.lr,
        weight_decay=run.config.weight_decay,
        memorized=memorized,
        generalized=generalized,
        start=float(norm[0]),
        norm_memorized=at_memorized,
        norm_generalized=at_generalized,
        norm_end=float(norm[-1]),
        fitted_rate=nan if np.isnan(memorized) else exponential_rate(steps, norm, since=memorized),
        train_accuracy=_accuracy(run, "train"),
        test_accuracy=_accuracy(run, "test"),
        steps=np.asarray(steps),
        norm=np.asarray(norm, dtype=np.float64),
    )


def exponential_rate(steps: NDArray[np.int64], norm: Array, *, since: float) -> float:
    """−k of the least-squares fit A e^(k(t − since)) + C to V(t), t ≥ since, with 0 ≤ C ≤ 1.1 V(since).

    The authors' fit, on all logged steps to the end; nan for fewer than five.
    """
    from scipy.optimize import curve_fit

    kept = np.asarray(steps) >= since
    if kept.sum() < 5:
        return nan
    times, values = (
        np.asarray(steps, dtype=np.float64)[kept] - since,
        np.asarray(norm, dtype=np.float64)[kept],
    )
    unit, scale = times[-1], values[0]

    def curve(t: Array, a: float, k: float, c: float) -> Array:
        return np.asarray(a * np.exp(-k * t) + c)

    bounds = ([0, 0, 0], [np.inf, np.inf, 1.1])
    fitted = curve_fit(curve, times / unit, values / scale, p0=(0.9, 3.0, 0.1), bounds=bounds)[0]
    return float(fitted[1] / unit)


def released(folder: Path) -> dict[str, float]:
    """Mean errors on the authors' released runs, and how many have V_post ≥ V_mem despite a delay."""
    found = norm_separation(folder)
    numbers = found["published"]
    ours = next(s.mape for s in found["scores"] if (s.data, s.predictor) == ("one setting", "model"))
    counts = (line.split(": ")[1].split(" of ")[0] for line in found["violations of V_mem > V_final"])
    return {
        "law": numbers["mape, published arithmetic"],
        "others": numbers["mape, mean of the other seeds"],
        "nominal": numbers["mape, nominal rate"],
        "forecast": ours,
        "violations": float(sum(map(int, counts))),
    }


def _step(crossing: Crossing | None) -> float:
    return nan if crossing is None else float(crossing.step)


def _accuracy(run: Run, split: str) -> float:
    return float(run.metrics[f"{split}_correct"].value.max() / int(run.provenance[f"{split}_total"]))
