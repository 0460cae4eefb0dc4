"""Lead times over runs with known onsets, and the calibration of the onset rule."""

from math import isinf, nan
from types import SimpleNamespace

import numpy as np
import pytest
from grokscope.analysis.commands.main import main
from grokscope.analysis.lead_time import Course, calibrate, course, lead_times
from grokscope.analysis.lead_time_page import page
from grokscope.analysis.onset import CALIBRATED, EXACT, Onset, onsets
from grokscope.runs.store import Run
from grokscope.runs.sweep import entries, sweep


def courses(slope, *, runs=40, seed=0):
    """Onsets with a known slope on log t in four cells; a rule that never alarms beside it."""
    rng = np.random.default_rng(seed)
    t = np.exp(rng.normal(8.0, 0.5, runs))
    onset = 300 * (t / np.exp(8)) ** slope * np.exp(0.1 * rng.standard_normal(runs))
    return [
        Course({"rule": Onset(o - 10, o), "silent": Onset(nan, nan)}, g, 10**6, f"cell {k % 4}")
        for k, (o, g) in enumerate(zip(onset, t, strict=True))
    ]


def test_a_constant_onset_looks_like_a_law_and_is_none():
    found, silent = lead_times(courses(0.0), draws=19)
    assert found.law.exponent == pytest.approx(found.law.null_exponent, abs=0.05)
    assert found.law.exponent > 1.05
    assert found.within.low < 0 < found.within.high
    assert found.shuffled[0] < found.within.slope < found.shuffled[1] or abs(found.within.slope) < 0.1
    assert found.leads == found.runs == 40
    assert silent.leads == 0
    assert silent.law is None
    assert silent.within is None


def test_an_onset_at_a_fixed_fraction_has_slope_one():
    found = lead_times(courses(1.0), draws=19)[0]
    assert found.within.low < 1 < found.within.high
    assert found.within.low > found.shuffled[1]
    text = page([found], courses(1.0))
    assert "| rule | 40 of 40 |" in text
    with pytest.raises(ValueError, match="courses are empty"):
        lead_times([])


def control(seed):
    rng = np.random.default_rng(seed)
    steps = np.arange(0, 2000, 50)
    columns = {name: np.exp(0.2 * rng.standard_normal(40).cumsum()) for name in EXACT}
    return SimpleNamespace(steps=steps, gradient_norm=np.exp(-rng.standard_normal(40)), **columns)


def test_calibration_states_and_tests_its_false_alarms():
    found = calibrate([control(seed) for seed in range(20)])
    assert [one.signal for one in found] == [*EXACT, "inverse_gradient_norm"]
    for one in found:
        assert np.isfinite(one.factor)
        assert one.expected_alarms == pytest.approx(20 / 11)
        assert one.alarms <= 7  # more with probability below .01: the number exceeding is a negative binomial
    assert all(isinf(one.factor) for one in calibrate([control(seed) for seed in range(18)]))


def test_fresh_controls_alarm_at_the_stated_rate():
    """Expected at most 1/21 with 20 controls and the largest level: 400 trials, three sigma above is .08."""
    alarms = 0
    for trial in range(400):
        rng = np.random.default_rng(trial)
        levels = np.exp(rng.standard_normal(21))
        alarms += levels[-1] > np.sort(levels[:-1])[19]
    assert alarms / 400 < 0.08


def test_onsets_use_the_calibrated_factors():
    steps = np.arange(0, 1000, 50)
    rise = np.where(steps >= 300, 1.0, 0.0)
    columns = {name: 1 + rise * (1.1 * CALIBRATED[name] - 1) for name in EXACT}
    columns |= {"gradient_norm": np.ones(20), "float32_defect": np.ones(20)}
    found = onsets(steps, columns)
    for name in EXACT:
        assert found[name] == Onset(250, 300) or CALIBRATED[name] <= 1
    assert np.isnan(found["inverse_gradient_norm"].step)
    assert all(factor > 1 for factor in CALIBRATED.values())


def test_the_command_measures_and_tells(tmp_path, capsys):
    spec = {
        "seeds": 1,
        "base": {
            "modulus": 7, "steps": 80, "batch_size": 16, "width": 16, "heads": 2, "feedforward": 32,
            "evaluate_every": 20, "snapshot_every": 20, "second_moment_every": 20, "train_fraction": 0.6,
        },
    }  # fmt: skip
    home = tmp_path / "runs"
    sweep(entries(spec), home)
    run = Run.open(next(home.rglob("run.h5")).parent)
    found = course(run)
    assert {"published_float32", *EXACT, "train_loss / 10", "gradient_norm / 10"} <= set(found.onsets)
    assert (run.path / "commutator-onset.h5").exists()
    assert main(["lead", str(home), "--out", str(tmp_path / "lead.md"), "--quiet"]) == 0
    assert "1 runs in 1 cells" in (tmp_path / "lead.md").read_text()
    assert "published_float32" in capsys.readouterr().out
    assert main(["lead", str(home), "--calibration"]) == 2
    assert "1 controls calibrate nothing" in capsys.readouterr().err
