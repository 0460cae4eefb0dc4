from dataclasses import replace
from math import exp, log
from types import SimpleNamespace

import grokscope
import numpy as np
import pytest
from grokscope.runs import delay_model, prediction
from grokscope.runs.config import RunConfig
from grokscope.runs.delay_model import DelayModel, load_models, to_json
from grokscope.runs.evidence import Setting, evidence
from grokscope.runs.milestones import Crossing
from grokscope.runs.prediction import DelayMonitor, decide, predict_delay, predict_run
from grokscope.runs.store import Run
from grokscope.runs.train import train

LR, DECAY = 1e-3, 1.0
SETTING = Setting(lr=LR, weight_decay=DECAY, train_total=100, total=200, parameters=1000)
# T = 3/(lr wd) exactly: one feature, ln(lr wd), with coefficient -1.
MODEL = DelayModel(
    name="test", features=("decay",), centers=(0.0,), scales=(1.0,), coefficients=(-1.0,), squares=(0.0,),
    intercept=log(3.0), sigma=0.2, low=(log(1e-4),), high=(log(1e-2),), margin=0.3, coverage=0.9, slope=1.7,
    offset=0.0, two_sided=True, runs=1, cells=1, calibration="",
)  # fmt: skip


def norm(step, start=1000.0):
    """V under weight decay alone."""
    return start * (1 - LR * DECAY) ** (2 * step)


def fed(monitor, last, *, memorized=300, spike=None, every=10, norm=norm):
    """The monitor after a drawn run: accuracy 1 from `memorized` on and at `spike`, else 0.5."""
    for step in range(0, last + 1, every):
        right = step >= memorized or step == spike
        monitor.update(step, squared_norm=norm(step), train_accuracy=1.0 if right else 0.5)
    return monitor


def drawn(**options):
    settings = {
        "models": [MODEL],
        "lr": LR,
        "weight_decay": DECAY,
        "train_total": 100,
        "total": 200,
        "parameters": 1000,
    }
    return DelayMonitor(**(settings | options))


def test_the_monitor_is_at_the_top_level():
    assert grokscope.DelayMonitor is DelayMonitor


def test_nothing_until_memorization_is_confirmed():
    monitor = fed(drawn(), 390)
    assert monitor.prediction is None
    assert monitor.current.verdict == "not memorized"
    found = fed(drawn(), 400).prediction
    assert found.memorized == Crossing(290, 300, 400)
    assert found.used_until_step == 400
    assert found.predicted_delay == pytest.approx(3000)
    assert found.interval == pytest.approx((3000 * exp(-0.3), 3000 * exp(0.3)))
    assert (found.verdict, found.reason, found.probability) == ("applies", "", None)


def test_a_spike_is_not_memorization():
    found = fed(drawn(), 400, spike=100).prediction
    assert found.memorized == Crossing(290, 300, 400)


def test_later_entries_change_nothing():
    early = fed(drawn(), 400).prediction
    late = fed(drawn(), 3000, norm=lambda step: norm(step) if step <= 400 else 1e9).prediction
    assert early == late


def test_evidence_is_exact_on_a_contraction():
    steps = np.arange(0.0, 1001, 10)
    known = evidence(SETTING, Crossing(290, 300, 400), {"squared_norm": (steps, norm(steps))})
    assert known.rate.rate == pytest.approx(-2 * log(1 - LR * DECAY), rel=1e-9)
    assert known.norm == pytest.approx(norm(300))
    assert known.last_norm == pytest.approx(norm(400))
    features = known.features()
    assert features["fall"] == pytest.approx(300 * 2 * -log(1 - LR * DECAY))
    assert features["rate"] == pytest.approx(1, abs=1e-3)  # 2 lr wd is the first order of the rate
    assert np.isnan(features["gradient"])


def test_evidence_reads_nothing_late():
    steps = np.arange(0.0, 1001, 10)
    curve = norm(steps)
    poisoned = np.where(steps <= 400, curve, np.nan)
    crossing = Crossing(290, 300, 400)
    assert evidence(SETTING, crossing, {"squared_norm": (steps, curve)}) == evidence(
        SETTING, crossing, {"squared_norm": (steps, poisoned)}
    ) or np.isnan(evidence(SETTING, crossing, {"squared_norm": (steps, curve)}).train_loss)
    one = evidence(SETTING, crossing, {"squared_norm": (steps, curve)}).features()
    two = evidence(SETTING, crossing, {"squared_norm": (steps, poisoned)}).features()
    np.testing.assert_equal(one, two)


