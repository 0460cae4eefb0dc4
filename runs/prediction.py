"""The call at memorization time: how long until generalization, from nothing that comes later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from typing import Any, Literal, NamedTuple

from .calibration import curves_of
from .config import RunConfig
from .delay_model import DelayModel, load_models
from .evidence import Evidence, Setting, evidence
from .milestones import SUSTAIN, THRESHOLD, Crossing, CrossingMonitor
from .store import Run

Verdict = Literal["applies", "extrapolates", "does not apply", "not memorized"]


@dataclass(frozen=True)
class DelayPrediction:
    """A forecast of the delay T = generalization step − memorization step, in optimizer steps.

    `interval` holds T with probability `coverage` over new settings (conformal over the calibration's
    cells); `probability` is that of T ≤ the remaining budget, None without a budget. A verdict other than
    `applies` says in `reason` why the number is not to be trusted; without memorization or with
    `does not apply` there is no number at all. `model` says which evidence was there: `full`, or `norm and
    accuracy` where nothing else was logged.
    """

    memorized: Crossing | None
    predicted_delay: float | None
    interval: tuple[float, float] | None
    coverage: float
    probability: float | None
    verdict: Verdict
    reason: str
    used_until_step: int
    model: str | None

    @property
    def predicted_generalization(self) -> float | None:
        """The step at which generalization is expected."""
        if self.memorized is None or self.predicted_delay is None:
            return None
        return self.memorized.step + self.predicted_delay


class Decision(NamedTuple):
    """Whether to stop a run because of a prediction, and why; to be recorded either way."""

    stop: bool
    reason: str


class DelayMonitor:
    """The forecast for anybody's training loop: feed what is logged, read a prediction once there is one.

        monitor = DelayMonitor(lr=1e-3, weight_decay=1.0, train_total=4704, total=9409, parameters=223_713)
        ...
        prediction = monitor.update(step, squared_norm=v, train_accuracy=a)  # None until memorization

    `train_total` of `total` samples are trained on; `budget` is the last step that training may take. The
    squared norm is needed at step 0 and at least three times in the `sustain` steps after memorization;
    train accuracy may come more rarely. Test metrics are not accepted: the forecast must not see them.
    """

    def __init__(
        self,
        *,
        lr: float,
        weight_decay: float,
        train_total: int,
        total: int,
        parameters: int,
        optimizer: str = "adamw",
        budget: int | None = None,
        threshold: float = THRESHOLD,
        sustain: int = SUSTAIN,
        models: Sequence[DelayModel] | None = None,
    ) -> None:
        self.setting = Setting(lr, weight_decay, train_total, total, parameters, optimizer)
        self.budget = budget
        self.models = models or load_models()
        self.prediction: DelayPrediction | None = None
        self._crossing = CrossingMonitor(train_total, threshold=threshold, sustain=sustain)
        self._curves: dict[str, tuple[list[float], list[float]]] = {}

    @classmethod
    def of(
        cls,
        config: RunConfig,
        *,
        train_total: int,
        test_total: int,
        parameters: int,
        models: Sequence[DelayModel] | None = None,
    ) -> DelayMonitor:
        """The monitor for a run of `train`; its budget is config.steps."""
        setting = Setting.of(config, train_total=train_total, test_total=test_total, parameters=parameters)
        return cls(**vars(setting), budget=config.steps, models=models)

    def update(
        self,
        step: int,
        squared_norm: float | None = None,
        train_accuracy: float | None = None,
        **metrics: float,
    ) -> DelayPrediction | None:
        """The prediction known after step `step`: None until memorization is confirmed, then always the same.

        metrics may hold `train_loss`, `gradient_norm`, `update_norm` and, as a mapping unpacked,
        `squared_norm.<group>`; others are ignored.
        """
        if self.prediction is not None:
            return self.prediction
        for name, value in {"squared_norm": squared_norm, **metrics}.items():
            if value is not None:
                steps, values = self._curves.setdefault(name, ([], []))
                steps.append(step)
                values.append(float(value))
        if train_accuracy is not None:
            memorized = self._crossing.update(step, round(train_accuracy * self._crossing.total))
            if memorized is not None:
                self.prediction = self._predict(memorized)
        return self.prediction

    def replay(self, metrics: Mapping[str, Any]) -> DelayPrediction:
        """The prediction from a run's logged metrics (`Series` by name), fed until there is one."""
        for step, row in _rows(metrics):
            correct = row.pop("train_correct", None)
            accuracy = None if correct is None else correct / self._crossing.total
            if self.update(step, row.pop("squared_norm", None), accuracy, **row):
                break
        return self.current

    @property
    def current(self) -> DelayPrediction:
        """The prediction, or one that says that there is none yet."""
        if self.prediction is not None:
            return self.prediction
        last = self._crossing.last or 0
        return _refusal(
            self.models, None, "not memorized", f"no sustained memorization up to step {last}", last
        )

    def _predict(self, memorized: Crossing) -> DelayPrediction:
        problem = _inapplicable(self.setting)
        if problem:
            return _refusal(self.models, memorized, "does not apply", problem, memorized.confirmed)
        curves: Mapping[str, Any] = self._curves
        return predict_delay(
            evidence(self.setting, memorized, curves), models=self.models, budget=self.budget
        )


