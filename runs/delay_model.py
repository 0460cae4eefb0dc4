"""The calibrated delay model: a log-normal accelerated-failure-time formula with stored coefficients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from math import exp, inf, isfinite, log, nan, tanh
from pathlib import Path
from typing import Any

REVISION = 1
"""Renewed when the meaning of a feature, a milestone or the formula changes: older calibrations are stale."""


@dataclass(frozen=True)
class DelayModel:
    """ln T = intercept + Σ_j (coefficients_j z_j + squares_j z_j²) + sigma ε, ε ~ N(0, 1).

    T is the delay in steps and z_j = (x_j − centers_j)/scales_j of the features x of `Evidence.features`.
    `margin` is the conformal half-width of ln T at `coverage`, over cells; `slope` and `offset` calibrate
    the probability; `low` and `high` bound each feature over the calibration runs; `two_sided` is false
    where too many runs were censored.
    """

    name: str
    features: tuple[str, ...]
    centers: tuple[float, ...]
    scales: tuple[float, ...]
    coefficients: tuple[float, ...]
    squares: tuple[float, ...]
    intercept: float
    sigma: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    margin: float
    coverage: float
    slope: float
    offset: float
    two_sided: bool
    runs: int
    cells: int
    calibration: str
    revision: int = REVISION

    def knows(self, features: Mapping[str, float]) -> bool:
        """Whether every feature that the model uses was logged."""
        return all(isfinite(features.get(name, nan)) for name in self.features)

    def log_delay(self, features: Mapping[str, float]) -> float:
        """The median of ln T; a feature that is nan counts as typical, at its center.

        Raises:
            ValueError: one of the model's features is absent.
        """
        missing = [name for name in self.features if name not in features]
        if missing:
            raise ValueError(
                f"features: {missing[0]!r} is absent; the model needs {', '.join(self.features)}"
            )
        scores = [
            (features[name] - center) / scale if isfinite(features[name]) else 0.0
            for name, center, scale in zip(self.features, self.centers, self.scales, strict=True)
        ]
        terms = zip(scores, self.coefficients, self.squares, strict=True)
        return self.intercept + sum(z * (linear + square * z) for z, linear, square in terms)

    def interval(self, log_delay: float) -> tuple[float, float]:
        """Bounds on T with the stated coverage over new cells; the upper one is infinite if not two-sided."""
        return exp(log_delay - self.margin), (exp(log_delay + self.margin) if self.two_sided else inf)

    def probability(self, log_delay: float, budget: float) -> float:
        """P(T ≤ budget): a calibrated logistic function of (ln budget − ln T̂)/sigma; 0 for no budget."""
        if budget <= 0:
            return 0.0
        score = self.offset + self.slope * (log(budget) - log_delay) / self.sigma
        return (1 + tanh(score / 2)) / 2  # the logistic function, without overflow

    def outside(self, features: Mapping[str, float], *, slack: float = 0.1) -> tuple[str, ...]:
        """The features that lie outside the calibrated range by more than `slack` of its width."""
        bounds = zip(self.features, self.low, self.high, strict=True)
        return tuple(name for name, a, b in bounds if not _within(features[name], a, b, slack * (b - a)))

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> DelayModel:
        """The model from what `asdict` made of it and JSON kept.

        Raises:
            ValueError: another revision than this version's.
        """
        if table.get("revision") != REVISION:
            raise ValueError(
                f"revision={table.get('revision')} of the delay model is not this version's {REVISION}; "
                "renew it with `grokscope calibrate fit`"
            )
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in table.items()}
        return cls(**fields)


@lru_cache(maxsize=4)
def load_models(path: Path | None = None, calibration: Path | None = None) -> tuple[DelayModel, ...]:
    """The delay models in a file, by default the installed ones, checked against their calibration data.

    The first uses everything that a run of `train` logs, the last only squared norm and train accuracy.

    Raises:
        ValueError: a model is stale: another revision, or fitted to other calibration data.
    """
    folder = Path(str(files(__package__))) / "data"
    tables = json.loads((path or folder / "delay_models.json").read_text(encoding="utf-8"))
    digest = file_digest(calibration or folder / "calibration.npz")
    models = tuple(map(DelayModel.from_table, tables))
    for model in models:
        if digest != model.calibration:
            raise ValueError(
                f"calibration={digest[:12]} is not the data {model.calibration[:12]} that the delay model "
                "was fitted to; renew the model with `grokscope calibrate fit`"
            )
    return models


def to_json(models: Sequence[DelayModel]) -> str:
    """JSON text of models, as `load_models` reads it."""
    return json.dumps([asdict(model) for model in models], indent=1) + "\n"


def load_baselines(path: Path | None = None) -> dict[str, dict[str, float]]:
    """The constants of the other predictors, fitted to the same calibration; see `predictors`."""
    folder = Path(str(files(__package__))) / "data"
    found: dict[str, dict[str, float]] = json.loads((path or folder / "baselines.json").read_text("utf-8"))
    return found


def file_digest(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal text."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _within(value: float, low: float, high: float, slack: float) -> bool:
    return not isfinite(value) or low - slack <= value <= high + slack
