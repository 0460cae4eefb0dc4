"""A walk asks each snapshot once, keeps what it has, and goes on from there to the same bits."""

import numpy as np
import pytest
from grokscope.analysis import result
from grokscope.analysis.result import walk
from memory_run import random_run

OPTIONS = {"rank": 2, "which": ("a", "b")}


class Power:
    """Warm-started power iteration: a measure whose answer depends on the row before."""

    def __init__(self, stop_at=None):
        self.asked, self.stop_at = [], stop_at

    def __call__(self, index, theta, previous):
        if index == self.stop_at:
            raise KeyboardInterrupt
        self.asked.append(index)
        start = np.ones(len(theta)) if previous is None else previous["_vector"]
        vector = np.outer(theta, theta) @ start + 0.1 * start
        vector /= np.linalg.norm(vector)
        return {
            "value": float(vector @ theta),
            "pair": vector[:2],
            "verdict": "ok" * (index + 1),
            "_vector": vector,
        }


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


def test_rows_are_stacked_in_order_and_handed_on_entries_are_not(tmp_path):
    run = random_run(tmp_path)
    found = walk(run, [0, 2, 5], Power(), kind="power", options=OPTIONS)
    assert set(found) == {"value", "pair", "verdict"}
    assert found["pair"].shape == (3, 2)
    assert found["verdict"].tolist() == ["ok", "ok" * 3, "ok" * 6]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stop_at", [1, 3, 6])
def test_an_interrupted_walk_resumes_to_the_same_bits(tmp_path, stop_at):
    run = random_run(tmp_path)
    whole = walk(run, range(7), Power(), kind="power", options=OPTIONS, directory=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        walk(run, range(7), Power(stop_at), kind="power", options=OPTIONS)
    assert (tmp_path / "power.partial.h5").exists()
    rest = Power()
    assert_equal(walk(run, range(7), rest, kind="power", options=OPTIONS), whole)
    assert rest.asked == list(range(stop_at, 7))
    assert not (tmp_path / "power.partial.h5").exists()


@pytest.mark.parametrize("change", [{"options": {"rank": 3}}, {"revision": 1}, {"indices": range(1, 7)}])
def test_a_partial_walk_of_another_question_is_not_resumed(tmp_path, change):
    run = random_run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        walk(run, range(7), Power(3), kind="power", options=OPTIONS)
    again = Power()
    arguments = {"indices": range(7), "options": OPTIONS} | change
    walk(run, arguments.pop("indices"), again, kind="power", **arguments)
    assert len(again.asked) >= 6


def test_rows_are_kept_as_it_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(result, "_PAUSE", 0.0)
    seen = []

    def measure(index, theta, previous):
        seen.append((tmp_path / "m.partial.h5").exists())
        return {"x": index}

    run = random_run(tmp_path)
    # The pause grows with the cost of saving, so only the first rows are sure to be saved at once.
    assert walk(run, range(7), measure, kind="m", options={})["x"].tolist() == list(range(7))
    assert seen[:2] == [False, True]


def double(index, theta, previous):
    return {"x": 2.0 * theta, "first": previous is None}


def test_processes_give_the_rows_of_one(tmp_path):
    run = random_run(tmp_path)
    parallel = walk(run, range(7), double, kind="m", options={}, jobs=2)
    np.testing.assert_array_equal(parallel["x"], 2.0 * run.thetas)
    assert parallel["first"].all()


def test_unequal_shapes_are_refused_by_name(tmp_path):
    run = random_run(tmp_path)
    with pytest.raises(ValueError, match="x: shapes"):
        walk(run, range(3), lambda i, theta, _: {"x": np.ones(i)}, kind="m", options={})
    with pytest.raises(ValueError, match="jobs=0"):
        walk(run, range(3), double, kind="m", options={}, jobs=0)


def test_progress_sees_what_is_left(tmp_path):
    told = {}

    def progress(iterable, *, description="", total=None):
        told.update(description=description, total=total)
        return iterable

    walk(random_run(tmp_path), range(4), double, kind="m", options={}, progress=progress)
    assert told == {"description": "m", "total": 4}