def predict_delay(
    known: Evidence, *, models: Sequence[DelayModel] | None = None, budget: int | None = None
) -> DelayPrediction:
    """The forecast from the evidence at the information time; `budget` is the last step of training.

    The number is the median of a log-normal accelerated-failure-time model (see `DelayModel`): of the first
    of `models` whose features were all logged.
    """
    models = models or load_models()
    problem = _inapplicable(known.setting) or _rising(known)
    if problem:
        return _refusal(models, known.memorized, "does not apply", problem, known.used_until_step)
    features = known.features()
    model = next((model for model in models if model.knows(features)), models[-1])
    outside = model.outside(features)
    log_delay = model.log_delay(features)
    return DelayPrediction(
        memorized=known.memorized,
        predicted_delay=exp(log_delay),
        interval=model.interval(log_delay),
        coverage=model.coverage,
        probability=None if budget is None else model.probability(log_delay, budget - known.memorized.step),
        verdict="extrapolates" if outside else "applies",
        reason=f"outside the calibrated range: {', '.join(outside)}" if outside else "",
        used_until_step=known.used_until_step,
        model=model.name,
    )


def predict_run(run: Run, *, models: Sequence[DelayModel] | None = None) -> DelayPrediction:
    """The forecast for a run of `train`, finished or not: what a `DelayMonitor` in its loop would have said.

    Raises:
        ValueError: a run of somebody's own loop, whose learning rate and weight decay are not known.
    """
    if run.config is None:
        raise ValueError(f"run={str(run.path)!r} has no configuration; use DelayMonitor in your own loop")
    totals = {f"{split}_total": int(run.provenance[f"{split}_total"]) for split in ("train", "test")}
    monitor = DelayMonitor.of(run.config, parameters=run.table.size, models=models, **totals)
    return monitor.replay(run.metrics)


def decide(prediction: DelayPrediction, *, stop_if_predicted_after: int | None) -> Decision:
    """Whether training should stop because generalization is predicted after a step.

    It stops only on a prediction that applies: if the expected generalization is later than
    `stop_if_predicted_after`, or if none can come (weight decay 0 and the like do not count: a law that
    does not apply says nothing).
    """
    expected = prediction.predicted_generalization
    if stop_if_predicted_after is None or expected is None:
        return Decision(False, prediction.reason or "no limit was set")
    if prediction.verdict != "applies":
        return Decision(False, f"the prediction {prediction.verdict}: {prediction.reason}")
    late = expected > stop_if_predicted_after
    text = f"generalization predicted at step {expected:.0f}, limit {stop_if_predicted_after}"
    return Decision(late, f"{text}, from what was known at step {prediction.used_until_step}")


def _rows(metrics: Mapping[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """All that predictions may use, by step in rising order."""
    rows: dict[int, dict[str, float]] = {}
    for name, (steps, values) in curves_of(metrics).items():
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            if isfinite(value):
                rows.setdefault(int(step), {})[name] = value
    return sorted(rows.items())


def _inapplicable(setting: Setting) -> str:
    if setting.weight_decay == 0:
        return "weight decay is 0: nothing shrinks the norm"
    if setting.optimizer != "adamw":
        return f"the model is calibrated for decoupled decay (adamw), not {setting.optimizer}"
    return ""


def _rising(known: Evidence) -> str:
    if known.rate.rate > 0:
        return ""
    return f"the squared norm does not fall after memorization (log-rate {known.rate.rate:.2g} a step)"


def _refusal(
    models: Sequence[DelayModel], memorized: Crossing | None, verdict: Verdict, reason: str, until: int
) -> DelayPrediction:
    return DelayPrediction(memorized, None, None, models[0].coverage, None, verdict, reason, until, None)
