"""Null models in closed form: the oracle table, exact special cases, and simulation."""

import json
from pathlib import Path

import numpy as np
import pytest
from grokscope.geometry.subspace import blocks, components, grams
from grokscope.geometry.walks import (
    decay_curve,
    driven_steps,
    measured_decay,
    ornstein_uhlenbeck_gram,
    random_walk_gram,
    random_walk_null,
    time_weights,
    uniform_subset,
    without_decay_gram,
)

ORACLE = json.loads((Path(__file__).parents[1] / "data" / "pca_random_walk.json").read_text())


def gram_of(x):
    return grams(blocks(x), [None])[0]


@pytest.mark.parametrize("case", ORACLE["centred"], ids=lambda c: c["id"])
def test_centered_walk(case):
    found = random_walk_null(np.ones(case["num_snapshots"] - 1), 5)
    np.testing.assert_allclose(found, case["explained_variance_ratio"], rtol=ORACLE["relative_tolerance"])


@pytest.mark.parametrize("case", ORACLE["uncentred"], ids=lambda c: c["id"])
def test_walk_relative_to_the_first_snapshot(case):
    found = random_walk_null(np.full(case["num_steps"], 7.0), 5, center="first")
    np.testing.assert_allclose(found, case["energy_ratio"], rtol=ORACLE["relative_tolerance"])


@pytest.mark.parametrize("case", ORACLE["finite"], ids=lambda c: c["id"])
def test_walk_in_finite_dimension(case):
    found = random_walk_null(np.ones(case["num_snapshots"] - 1), 5, dimension=case["dimension"])
    np.testing.assert_allclose(found, case["first_order_ratio"], rtol=1e-12)
    # The table's simulation is unbiased; five independent-enough ratios within 4 standard errors:
    # false alarms below 5 * 6e-5.
    assert (abs(found - case["simulated_mean"]) < 4 * np.array(case["simulated_stderr"])).all()


def test_a_dense_start_changes_the_answer_and_time_weights_mend_it():
    steps = np.unique(np.concatenate([np.arange(0, 100, 4), np.arange(100, 2001, 50)]))
    squares = np.diff(steps).astype(float)  # one and the same walk, seen at these steps
    uniform = random_walk_null(np.ones(200), 1)[0]
    assert random_walk_null(squares, 1)[0] - uniform > 0.05
    # What is left is the discretization of the integral by some forty snapshots.
    assert abs(random_walk_null(squares, 1, weights=time_weights(steps))[0] - uniform) < 0.005


def test_time_weights_are_equal_on_a_uniform_grid_and_sum_to_one():
    np.testing.assert_allclose(time_weights(np.arange(0, 50, 5)), 0.1)
    weights = time_weights(np.array([0, 1, 2, 4, 8, 16]))
    np.testing.assert_allclose(weights, np.array([1, 1, 1.5, 3, 6, 8]) / 20.5)
    with pytest.raises(ValueError, match="increase"):
        time_weights(np.array([0, 5, 5]))


def test_uniform_subset_is_the_regular_part_with_the_start():
    steps = np.array([0, 1, 2, 3, 4, 6, 8, 11, 16, 20, 40, 60, 80, 100, 107])
    assert steps[uniform_subset(steps)].tolist() == [0, 20, 40, 60, 80, 100]


def test_the_walk_gram_is_what_a_walk_has():
    rng = np.random.default_rng(0)
    lengths = rng.random(9) + 0.5
    x = np.zeros((10, 200_000))
    x[1:] = np.cumsum(lengths[:, None] * rng.standard_normal((9, 200_000)) / np.sqrt(200_000), axis=0)
    # Entries scatter by about K/sqrt(P) = K * 2e-3; five of these.
    expected = random_walk_gram(lengths**2)
    np.testing.assert_allclose(gram_of(x).inner, expected, atol=0.011 * expected.max())


def simulate(steps, decay, persistence, size=100_000, seed=0):
    rng = np.random.default_rng(seed)
    theta, u, path = rng.standard_normal(size), rng.standard_normal(size), []
    for i, step in enumerate(steps):
        if i:
            u = persistence * u + np.sqrt(1 - persistence**2) * rng.standard_normal(size)
            theta = np.exp(-decay * (step - steps[i - 1])) * theta + 0.1 * u
        path.append(theta)
    return np.array(path)


@pytest.mark.parametrize(("decay", "persistence"), [(0.0, 0.0), (0.02, 0.0), (0.01, 0.8)])
def test_the_null_of_a_process_of_its_kind_is_that_process(decay, persistence):
    steps = np.arange(0, 400, 10)
    gram = gram_of(simulate(steps, decay, persistence))
    null = components(ornstein_uhlenbeck_gram(gram, steps, decay), 3).explained_variance
    # Chance inner products of independent vectors are of size 1/sqrt(P) = 3e-3.
    np.testing.assert_allclose(null, components(gram.inner, 3).explained_variance, atol=0.01)
    lengths, cosines = driven_steps(gram, steps, decay)
    np.testing.assert_allclose(lengths, 0.1 * np.sqrt(100_000), rtol=0.02)
    np.testing.assert_allclose(cosines, persistence, atol=0.02)


def test_without_decay_and_persistence_it_is_the_random_walk():
    rng = np.random.default_rng(1)
    steps = np.arange(12)
    gram = gram_of(rng.standard_normal((12, 40)).cumsum(0))
    lengths, _ = driven_steps(gram, steps, 0.0)
    np.testing.assert_allclose(lengths**2, gram.step_squares, rtol=1e-12)


def test_pure_decay_is_explained_by_decay():
    steps = np.array([0, 1, 2, 5, 10, 20, 50])
    start = np.random.default_rng(2).standard_normal(60)
    gram = gram_of(np.outer(decay_curve(steps, 0.03), start))
    np.testing.assert_allclose(without_decay_gram(gram, steps, 0.03), 0, atol=1e-12 * gram.first_square)
    np.testing.assert_allclose(components(gram.inner, 1).explained_variance, 1)
    # Least squares on finite steps sees (1 - e^{-decay Δt})/Δt, below the rate itself.
    assert 0.018 < measured_decay(gram, steps) < 0.03
    assert driven_steps(gram, steps, 0.03)[0].max() < 1e-7 * np.sqrt(gram.first_square)