def test_too_few_norms_are_refused():
    with pytest.raises(ValueError, match="at least every 50 steps"):
        fed(drawn(), 600, every=100)


@pytest.mark.parametrize(
    ("options", "curve", "verdict", "reason"),
    [
        ({"weight_decay": 0.0}, norm, "does not apply", "weight decay is 0"),
        ({"optimizer": "sgd"}, norm, "does not apply", "adamw"),
        ({}, lambda step: 1000.0 + step, "does not apply", "does not fall"),
        ({"lr": 0.5}, norm, "extrapolates", "decay"),
    ],
)
def test_verdicts(options, curve, verdict, reason):
    found = fed(drawn(**options), 400, norm=curve).prediction
    assert found.verdict == verdict
    assert reason in found.reason
    assert (found.predicted_delay is None) == (verdict == "does not apply")


def test_probability_grows_with_the_budget():
    chances = [fed(drawn(budget=budget), 400).prediction.probability for budget in (200, 1300, 3300, 9000)]
    assert chances[0] == 0
    assert chances == sorted(chances)
    assert chances[2] == pytest.approx(0.5)


def test_missing_features_count_as_typical():
    two = {"features": ("decay", "gradient"), "centers": (0.0, 5.0), "scales": (1.0, 1.0), "low": (-9.0, 0.0)}
    model = replace(MODEL, coefficients=(-1.0, 9.0), squares=(0.0, 1.0), high=(0.0, 9.0), **two)
    assert model.log_delay({"decay": 0.0, "gradient": float("nan")}) == pytest.approx(log(3.0))
    assert model.log_delay({"decay": 0.0, "gradient": 7.0}) == pytest.approx(log(3.0) + 9 * 2 + 2**2)
    with pytest.raises(ValueError, match="gradient"):
        model.log_delay({"decay": 0.0})


def test_the_first_model_that_knows_everything_is_used():
    rich = replace(MODEL, name="rich", features=("loss",), intercept=0.0)
    assert fed(drawn(models=[rich, MODEL]), 400).prediction.model == "test"
    monitor = drawn(models=[rich, MODEL])
    for step in range(0, 401, 10):
        monitor.update(step, norm(step), 1.0 if step >= 300 else 0.5, train_loss=exp(-2.0))
    assert (monitor.prediction.model, monitor.prediction.predicted_delay) == ("rich", pytest.approx(exp(2.0)))


def test_stale_calibration_is_refused(tmp_path):
    data = tmp_path / "calibration.npz"
    data.write_bytes(b"one")
    path = tmp_path / "model.json"
    path.write_text(to_json([replace(MODEL, calibration=delay_model.file_digest(data))]))
    assert load_models(path, data)[0].intercept == MODEL.intercept
    load_models.cache_clear()
    data.write_bytes(b"two")
    with pytest.raises(ValueError, match="calibrate fit"):
        load_models(path, data)
    path.write_text(to_json([replace(MODEL, revision=0)]))
    with pytest.raises(ValueError, match="revision"):
        load_models(path, data)


def test_the_decision_to_stop():
    found = fed(drawn(), 400).prediction  # expected at step 3300
    assert decide(found, stop_if_predicted_after=3000).stop
    assert "3300" in decide(found, stop_if_predicted_after=3000).reason
    assert not decide(found, stop_if_predicted_after=4000).stop
    assert not decide(found, stop_if_predicted_after=None).stop
    outside = fed(drawn(lr=0.5), 400).prediction
    assert not decide(outside, stop_if_predicted_after=1).stop


CONFIG = RunConfig(
    modulus=13, width=64, feedforward=32, batch_size="full", lr=2e-3, weight_decay=0.3, train_fraction=0.7,
    steps=300, evaluate_every=20, second_moment_every=0, snapshot_every=300, stop_after_generalization=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("runs") / "run")


