"""Energy fractions against dense projections, and nulls against simulation."""

from math import isnan, pi, sqrt

import numpy as np
import pytest
from grokscope.geometry.inside import (
    alignment,
    inside_basis,
    inside_rank_one,
    random_rank_one_fractions,
    singular_directions,
)
from grokscope.geometry.parameters import ParameterTable

TABLE = ParameterTable(("w", "bias", "v"), ((12, 9), (20,), (7, 15)), {})


def vector(seed):
    rng = np.random.default_rng(seed)
    scales = np.repeat([3.0, 0.1, 1.0], TABLE.sizes)
    return scales * rng.standard_normal(TABLE.size)


def dense(directions):
    rows = []
    for matrix, left, right in directions:
        for u, v in zip(left, right, strict=True):
            row = np.zeros(TABLE.size)
            row[matrix.start : matrix.start + matrix.rows * matrix.columns] = np.outer(u, v).ravel()
            rows.append(row)
    return np.array(rows)


def test_singular_directions_are_the_dense_projection():
    theta, v = vector(0), vector(1)
    directions = singular_directions(theta, TABLE, 3)
    basis = dense(directions)
    np.testing.assert_allclose(basis @ basis.T, np.eye(6), atol=1e-12)
    found = inside_rank_one(v, directions)
    assert found.fraction == pytest.approx(((basis @ v) ** 2).sum() / (v @ v), rel=1e-12)
    assert found.chance == 6 / TABLE.size
    weights = theta[: 12 * 9].reshape(12, 9)
    own = inside_rank_one(np.concatenate([weights.ravel(), np.zeros(125)]), directions)
    values = np.linalg.svd(weights, compute_uv=False)
    assert own.fraction == pytest.approx((values[:3] ** 2).sum() / (values**2).sum())


def test_null_of_singular_directions_is_that_of_random_ones():
    v, directions = vector(1), singular_directions(vector(0), TABLE, 3)
    found = inside_rank_one(v, directions)
    rng = np.random.default_rng(2)
    draws = random_rank_one_fractions(v, directions, draws=4000, rng=rng)
    # Mean of 4000 draws with 60 % scatter: 1 % (one sigma).
    assert draws.mean() == pytest.approx(found.null, rel=0.04)
    assert draws.std() == pytest.approx(found.null_deviation, rel=0.3)  # V of full rank; O(1/n) neglected
    basis = dense(directions)
    gaussian = rng.standard_normal((4000, *basis.shape)) * (basis != 0)
    gaussian /= np.linalg.norm(gaussian, axis=2, keepdims=True)
    energies = ((gaussian @ v) ** 2).sum(1) / (v @ v)
    assert energies.mean() == pytest.approx(found.null, rel=0.04)
    assert energies.std() == pytest.approx(found.null_deviation, rel=0.08)


def test_null_of_a_basis_keeps_its_energy_per_tensor():
    v = vector(1)
    rng = np.random.default_rng(3)
    basis = np.linalg.qr((np.repeat([1.0, 5.0, 2.0], TABLE.sizes) * rng.standard_normal((4, TABLE.size))).T)[
        0
    ].T
    found = inside_basis(v, basis, TABLE)
    assert found.fraction == pytest.approx(((basis @ v) ** 2).sum() / (v @ v))
    signs = []
    for _ in range(2000):
        shuffled = basis.copy()
        for start, size in zip(TABLE.starts, TABLE.sizes, strict=True):
            draw = rng.standard_normal((4, size))
            norm = np.linalg.norm(basis[:, start : start + size], axis=1) / np.linalg.norm(draw, axis=1)
            shuffled[:, start : start + size] = draw * norm[:, None]
        signs.append(((shuffled @ v) ** 2).sum() / (v @ v))
    assert np.mean(signs) == pytest.approx(found.null, rel=0.06)
    assert np.std(signs) == pytest.approx(found.null_deviation, rel=0.12)


def test_isotropic_vectors_are_inside_by_chance():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((TABLE.size, 5)))[0].T
    found = [inside_basis(rng.standard_normal(TABLE.size), basis, TABLE) for _ in range(2000)]
    assert np.mean([f.fraction for f in found]) == pytest.approx(found[0].chance, rel=0.06)


def test_alignment_level_is_that_of_random_signs():
    a, b = vector(0), vector(1)
    found = alignment(a, b)
    assert found.cosine == pytest.approx(abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(4000, TABLE.size))
    levels = abs(signs @ (a * b)) / np.linalg.norm(a) / np.linalg.norm(b)
    assert levels.mean() == pytest.approx(found.null, rel=0.06)
    flat = alignment(np.ones(TABLE.size), np.ones(TABLE.size))
    assert flat.null == pytest.approx(sqrt(2 / (pi * TABLE.size)))
    assert isnan(alignment(a, 0 * b).cosine)


def test_nothing_is_inside_what_does_not_exist():
    assert singular_directions(np.zeros(TABLE.size), TABLE, 2) == []
    assert isnan(inside_rank_one(vector(0), []).fraction)
