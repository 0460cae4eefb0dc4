"""The trajectory of a run: against dense linear algebra, and the nulls where they must agree with it."""

import numpy as np
import pytest
from grokscope.analysis.result import load, save
from grokscope.analysis.trajectory import (
    TrajectoryCurve,
    coordinates,
    trajectory_along,
    trajectory_subspace,
)
from grokscope.geometry.parameters import ParameterTable
from grokscope.geometry.walks import time_weights
from grokscope.runs.config import RunConfig
from grokscope.runs.train import train
from memory_run import MemoryRun

TABLE = ParameterTable(("embed.weight", "attn.in_proj_weight", "head.bias"), ((6, 5), (12, 4), (9,)), {})
STEPS = np.array([0, 1, 2, 3, 4, 6, 8, 10, 20, 30, 40, 50, 60, 70, 80])


def a_run(thetas=None, config=None, steps=STEPS):
    if thetas is None:
        thetas = np.random.default_rng(0).standard_normal((len(steps), TABLE.size)).cumsum(axis=0)
    return MemoryRun("nowhere", thetas, steps, table=TABLE, config=config)


def explained(x, weights, rank, center="mean"):
    weights = weights / weights.sum()
    origin = weights @ x if center == "mean" else x[0]
    values = np.linalg.svd(np.sqrt(weights)[:, None] * (x - origin), compute_uv=False) ** 2
    return values[:rank] / values.sum()


@pytest.mark.parametrize("center", ["mean", "first"])
@pytest.mark.parametrize("weighting", ["time", "equal", "subset"])
def test_equals_dense_linear_algebra_for_all_matrices_and_windows(weighting, center):
    run = a_run()
    curve = trajectory_along(run, rank=4, weighting=weighting, center=center, windows=5)
    rows = np.searchsorted(STEPS, curve.steps)
    assert rows.tolist() == ([0, *range(7, 15)] if weighting == "subset" else list(range(15)))
    x = run.thetas[rows]

    def weights(count):
        return time_weights(curve.steps[:count]) if weighting == "time" else np.ones(count)

    np.testing.assert_allclose(curve.explained_variance, explained(x, weights(len(x)), 4, center), rtol=1e-10)
    for name, row in zip(curve.matrices, curve.matrix_explained, strict=True):
        part = x[:, coordinates(run, name)]
        np.testing.assert_allclose(row, explained(part, weights(len(x)), 4, center), rtol=1e-10)
    for step, value in zip(curve.window_steps, curve.window_explained, strict=True):
        size = np.searchsorted(curve.steps, step) + 1
        np.testing.assert_allclose(value, explained(x[:size], weights(size), 1, center), rtol=1e-10)
    assert curve.window_steps[-1] == 80
    np.testing.assert_allclose(curve.step_lengths, np.linalg.norm(np.diff(x, axis=0), axis=1), rtol=1e-12)


def test_names_of_matrices_groups_and_patterns():
    run = a_run()
    assert coordinates(run, "attn.in_proj_weight.k").tolist() == list(range(30 + 16, 30 + 32))
    assert coordinates(run, "head").tolist() == list(range(78, 87))
    assert len(coordinates(run, "attn.*")) == 48
    assert trajectory_along(run).matrices == (
        "embed.weight",
        "attn.in_proj_weight.q",
        "attn.in_proj_weight.k",
        "attn.in_proj_weight.v",
    )
    only = trajectory_along(run, parameters="head")
    assert (only.matrices, only.dimension, only.parameters) == ((), 9, "head")
    with pytest.raises(ValueError, match=r"'nothing'.*embed\.weight"):
        trajectory_along(run, parameters="nothing")


def test_the_subspace_has_the_scores_of_the_curve():
    run = a_run()
    curve = trajectory_along(run, rank=3, parameters="attention")
    found = trajectory_subspace(run, 3, parameters="attention")
    np.testing.assert_allclose((run.thetas - found.mean) @ found.basis.T, curve.scores, atol=1e-9)


def decaying(rate, noise=0.0):
    rng = np.random.default_rng(1)
    start = rng.standard_normal(TABLE.size)
    walk = noise * rng.standard_normal((len(STEPS), TABLE.size)).cumsum(axis=0)
    return np.exp(-rate * STEPS)[:, None] * start + walk - walk[0]


def test_a_decaying_start_is_recognized():
    config = RunConfig(lr=0.02, weight_decay=1.0)
    curve = trajectory_along(a_run(decaying(-np.log(1 - 0.02)), config), rank=1)
    assert curve.decay_source == "weight decay"
    np.testing.assert_allclose(curve.decay, -np.log(1 - 0.02), rtol=1e-12)
    np.testing.assert_allclose(curve.explained_variance, 1)
    np.testing.assert_allclose(curve.ornstein_uhlenbeck_null, 1)
    np.testing.assert_allclose(curve.decay_share, 1)
    # The component points to the end of the trajectory, against the initial weights.
    np.testing.assert_allclose(curve.initial_cosine, -1)
    np.testing.assert_allclose(np.diff(curve.scores[:, 0]) > 0, True)


@pytest.mark.parametrize(
    ("config", "source"),
    [
        (None, "measured"),
        (RunConfig(optimizer="adam"), "measured"),
        (RunConfig(group_lr={"head": 2.0}), "measured"),
        (RunConfig(weight_decay=0.0), "weight decay"),
        (RunConfig(optimizer="sgd", lr=0.01, weight_decay=0.01, momentum=0.9), "weight decay"),
    ],
)
def test_where_the_decay_comes_from(config, source):
    curve = trajectory_along(a_run(decaying(0.01, noise=0.01), config))
    assert curve.decay_source == source
    assert curve.decay >= 0
    # Momentum 0.9 moves ten times as far a step: η λ/(1 - μ) to leading order.
    if config is not None and config.optimizer == "sgd":
        np.testing.assert_allclose(curve.decay, 0.001, rtol=0.05)


def test_a_run_that_stands_still_and_one_that_is_too_short():
    still = trajectory_along(a_run(np.ones((15, TABLE.size))))
    assert still.total_variance == 0
    np.testing.assert_array_equal(still.explained_variance, 0)
    np.testing.assert_array_equal(still.random_walk_null, 0)
    with pytest.raises(ValueError, match="at least two"):
        trajectory_along(a_run(), snapshots=[3])
    with pytest.raises(ValueError, match="rank=16 exceeds the 15 snapshots"):
        trajectory_along(a_run(), rank=16)
    assert len(trajectory_along(a_run(), snapshots=[0, 5, 9]).explained_variance) == 2


def test_a_real_run_saves_and_loads(tmp_path):
    config = RunConfig(modulus=7, steps=60, batch_size=16, width=16, heads=2, feedforward=32)
    run = train(config, tmp_path / "run")
    curve = trajectory_along(run)
    x = np.stack([run.theta(i) for i in range(len(run))]).astype(np.float64)
    np.testing.assert_allclose(curve.explained_variance, explained(x, time_weights(run.steps), 5), rtol=1e-8)
    assert curve.dimension == run.table.size
    save(curve, run, options={"rank": None})
    again = load(TrajectoryCurve, run)
    np.testing.assert_array_equal(again.scores, curve.scores)
    assert again.matrices == curve.matrices
