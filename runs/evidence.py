"""What is known of a run at its information time, and nothing later: the input of every delay prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log, nan, sqrt

import numpy as np
from numpy.typing import NDArray

from ..geometry.norm_law import LocalRate, local_rate
from .config import RunConfig
from .milestones import Crossing

FloatArray = NDArray[np.float64]
Curve = tuple[FloatArray, FloatArray]
"""Steps (n,) and values (n,) of one logged quantity."""

GROUPS = ("embedding", "attention", "feedforward", "head")


@dataclass(frozen=True)
class Setting:
    """What the user chose: lr = η, weight_decay = λ, and how many of the samples are for training."""

    lr: float
    weight_decay: float
    train_total: int
    total: int
    parameters: int
    optimizer: str = "adamw"

    @classmethod
    def of(cls, config: RunConfig, *, train_total: int, test_total: int, parameters: int) -> Setting:
        """The setting of a run of `train`."""
        total = train_total + test_total
        return cls(config.lr, config.weight_decay, train_total, total, parameters, config.optimizer)

    @property
    def decay(self) -> float:
        """2ηλ, the log-rate of the squared norm under decay alone, to first order."""
        return 2 * self.lr * self.weight_decay


@dataclass(frozen=True)
class Evidence:
    """A run at its information time: the step at which its memorization was confirmed.

    start_norm, norm and last_norm are V = ‖θ‖² at step 0, at memorized.step and at the information time;
    rate is −d ln V/dt in the window between the latter two. train_loss, gradient_norm and update_norm are
    medians over the window, loss_fall the fall of ln train_loss over it. shares are the parts of V by
    parameter group at the information time, group_rates their own −d ln/dt over the window. What was not
    logged is nan or absent.
    """

    setting: Setting
    memorized: Crossing
    start_norm: float
    norm: float
    last_norm: float
    rate: LocalRate
    train_loss: float = nan
    loss_fall: float = nan
    gradient_norm: float = nan
    update_norm: float = nan
    shares: Mapping[str, float] = field(default_factory=dict)
    group_rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def used_until_step(self) -> int:
        """The information time; nothing of a later step is in here."""
        return self.memorized.confirmed

    def features(self) -> dict[str, float]:
        """Numbers without units, or logarithms of those with; nan where a quantity was not logged.

        decay = ln ηλ; lr = ln η; norm = ln V; fall = ln(V₀/V); rate = local rate / 2ηλ; samples = ln of the
        number of training samples, fraction = its log-odds; memorization = ln(ηλ T_mem); size = ln P;
        loss, gradient and update = ln of train loss, ‖∇L‖ and ‖Δθ‖/(η√P); loss_fall as it is; per group
        (GROUPS) share_ = ln of its share of V and rate_ = its rate / 2ηλ.
        """
        s, fraction = self.setting, self.setting.train_total / self.setting.total
        known = {
            "decay": log(s.lr * s.weight_decay),
            "lr": log(s.lr),
            "norm": log(self.norm),
            "fall": log(self.start_norm / self.norm),
            "rate": self.rate.rate / s.decay,
            "samples": log(s.train_total),
            "fraction": log(fraction / (1 - fraction)),
            "memorization": log(s.lr * s.weight_decay * max(self.memorized.step, 1)),
            "size": log(s.parameters),
            "loss": _log(self.train_loss),
            "loss_fall": self.loss_fall,
            "gradient": _log(self.gradient_norm),
            "update": _log(self.update_norm / (s.lr * sqrt(s.parameters))),
        }
        shares = {f"share_{group}": _log(self.shares.get(group, nan)) for group in GROUPS}
        rates = {f"rate_{group}": self.group_rates.get(group, nan) / s.decay for group in GROUPS}
        return known | shares | rates


def evidence(setting: Setting, memorized: Crossing, curves: Mapping[str, Curve]) -> Evidence:
    """The evidence in logged curves; every entry after memorized.confirmed is dropped first.

    curves maps metric names (`squared_norm`, `train_loss`, `gradient_norm`, `update_norm` and
    `squared_norm.<group>`) to (steps (n,), values (n,)); only `squared_norm` is needed.

    Raises:
        ValueError: fewer than three norms between memorization and its confirmation.
    """
    known = {name: _until(curve, memorized.confirmed) for name, curve in curves.items()}
    steps, norms = known["squared_norm"]
    window = steps >= memorized.step
    if window.sum() < 3:
        raise ValueError(
            f"squared_norm has {window.sum()} entries from step {memorized.step} to {memorized.confirmed}; "
            "log it at least every 50 steps"
        )
    middle = {
        name: _median(known.get(name), memorized.step)
        for name in ("train_loss", "gradient_norm", "update_norm")
    }
    last = _at(known["squared_norm"], memorized.confirmed)
    named = {
        name.split(".", 1)[1]: curve for name, curve in known.items() if name.startswith("squared_norm.")
    }
    groups = {group: curve for group, curve in named.items() if len(curve[1])}
    return Evidence(
        setting=setting,
        memorized=memorized,
        start_norm=float(norms[0]),
        norm=_at(known["squared_norm"], memorized.step),
        last_norm=last,
        rate=local_rate(steps[window], norms[window]),
        loss_fall=_fall(known.get("train_loss"), memorized),
        shares={group: _at(curve, memorized.confirmed) / last for group, curve in groups.items()},
        group_rates={
            group: _fall(curve, memorized) / (memorized.confirmed - memorized.step)
            for group, curve in groups.items()
            if memorized.confirmed > memorized.step
        },
        **middle,
    )


def _until(curve: Curve, step: int) -> Curve:
    steps, values = (np.asarray(part, dtype=np.float64) for part in curve)
    kept = (steps <= step) & np.isfinite(values)
    return steps[kept], values[kept]


def _at(curve: Curve, step: int) -> float:
    """The value at step, geometrically interpolated between the entries around it."""
    return exp(float(np.interp(step, curve[0], np.log(curve[1]))))


def _median(curve: Curve | None, since: int) -> float:
    values = np.array([]) if curve is None else curve[1][curve[0] >= since]
    return float(np.median(values)) if len(values) else nan


def _fall(curve: Curve | None, memorized: Crossing) -> float:
    """The fall of ln value from memorization to its confirmation; nan where nothing is known."""
    if curve is None or not len(curve[1]) or not (curve[1] > 0).all():
        return nan
    return log(_at(curve, memorized.step) / _at(curve, memorized.confirmed))


def _log(value: float) -> float:
    return log(value) if value > 0 else nan
