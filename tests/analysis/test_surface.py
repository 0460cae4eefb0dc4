"""A surface is the loss itself: closed forms on quadratics, and the same bits after an interruption."""

import numpy as np
import pytest
import torch
from grokscope.analysis import surface as module
from grokscope.analysis.result import load, save
from grokscope.analysis.surface import Surface, losses, surface_along
from grokscope.geometry.objective import Objective, from_module
from grokscope.geometry.walks import time_weights
from memory_run import MemoryRun, random_run

CENTERS = torch.linspace(-1, 1, 6, dtype=torch.float64)


def squares(theta, indices):
    """Mean over samples of |θ - c_i 1|²/2: a quadratic with its minimum at mean(c) = 0."""
    return 0.5 * ((theta - CENTERS[indices, None].to(theta.dtype)) ** 2).sum(-1).mean()


def bowl(**options):
    return Objective(squares, num_samples=6, **options)


def exact(theta):
    """|θ|²/2 + P var(c)/2 in closed form, since the mean of the centers is 0."""
    theta = np.asarray(theta, dtype=np.float64)
    return 0.5 * (theta**2).sum(-1) + 0.5 * theta.shape[-1] * float((CENTERS**2).mean())


def a_run(path):
    run = random_run(path, snapshots=9, size=7)
    run.thetas, run.dtype = run.thetas.astype(np.float64), "float64"
    run.hash = "0"
    return run


@pytest.mark.parametrize("chunk", [2, 4, 100])
@pytest.mark.parametrize("work", [0, 2**25])
def test_losses_of_many_points_are_those_of_each(monkeypatch, chunk, work):
    monkeypatch.setattr(module, "_STACKED_WORK", work)
    points = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(losses(bowl(chunk_size=chunk), points), exact(points), rtol=1e-13)


def test_a_model_that_changes_its_own_state_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    objective = from_module(model, torch.randn(8, 2), torch.randn(8, 3), torch.nn.functional.mse_loss)
    with pytest.raises(ValueError, match="put its model in eval mode"):
        losses(objective, torch.randn(2, objective.table.size))
    model.eval()
    assert losses(objective, torch.randn(2, objective.table.size)).shape == (2,)


def test_a_quadratic_in_closed_form(tmp_path):
    run = a_run(tmp_path)
    found = surface_along(run, objective=bowl(), size=5, points=7, snapshots=range(9))
    assert found.surface.shape == (5, 5)
    assert found.first[0] < found.scores[:, 0].min()
    assert found.first[-1] > found.scores[:, 0].max()
    np.testing.assert_allclose(found.loss, exact(run.thetas), rtol=1e-12)
    # Pythagoras: distance in the plane and off it make up the distance from the mean.
    whole = found.residual**2 + (found.scores**2).sum(1)
    weights = time_weights(run.steps)
    off = run.thetas - weights @ run.thetas
    np.testing.assert_allclose(whole, (off**2).sum(1), rtol=1e-10)
    start, stop = run.thetas[0], run.thetas[-1]
    along = start + found.line_fraction[:, None] * (stop - start)
    np.testing.assert_allclose(found.line_loss, exact(along), rtol=1e-12)
    assert found.line_steps.tolist() == [0, 80]
    assert abs(found.barrier) < 1e-12  # convex: nowhere above the chord, equal to it at the ends


def test_heights_lie_where_the_axes_say(tmp_path):
    """A run that moves in the plane only has residual 0, and its surface follows from two vectors."""
    rng = np.random.default_rng(1)
    scores, basis = rng.standard_normal((9, 2)) * [3, 1], np.linalg.qr(rng.standard_normal((7, 2)))[0].T
    run = MemoryRun(tmp_path, 1.5 + scores @ basis, np.arange(9) * 10, dtype="float64")
    run.hash = "0"
    found = surface_along(run, objective=bowl(), size=4, points=3, snapshots=range(9))
    np.testing.assert_allclose(found.residual, 0, atol=1e-10)
    np.testing.assert_allclose(found.plane_loss, found.loss, rtol=1e-10)
    weights = time_weights(run.steps)
    mean = weights @ run.thetas
    # Components from the scores of the snapshots, by least squares: independent of the analysis' basis.
    components = np.linalg.lstsq(found.scores, run.thetas - mean, rcond=None)[0]
    point = mean + found.first[3] * components[0] + found.second[1] * components[1]
    np.testing.assert_allclose(found.surface[1, 3], exact(point), rtol=1e-9)


@pytest.mark.parametrize("stop_at", [1, 2, 4, 7])
def test_an_interrupted_surface_goes_on_to_the_same_bits(tmp_path, monkeypatch, stop_at):
    monkeypatch.setattr(module, "_BATCH", 8)
    run = a_run(tmp_path)
    options = {"objective": bowl(), "size": 5, "points": 3, "snapshots": range(9)}
    whole = surface_along(run, directory=tmp_path / "whole", **options)
    asked, honest = [], module.losses

    def broken(objective, points):
        asked.append(len(points))
        if len(asked) == stop_at:
            raise KeyboardInterrupt
        return honest(objective, points)

    monkeypatch.setattr(module, "losses", broken)
    with pytest.raises(KeyboardInterrupt):
        surface_along(run, **options)
    assert (tmp_path / "surface.grid.partial.h5").exists()
    monkeypatch.setattr(module, "losses", lambda *a: asked.append(0) or honest(*a))
    again = surface_along(run, **options)
    for name in Surface.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))
    assert asked.count(0) == 13 - (stop_at - 1)  # 28 points in blocks of 8, then 9 snapshots: none twice
    assert list(tmp_path.glob("*.h5")) == []


def test_options_are_checked_and_results_are_kept(tmp_path):
    run = a_run(tmp_path)
    with pytest.raises(ValueError, match="size=1"):
        surface_along(run, objective=bowl(), size=1)
    with pytest.raises(ValueError, match="no snapshot"):
        surface_along(run, objective=bowl(), between=(0, 33))
    with pytest.raises(ValueError, match="twice"):
        surface_along(run, objective=bowl(), between=(10, 10))
    found = surface_along(run, objective=bowl(), size=3, points=3, between=(70, 20))
    assert found.line_steps.tolist() == [70, 20]
    save(found, run)
    again = load(Surface, run)
    assert again.barrier == found.barrier
    np.testing.assert_array_equal(again.surface, found.surface)
