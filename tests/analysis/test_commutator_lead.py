"""Onset rules, the published power laws recomputed, and the censored regression against known slopes."""

from math import inf, isnan, nan

import numpy as np
import pytest
from grokscope.analysis.lead import falls_below, onset_regression, power_law, shuffled_slopes
from grokscope.analysis.onset import (
    Onset,
    alarm_level,
    calibrated_factor,
    published_onset,
    sustained_onset,
)

# Published (generalization, onset) steps of arXiv 2602.16967, runs with a positive lead.
SCAN = [(115000, 3000), (14500, 1000), (27000, 2000), (14000, 2000), (6500, 700), (7000, 1700), (7200, 1000)]
SCAN += [(1800, 1000), (16000, 1500), (4000, 1500), (1700, 800)]
DYCK = [(68000, 3000), (29000, 13500), (44000, 1000), (32000, 9000), (5800, 600), (6800, 400), (10800, 1000)]
DYCK += [
    (2900, 200),
    (4400, 200),
    (7500, 200),
    (2100, 500),
    (1200, 1000),
    (11900, 900),
    (2900, 300),
    (3700, 200),
]


@pytest.mark.parametrize(
    ("rows", "law", "null", "slope"),
    [
        (SCAN, (1.180, 0.149, 0.990), (1.353, 0.960), 0.28),
        (DYCK, (1.132, 0.239, 0.908), (1.170, 0.987), 0.76),
    ],
)
def test_published_power_laws_and_their_constant_onset_nulls(rows, law, null, slope):
    t, onset = np.array(rows, dtype=float).T
    found = power_law([*onset, nan, 500.0], [*t, 900.0, 400.0])
    # The published numbers are rounded to the last digit given.
    assert (found.exponent, found.coefficient, found.r_squared) == pytest.approx(law, abs=6e-4)
    assert (found.null_exponent, found.null_r_squared) == pytest.approx(null, abs=6e-4)
    assert found.onset_slope == pytest.approx(slope, abs=6e-3)
    assert (found.runs, found.dropped) == (len(rows), 2)


def test_a_constant_onset_makes_a_steep_power_law_by_algebra():
    t = np.geomspace(3e3, 1e5, 20)
    found = power_law(np.full(20, 2000.0), t)
    assert found.exponent > 1.2
    assert found.exponent == pytest.approx(found.null_exponent)
    assert found.onset_slope == pytest.approx(0, abs=1e-12)


def test_published_rule():
    steps = np.arange(0, 1000, 100)
    values = np.array([2.0, 2.2, 1.8, 5, 19, 30, 40, 3, 50, 60.0])
    assert published_onset(steps, values) == Onset(400, 500)
    assert isnan(published_onset(steps, 100 * np.ones(10)).step)  # above 20, but not above the baseline
    small = np.array([0.0, 0, 0, 15, 19, 21, 0, 0, 0, 0])
    assert published_onset(steps, small) == Onset(400, 500)  # baseline 0.1, and 20 at least
    early = np.array([2.0, 50.0, 50.0, 1.0])
    assert isnan(published_onset(steps[:4], early).step)  # two of three baseline values are high already
    assert isnan(published_onset(steps[:2], values[:2]).step)


def test_sustained_rule_does_not_depend_on_the_cadence():
    def signal(step):
        return np.where(step < 430, 1.0 + 0 * step, 20.0)

    for spacing in (10, 50, 200):
        steps = np.arange(0, 2001, spacing)
        found = sustained_onset(steps, signal(steps), factor=10)
        assert found.below < 430 <= found.step
        assert found.step - found.below == spacing


def test_sustained_rule_ignores_spikes_and_needs_confirmation():
    steps = np.arange(0, 500, 50)
    values = np.ones(10)
    values[3] = 50
    assert isnan(sustained_onset(steps, values, factor=10, sustain=100).step)
    assert sustained_onset(steps, values, factor=10, sustain=0) == Onset(100, 150)
    values[-1] = 50
    assert isnan(sustained_onset(steps, values, factor=10, sustain=100).step)


def test_calibration_bounds_the_false_alarms():
    rng = np.random.default_rng(0)
    steps = np.arange(0, 1000, 20)

    def control():
        return np.exp(0.3 * rng.standard_normal(50).cumsum() / 5)

    alarms = 0
    for _ in range(200):
        levels = [alarm_level(steps, control()) for _ in range(39)]
        factor = calibrated_factor(levels, rate=0.1)
        alarms += not isnan(sustained_onset(steps, control(), factor=factor).step)
    # Expected 4/40 = .1 exactly; 200 trials: three sigma above is .164.
    assert 0.03 < alarms / 200 < 0.165
    assert calibrated_factor([1.0] * 5, rate=0.05) == inf
    assert alarm_level(steps, np.ones(50)) == 1
    with pytest.raises(ValueError, match="rate=0"):
        calibrated_factor([1.0], rate=0)


def simulated(slope, *, runs=60, seed=0, spacing=100):
    """Onsets known to the next multiple of `spacing`, in two cells; a third of them later than the budget."""
    rng = np.random.default_rng(seed)
    cells = np.array(["a", "b"])[np.arange(runs) % 2]
    t = np.exp(rng.normal(8.0, 0.5, runs))
    true = np.exp(
        np.log(900) + 0.5 * (cells == "b") + slope * (np.log(t) - 8) + 0.2 * rng.standard_normal(runs)
    )
    budgets = np.where(rng.random(runs) < 0.3, 900.0, 1e6)
    upper = np.ceil(true / spacing) * spacing
    onsets = [
        Onset(u - spacing, u) if u <= b else Onset(nan, nan) for u, b in zip(upper, budgets, strict=True)
    ]
    return onsets, t, budgets, cells


@pytest.mark.parametrize("slope", [0.0, 0.7])
def test_censored_regression_finds_the_slope(slope):
    found = [onset_regression(*simulated(slope, seed=seed)) for seed in range(20)]
    # Deviation of one slope is .2/(.5 sqrt(60)) = .06: the mean of 20 within .04 (three sigma).
    assert np.mean([one.slope for one in found]) == pytest.approx(slope, abs=0.05)
    covered = sum(one.low <= slope <= one.high for one in found)
    assert covered >= 16  # of 20 at 95 %: fewer with probability .003
    assert all(one.censored > 0 for one in found)
    if slope:
        assert all(one.p < 1e-6 for one in found)


def test_regression_counts_what_it_leaves_out():
    onsets, t, budgets, cells = simulated(0.0)
    t = t.copy()
    t[:5] = nan
    found = onset_regression(onsets, t, budgets, cells)
    assert (found.runs, found.excluded) == (55, 5)
    with pytest.raises(ValueError, match="only 2 runs generalize"):
        onset_regression(onsets[:2], t[5:7], budgets[:2], cells[:2])
    with pytest.raises(ValueError, match="one of each per run"):
        onset_regression(onsets, t[1:], budgets, cells)


def test_shuffled_onsets_have_slope_zero():
    data = simulated(0.7)
    slopes = shuffled_slopes(*data, draws=20)
    assert abs(slopes.mean()) < 0.1
    assert onset_regression(*data).slope > slopes.max()


def test_trivial_events():
    steps = np.array([0, 10, 20, 30])
    assert falls_below(steps, np.array([5.0, 2.0, 0.5, 0.1]), 1.0) == Onset(10, 20)
    assert isnan(falls_below(steps, np.ones(4), 0.5).step)
    assert falls_below(steps, np.zeros(4), 0.5) == Onset(0, 0)
