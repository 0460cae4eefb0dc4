"""Chosen snapshots: as many as asked for, ends included, dense where asked, milestones hit."""

import numpy as np
import pytest
from grokscope.analysis import snapshots
from grokscope.analysis.snapshots import at_most, choose
from memory_run import MemoryRun


def a_run(steps):
    return MemoryRun("nowhere", np.zeros((len(steps), 2), dtype=np.float32), steps)


REGULAR = a_run(np.arange(0, 5001, 20))
EARLY = a_run(np.unique(np.concatenate([np.geomspace(1, 100, 20).astype(int), np.arange(0, 5001, 100)])))


@pytest.mark.parametrize("run", [REGULAR, EARLY, a_run([0, 1, 2]), a_run([500, 501, 90000])])
@pytest.mark.parametrize("count", [2, 3, 10, 40])
def test_count_ends_and_order(run, count):
    count = min(count, len(run))
    chosen = choose(run, count=count)
    assert len(chosen) == count
    assert chosen[0] == 0
    assert chosen[-1] == len(run) - 1
    assert (np.diff(chosen) > 0).all()


def test_half_even_in_step_half_in_its_logarithm():
    steps = np.arange(10001)
    chosen = steps[choose(a_run(steps), count=41)]
    # u = s/S + log(1+s)/log(1+S) at even spacing; one snapshot per step resolves it past the first steps.
    u = chosen / 10000 + np.log1p(chosen) / np.log1p(10000)
    late = chosen > 100
    np.testing.assert_allclose(np.diff(u[late]), 0.05, atol=2e-3)


def test_default_is_all_and_steps_are_looked_up():
    assert choose(REGULAR).tolist() == list(range(len(REGULAR)))
    assert choose(REGULAR, steps=[100, 0, 100]).tolist() == [0, 5]


def test_the_nearest_inner_snapshots_move_onto_the_milestones(monkeypatch):
    monkeypatch.setattr(snapshots, "_milestone_steps", lambda run: [301, 2999])
    chosen = choose(REGULAR, count=12)
    assert len(chosen) == 12
    assert {300, 3000} <= set(REGULAR.steps[chosen].tolist())
    assert {0, 5000} <= set(REGULAR.steps[chosen].tolist())
    without = choose(REGULAR, count=12, milestones=False)
    assert len(set(chosen) - set(without)) <= 2


def test_milestones_at_the_ends_or_twice_change_nothing(monkeypatch):
    monkeypatch.setattr(snapshots, "_milestone_steps", lambda run: [5000, 5000])
    np.testing.assert_array_equal(choose(REGULAR, count=9), choose(REGULAR, count=9, milestones=False))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 1}, "count=1"),
        ({"count": 999}, "251"),
        ({"steps": [30]}, "nearest are at 20, 40"),
        ({"steps": []}, "empty"),
        ({"count": 3, "steps": [0]}, "exclude"),
    ],
)
def test_wrong_requests_say_what_is_possible(arguments, message):
    with pytest.raises(ValueError, match=message):
        choose(REGULAR, **arguments)


def test_at_most_takes_all_of_a_shorter_run():
    assert at_most(REGULAR, 10**6).tolist() == list(range(len(REGULAR)))
    assert at_most(REGULAR, 9).tolist() == choose(REGULAR, count=9).tolist()
    assert at_most(REGULAR, 9, steps=(100, 0)).tolist() == [0, 5]
