from itertools import pairwise

import pytest
from grokscope.runs.schedule import due_steps, is_due


def test_dense_early_then_regular():
    assert due_steps(100, 20) == (0, 1, 2, 3, 4, 6, 8, 11, 16, 20, 40, 60, 80, 100)


def test_every_one_is_every_step():
    assert due_steps(5, 1) == (0, 1, 2, 3, 4, 5)


def test_never():
    assert due_steps(1000, 0) == ()


@pytest.mark.parametrize("every", [2, 7, 50, 1000, 10**6])
def test_spacing_grows_up_to_every(every):
    steps = due_steps(3000, every)
    assert set(range(0, 3001, every)) <= set(steps)
    # sqrt 2 apart and rounded to whole steps: from 4 on a ratio of at most 1.5
    assert all(b - a <= every and (a < 4 or b <= 1.5 * a) for a, b in pairwise(steps) if b <= every)


def test_large_steps_are_exact():
    geometric = [round(2 ** (k / 2)) for k in range(2, 60)]
    assert all(is_due(step, 2**40) for step in geometric)
    assert not any(is_due(step + 1, 2**40) for step in geometric if step > 8)


@pytest.mark.parametrize(("step", "every", "name"), [(-1, 5, "step=-1"), (1, -5, "every=-5")])
def test_negative_is_refused(step, every, name):
    with pytest.raises(ValueError, match=name):
        is_due(step, every)
