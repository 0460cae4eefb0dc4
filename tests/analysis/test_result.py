"""Results come back bit for bit, and only for the run that they were made from."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from grokscope.analysis import result
from memory_run import random_run


@dataclass(frozen=True)
class Curve:
    KIND: ClassVar[str] = "curve"
    REVISION: ClassVar[int] = 3
    steps: np.ndarray
    values: np.ndarray
    words: np.ndarray
    flags: np.ndarray
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    verdict: str
    batch: int
    scale: float
    exact: bool
    extra: np.ndarray | None


@dataclass(frozen=True)
class Later:
    KIND: ClassVar[str] = "curve"
    REVISION: ClassVar[int] = 4
    steps: np.ndarray


def a_curve(run):
    return Curve(
        steps=run.steps,
        values=np.array([[1.5, np.nan, -np.inf]], dtype=np.float32),
        words=np.array(["ok", "suspect", "naïve"]),
        flags=np.array([True, False]),
        names=("a", "b"),
        sizes=(3, 1),
        verdict="ok",
        batch=512,
        scale=0.1,
        exact=True,
        extra=None,
    )


def test_every_kind_of_field_comes_back(tmp_path):
    run = random_run(tmp_path)
    saved = a_curve(run)
    assert result.save(saved, run) == tmp_path / "curve.h5"
    loaded = result.load(Curve, run)
    for name in Curve.__dataclass_fields__:
        left, right = getattr(saved, name), getattr(loaded, name)
        assert type(left) is type(right), name
        np.testing.assert_array_equal(left, right, err_msg=name)
        if isinstance(left, np.ndarray):
            assert left.dtype.kind == right.dtype.kind
    assert loaded.values.dtype == np.float32


def test_empty_tuples_and_arrays_come_back(tmp_path):
    run = random_run(tmp_path)
    result.save(replace(a_curve(run), names=(), values=np.empty((0, 4))), run)
    loaded = result.load(Curve, run)
    assert loaded.names == ()
    assert loaded.values.shape == (0, 4)


@pytest.mark.parametrize("bad", [{"a": 1}, [None, "x"], np.array([object()]), ("a", 1)])
def test_what_cannot_be_stored_is_refused_by_name(tmp_path, bad):
    run = random_run(tmp_path)
    with pytest.raises(ValueError, match="extra"):
        result.save(replace(a_curve(run), extra=bad), run)
    assert list(tmp_path.iterdir()) == []


def test_missing_result_names_the_command(tmp_path):
    run = random_run(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"grokscope analyze curve {tmp_path} --name x"):
        result.load(Curve, run, name="x")
    assert result.status(Curve, run, name="x") == "missing"


def test_changed_snapshot_other_run_and_revision_are_stale(tmp_path):
    run = random_run(tmp_path)
    result.save(a_curve(run), run)
    changed = random_run(tmp_path)
    changed.thetas[3, 2] += 1e-6
    for other, cls in ((changed, Curve), (random_run(tmp_path, seed=1), Curve), (run, Later)):
        with pytest.raises(result.StaleResult, match="grokscope analyze curve") as caught:
            result.load(cls, other)
        assert caught.value.path == tmp_path / "curve.h5"
        assert result.status(cls, other) == "stale"
    shorter = random_run(tmp_path, snapshots=5)
    assert result.status(Curve, shorter) == "stale"


def test_appended_snapshots_make_it_partial_yet_valid(tmp_path):
    run = random_run(tmp_path)
    result.save(a_curve(run), run)
    assert result.status(Curve, run) == "complete"
    longer = random_run(tmp_path)
    longer.thetas = np.concatenate([longer.thetas, longer.thetas[-1:] + 1])
    longer.steps = np.append(longer.steps, 999)
    assert result.status(Curve, longer) == "partial"
    np.testing.assert_array_equal(result.load(Curve, longer).steps, run.steps)


def test_names_and_directory(tmp_path):
    run = random_run(tmp_path / "run")
    Path(run.path).mkdir()
    elsewhere = tmp_path / "else where" / "deep"
    result.save(a_curve(run), run, name="b_2", directory=elsewhere)
    result.save(a_curve(run), run, directory=elsewhere)
    assert result.names("curve", run, directory=elsewhere) == (None, "b_2")
    assert result.names("curve", run) == ()
    assert result.load(Curve, run, name="b_2", directory=elsewhere).batch == 512
    with pytest.raises(ValueError, match="name="):
        result.save(a_curve(run), run, name="../escape")


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    run = random_run(tmp_path)
    path = result.save(a_curve(run), run)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(OSError, match=r"curve\.h5"):
        result.load(Curve, run)


def test_a_step_without_snapshot_is_refused(tmp_path):
    run = random_run(tmp_path)
    with pytest.raises(ValueError, match="steps=7"):
        result.save(replace(a_curve(run), steps=np.array([0, 7])), run)
