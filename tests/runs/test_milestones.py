from types import SimpleNamespace

import numpy as np
import pytest
from grokscope.runs.milestones import Crossing, MilestoneMonitor, crossing, milestones

STEPS = list(range(0, 1001, 50))


def curve(**spans):
    """Counts of 100 samples at STEPS: `at(a, b)` is 99 for a <= step < b, else 50."""
    return [next((99 for a, b in spans.values() if a <= s < b), 50) for s in STEPS]


def test_interval_and_confirmation():
    found = crossing(STEPS, curve(up=(300, 2000)), 100, sustain=120)
    assert found == Crossing(below=250, step=300, confirmed=450)


def test_a_spike_is_ignored_by_the_sustained_crossing_and_kept_by_the_first():
    counts = curve(spike=(100, 150), up=(300, 2000))
    assert crossing(STEPS, counts, 100, sustain=100) == Crossing(250, 300, 400)
    assert crossing(STEPS, counts, 100, sustain=0) == Crossing(50, 100, 100)


def test_a_dip_after_confirmation_changes_nothing():
    counts = curve(up=(300, 500), again=(600, 2000))
    assert crossing(STEPS, counts, 100, sustain=100) == Crossing(250, 300, 400)


def test_sustained_counts_steps_not_entries():
    dense = list(range(0, 101))
    assert crossing(dense, [99] * 5 + [0] * 96, 100, sustain=100) is None
    assert crossing(dense, [99] * 101, 100, sustain=100) == Crossing(None, 0, 100)


def test_not_confirmed_before_the_end():
    assert crossing(STEPS, curve(up=(950, 2000)), 100, sustain=100) is None


@pytest.mark.parametrize(("total", "needed"), [(100, 7), (200, 14), (101, 8), (4705, 330)])
def test_threshold_is_exact(total, needed):
    assert 0.07 * 100 > 7  # the trap
    assert crossing([1], [needed], total, threshold=0.07, sustain=0) is not None
    assert crossing([1], [needed - 1], total, threshold=0.07, sustain=0) is None


def test_online_equals_offline_at_every_prefix():
    generator = np.random.default_rng(0)
    train, test = (generator.integers(95, 101, len(STEPS)) for _ in range(2))
    monitor = MilestoneMonitor(100, 100, threshold=0.97)
    for n, step in enumerate(STEPS, start=1):
        known = monitor.update(step, int(train[n - 1]), int(test[n - 1]))
        assert known.memorized == crossing(STEPS[:n], train[:n], 100, threshold=0.97)
        assert known.first_generalized == crossing(STEPS[:n], test[:n], 100, threshold=0.97, sustain=0)
        assert known.budget == step


def drawn_run(train, test):
    series = {
        f"{name}_correct": SimpleNamespace(step=np.array(STEPS), value=np.array(counts))
        for name, counts in (("train", train), ("test", test))
    }
    return SimpleNamespace(
        metrics=series, provenance={"train_total": 100, "test_total": 100}, steps=np.array([0, 1200])
    )


def test_milestones_of_a_run():
    run = drawn_run(curve(up=(200, 2000)), curve(spike=(300, 350), up=(600, 2000)))
    found = milestones(run)
    assert found.memorized == Crossing(150, 200, 300)
    assert found.generalized == Crossing(550, 600, 700)
    assert found.first_generalized == Crossing(250, 300, 300)
    assert (found.delay, found.budget) == (400, 1000)
    assert found.last_step(20) == 700
    assert found.last_step(500) == 1100
    assert found.last_step(None) is None


def test_truncation():
    run = drawn_run(curve(up=(200, 2000)), curve(up=(600, 2000)))
    found = milestones(run, until=650)
    assert found.memorized == Crossing(150, 200, 300)
    assert (found.generalized, found.budget, found.delay) == (None, 650, None)


def test_a_run_without_counts_has_no_milestones():
    run = SimpleNamespace(metrics={}, provenance={}, steps=np.array([0, 40]))
    found = milestones(run)
    assert (found.memorized, found.generalized, found.budget) == (None, None, 40)


def test_counts_without_a_total_are_refused():
    run = drawn_run(curve(), curve())
    run.provenance.clear()
    with pytest.raises(ValueError, match="train_total"):
        milestones(run)


@pytest.mark.parametrize(
    ("steps", "counts", "total", "message"),
    [([1, 1], [0, 0], 10, "step=1"), ([1], [11], 10, "correct=11"), ([1], [1], 0, "total=0")],
)
def test_bad_input_is_named(steps, counts, total, message):
    with pytest.raises(ValueError, match=message):
        crossing(steps, counts, total)
