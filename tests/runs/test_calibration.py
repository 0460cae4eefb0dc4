from dataclasses import replace
from math import exp, inf, log

import numpy as np
import pytest
from grokscope.runs import calibration, predictors
from grokscope.runs.calibration import Record
from grokscope.runs.evidence import Setting
from grokscope.runs.milestones import Crossing, Milestones


def record(cell, seed, *, lr=1e-3, weight_decay=1.0, delay=2000, start=3000.0, kappa=0.5, memorized=300):
    """A drawn run whose norm contracts at kappa times the rate of decay alone."""
    rate = 2 * kappa * lr * weight_decay
    steps = np.arange(0.0, memorized + 201, 10)
    end = None if delay is None else memorized + delay
    generalized = None if end is None else Crossing(end - 20, end, end + 100)
    known = Crossing(memorized - 20, memorized, memorized + 100)
    whole = np.arange(0.0, (end or 5000) + 1, 20)
    norms, whole_norms = (start * np.exp(-rate * at) for at in (steps, whole))
    return Record(
        cell=cell,
        seed=seed,
        setting=Setting(lr, weight_decay, 500, 1000, 10_000),
        fields={"task": "add", "modulus": 31, "layers": 1, "width": 64, "train_fraction": 0.5,
                "embedding_init_scale": 1.0},
        milestones=Milestones(known, generalized, known, generalized, int(whole[-1])),
        curves={"squared_norm": (steps, norms), "train_loss": (steps, 0 * steps + 0.5)},
        norm=(whole, whole_norms),
        hidden={"test_loss": 2.5, "test_accuracy": 0.25},
    )  # fmt: skip


def law_records(kappa=0.5, target=400.0):
    """Runs that follow the log-ratio law exactly, over rates and starting norms."""
    found = []
    for cell, (lr, start) in enumerate([(1e-3, 3000.0), (2e-3, 3000.0), (1e-3, 1500.0), (4e-3, 9000.0)], 1):
        norm = start * exp(-2 * kappa * lr * 300)
        delay = round(log(norm / target) / (2 * kappa * lr))
        found += [record(cell, 10 * cell + k, lr=lr, start=start, delay=delay, kappa=kappa) for k in range(3)]
    return found


def test_what_is_saved_comes_back(tmp_path):
    records = [record(1, 3), record(2, 4, delay=None), replace(record(2, 5), curves=record(2, 5).curves)]
    path = calibration.save(records, tmp_path / "data.npz")
    again = calibration.load(path)
    for old, new in zip(records, again, strict=True):
        assert (new.cell, new.seed, new.setting, new.fields) == (old.cell, old.seed, old.setting, old.fields)
        assert new.milestones == old.milestones
        assert new.hidden == old.hidden
        for name, (steps, values) in old.curves.items():
            np.testing.assert_array_equal(new.curves[name][0], steps)
            np.testing.assert_allclose(new.curves[name][1], values, rtol=1e-7)  # stored as float32
    assert calibration.save(records, tmp_path / "again.npz").read_bytes() == path.read_bytes()


def test_bounds_hold_the_delay():
    assert record(1, 1, delay=2000).bounds == (1980, 2020)
    assert record(1, 1, delay=None).bounds == (4700, inf)


def test_at_risk_is_decided_by_the_information_time():
    assert record(1, 1, delay=120).at_risk
    assert not record(1, 1, delay=100).at_risk
    assert record(1, 1, delay=None).at_risk


def test_the_lockbox_has_sixteen_cells():
    records = [record(cell, cell) for cell in range(1, 65)]
    inside, outside = (calibration.lockbox(records, opened=opened) for opened in (True, False))
    assert (len(inside), len(outside)) == (16, 48)
    assert {r.cell for r in inside} == set(calibration.LOCKBOX)


def test_the_log_ratio_law_finds_its_constants():
    law = predictors.LogRatio.fit(law_records())
    # Delays are whole steps of at most 0.1 %, and the grid of targets is 2.5 % apart.
    assert law.kappa == pytest.approx(0.5, rel=0.03)
    assert law.target == pytest.approx(400, rel=0.05)
    for item in law_records():
        assert law.predict(item.evidence) == pytest.approx(item.delay, rel=0.02)


def test_inverse_decay_and_local_rate_find_theirs():
    runs = [record(c, c, lr=lr, delay=round(2.5 / lr)) for c, lr in enumerate((5e-4, 1e-3, 2e-3), 1)]
    simple = predictors.InverseDecay.fit(runs)
    assert exp(simple.constant) == pytest.approx(2.5, rel=1e-3)
    local = predictors.LocalRateLaw.fit(runs)
    assert local.log_ratio == pytest.approx(2 * 0.5 * 2.5, rel=1e-3)
    assert local.predict(runs[0].evidence) == pytest.approx(runs[0].delay, rel=1e-3)


def test_the_successor_is_undefined_below_its_target():
    assert np.isnan(predictors.SUCCESSOR.predict(record(1, 1, start=2000.0).evidence))
    high = record(1, 1, start=9000.0).evidence
    expected = log(high.norm / 2501) / (2 * 0.252 * 1e-3)
    assert predictors.SUCCESSOR.predict(high) == pytest.approx(expected)


def test_published_arithmetic_needs_the_end():
    known = record(1, 1).evidence
    assert predictors.published(known, known.norm / exp(2)) == pytest.approx(2 / (2 * 1e-3))
    assert np.isnan(predictors.published(known, known.norm * 2))


def test_cell_means_leave_the_run_itself_out():
    runs = [record(1, k, delay=delay) for k, delay in enumerate((1000, 2000, 3000))] + [record(2, 9)]
    np.testing.assert_array_equal(predictors.cell_means(runs), [2500, 2000, 1500, np.nan])


def test_censored_runs_do_not_enter_least_squares():
    runs = [record(1, 1, delay=1000), record(2, 2, delay=None)]
    assert exp(predictors.InverseDecay.fit(runs).constant) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="nothing to fit"):
        predictors.InverseDecay.fit([record(2, 2, delay=None)])
