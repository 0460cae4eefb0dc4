"""Calls in order, on one thread each, whatever the number of processes."""

import os

import pytest
import torch
from grokscope.analysis.parallel import default_jobs, each


def whereabouts(number):
    return number, torch.get_num_threads(), os.getpid()


def fail(number):
    if number == 3:
        raise ArithmeticError("three")
    return number


@pytest.mark.parametrize("jobs", [1, 2])
def test_answers_come_in_order_from_one_thread(jobs):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = list(each(whereabouts, ((n,) for n in range(7)), jobs=jobs))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert [number for number, *_ in found] == list(range(7))
    assert {count for _, count, _ in found} == {1}
    assert (os.getpid() in {home for *_, home in found}) == (jobs == 1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_call_raises_comes_through(jobs):
    with pytest.raises(ArithmeticError, match="three"):
        list(each(fail, ((n,) for n in range(5)), jobs=jobs))


def test_jobs_below_one_are_refused():
    with pytest.raises(ValueError, match="jobs=0 must be at least 1"):
        next(each(fail, [(1,)], jobs=0))
    assert default_jobs() >= 1