def altered(run, change):
    """The run with its metrics changed by change(name, steps, values) -> (steps, values)."""
    metrics = {name: SimpleNamespace(step=s, value=v) for name, (s, v) in (
        (name, change(name, *series)) for name, series in run.metrics.items())}  # fmt: skip
    return SimpleNamespace(
        config=run.config,
        provenance=run.provenance,
        table=run.table,
        metrics=metrics,
        path=run.path,
        steps=run.steps,
    )


@pytest.mark.parametrize("models", [[MODEL], None], ids=["one feature", "shipped"])
def test_no_information_after_the_information_time(run, models):
    found = predict_run(run, models=models)
    assert found.memorized is not None
    until = found.used_until_step
    cut = altered(run, lambda name, s, v: (s[s <= until], v[s <= until]))
    blind = altered(run, lambda name, s, v: (s, v * np.nan if name.startswith("test") else v))
    wild = altered(run, lambda name, s, v: (s, np.where(s <= until, v, 0 if "correct" in name else 1e9)))
    assert predict_run(cut, models=models) == found
    assert predict_run(blind, models=models) == found
    assert predict_run(wild, models=models) == found


def test_before_memorization_there_is_no_number(run):
    first = predict_run(run, models=[MODEL]).memorized.step
    found = predict_run(altered(run, lambda name, s, v: (s[s <= first], v[s <= first])), models=[MODEL])
    assert (found.memorized, found.predicted_delay, found.verdict) == (None, None, "not memorized")
    assert found.used_until_step == first


def test_a_monitor_in_the_loop_says_what_the_run_says(run):
    expected = predict_run(run, models=[MODEL])
    totals = {f"{split}_total": run.provenance[f"{split}_total"] for split in ("train", "test")}
    monitor = DelayMonitor.of(run.config, parameters=run.table.size, models=[MODEL], **totals)
    norms, rights = run.metrics["squared_norm"], run.metrics["train_correct"]
    accuracy = dict(zip(rights.step.tolist(), (rights.value / totals["train_total"]).tolist(), strict=True))
    for step, value in zip(norms.step.tolist(), norms.value.tolist(), strict=True):
        monitor.update(step, squared_norm=value, train_accuracy=accuracy.get(step))
    assert monitor.prediction.predicted_delay == expected.predicted_delay
    assert monitor.prediction.used_until_step == expected.used_until_step


def test_a_run_of_somebody_elses_loop_is_refused(run):
    foreign = altered(run, lambda name, s, v: (s, v))
    foreign.config = None
    with pytest.raises(ValueError, match="DelayMonitor"):
        predict_run(foreign, models=[MODEL])


def test_predicting_twice_from_disk_agrees(run):
    assert predict_run(Run.open(run.path), models=[MODEL]) == predict_run(run, models=[MODEL])


def test_predict_delay_is_the_formula():
    steps = np.arange(0.0, 401, 10)
    known = evidence(SETTING, Crossing(290, 300, 400), {"squared_norm": (steps, norm(steps))})
    assert predict_delay(known, models=[MODEL]).predicted_delay == pytest.approx(3 / (LR * DECAY))
    assert prediction.predict_delay(known, models=[MODEL], budget=10**9).probability == pytest.approx(
        1, abs=1e-9
    )


@pytest.fixture
def small_model(monkeypatch):
    monkeypatch.setattr(prediction, "load_models", lambda: (MODEL,))


def test_the_trainer_stops_where_generalization_is_predicted_too_late(run, small_model, tmp_path):
    forecast = predict_run(run, models=[MODEL])
    stopped = train(replace(CONFIG, stop_if_predicted_after=200), tmp_path / "stopped")
    assert stopped.finish_reason.startswith("predicted: generalization predicted at step")
    assert stopped.steps[-1] == forecast.used_until_step
    series = stopped.metrics["predicted_generalization"]
    assert series.value.tolist() == pytest.approx([forecast.predicted_generalization])
    assert predict_run(stopped, models=[MODEL]) == forecast
    assert train(replace(CONFIG, stop_if_predicted_after=200), tmp_path / "stopped").hash == stopped.hash


def test_the_trainer_goes_on_where_it_is_not(run, small_model, tmp_path):
    going = train(replace(CONFIG, stop_if_predicted_after=10**6), tmp_path / "going")
    assert going.finish_reason.startswith("steps; not stopped before: generalization predicted at step")
    assert going.hash == run.hash
