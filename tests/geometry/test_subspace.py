"""Principal subspaces against the singular value decomposition, scikit-learn and cases with known answers."""

import numpy as np
import pytest
from grokscope.geometry import subspace
from grokscope.geometry.subspace import (
    blocks,
    components,
    grams,
    principal_angles,
    principal_subspace,
    project,
)


def a_trajectory(snapshots=20, size=300, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((snapshots, size)).cumsum(axis=0) + offset


def weighted_svd(x, weights, origin):
    _, values, rows = np.linalg.svd(np.sqrt(weights)[:, None] * (x - origin), full_matrices=False)
    return values**2, rows


@pytest.mark.parametrize("center", ["mean", "first"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("width", [1, 7, 300, 10**6])
def test_equals_the_dense_singular_value_decomposition(center, weighted, width, monkeypatch):
    monkeypatch.setattr(subspace, "_BLOCK", width * 20)
    x = a_trajectory()
    weights = np.random.default_rng(1).random(20) if weighted else np.ones(20)
    weights /= weights.sum()
    origin = weights @ x if center == "mean" else x[0]
    variances, rows = weighted_svd(x, weights, origin)
    found = principal_subspace(x, 6, weights=weights, center=center)
    # Roundoff is relative to the largest variance; the sixth is at least a hundredth of it.
    np.testing.assert_allclose(found.variances, variances[:6], rtol=1e-12)
    np.testing.assert_allclose(found.total_variance, variances.sum(), rtol=1e-13)
    np.testing.assert_allclose(abs(np.sum(found.basis * rows[:6], axis=1)), 1, atol=1e-12)
    np.testing.assert_allclose(found.basis @ found.basis.T, np.eye(6), atol=1e-14)
    np.testing.assert_allclose(found.mean, origin, atol=1e-12)
    np.testing.assert_allclose((x - found.mean) @ found.basis.T, found.scores, atol=1e-11)
    assert (found.scores[-1] > 0).all()


def test_equals_scikit_learn():
    decomposition = pytest.importorskip("sklearn.decomposition")
    x = a_trajectory(seed=2)
    peer = decomposition.PCA(5, svd_solver="full").fit(x)
    found = principal_subspace(x, 5)
    np.testing.assert_allclose(found.explained_variance, peer.explained_variance_ratio_, rtol=1e-12)
    np.testing.assert_allclose(found.variances, peer.explained_variance_ * 19 / 20, rtol=1e-12)
    assert principal_angles(found.basis, peer.components_).max() < 1e-7


def test_no_cancellation_far_from_the_origin():
    x = a_trajectory(offset=1e6)
    near = principal_subspace(x - 1e6, 3)
    far = principal_subspace(x, 3)
    # x itself is rounded to 1e6 * 1e-16, of displacements around 10: 1e-11 each, with a margin.
    np.testing.assert_allclose(far.variances, near.variances, rtol=1e-10)


def test_float32_snapshots_are_multiplied_in_float64():
    x = a_trajectory(size=3000).astype(np.float32)
    found, exact = principal_subspace(x, 4), principal_subspace(x.astype(np.float64), 4)
    np.testing.assert_allclose(found.variances, exact.variances, rtol=1e-14)


@pytest.mark.parametrize("size", [300, 30_000])
@pytest.mark.parametrize("smooth", [False, True])
def test_many_float32_snapshots_are_nearly_as_good(size, smooth, monkeypatch):
    monkeypatch.setattr(subspace, "_MANY", 1)
    x = a_trajectory(size=size)
    x = (x.cumsum(axis=0) if smooth else x).astype(np.float32)
    found, exact = principal_subspace(x, 4), principal_subspace(x.astype(np.float64), 4)
    # float32 rounds to 6e-8; errors of the products are independent and shrink in the sums.
    np.testing.assert_allclose(found.variances, exact.variances, rtol=0, atol=3e-8 * exact.total_variance)
    assert principal_angles(found.basis, exact.basis).max() < 1e-5


def test_small_steps_far_from_the_start_keep_their_length():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((6, 1000))
    x[1:] = x[1] + 100 + 1e-3 * rng.standard_normal((5, 1000)).cumsum(axis=0)
    x = x.astype(np.float32)
    exact = np.square(np.diff(x.astype(np.float64), axis=0)).sum(axis=1)
    np.testing.assert_allclose(grams(blocks(x), [None])[0].step_squares[1:], exact[1:], rtol=1e-4)


def test_coordinates_restrict_the_analysis_and_pad_the_basis():
    x = a_trajectory()
    chosen = np.array([0, 3, 4, 5, 120, 299])
    found = principal_subspace(x, 2, coordinates=chosen)
    alone = principal_subspace(x[:, chosen], 2)
    np.testing.assert_allclose(found.variances, alone.variances, rtol=1e-12)
    np.testing.assert_allclose(found.basis[:, chosen], alone.basis, atol=1e-12)
    assert found.basis.shape == (2, 300)
    assert np.count_nonzero(found.basis) == 2 * len(chosen)


def test_grams_of_parts_add_up_to_the_whole():
    x = a_trajectory()
    parts = [np.arange(100), np.arange(100, 103), np.arange(103, 300)]
    whole, *found = grams(blocks(x), [None, *parts])
    np.testing.assert_allclose((found[0] + found[1] + found[2]).inner, whole.inner, atol=1e-9)
    assert [g.dimension for g in found] == [100, 3, 197]
    np.testing.assert_allclose(whole.absolute, x @ x.T, atol=1e-9)
    np.testing.assert_allclose(whole.step_squares, np.square(np.diff(x, axis=0)).sum(axis=1), rtol=1e-12)


def test_a_straight_line_is_one_direction_and_asking_for_two_says_so():
    x = np.outer(np.linspace(0, 1, 9), np.arange(1.0, 6.0))
    found = principal_subspace(x, 1)
    np.testing.assert_allclose(found.explained_variance, 1)
    np.testing.assert_allclose(found.basis[0], np.arange(1, 6) / np.sqrt(55))
    with pytest.raises(ValueError, match="rank=2 exceeds the 1 directions"):
        principal_subspace(x, 2)


def test_too_many_components_is_a_clear_error():
    with pytest.raises(ValueError, match=r"rank=21 exceeds the 20 snapshots.*at most 20"):
        principal_subspace(a_trajectory(), 21)
    with pytest.raises(ValueError, match="rank=0"):
        principal_subspace(a_trajectory(), 0)


def test_snapshots_that_are_not_finite_are_named():
    x = a_trajectory()
    for row in (0, 7, 19):
        y = x.copy()
        y[row, 3] = np.nan
        with pytest.raises(ValueError, match=f"snapshot {row} "):
            principal_subspace(y, 2)


@pytest.mark.parametrize("weights", [np.ones(3), -np.ones(20), np.zeros(20), np.full(20, np.nan)])
def test_weights_that_do_not_fit_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        principal_subspace(a_trajectory(), 2, weights=weights)


def test_a_weight_of_two_is_the_snapshot_twice():
    x = a_trajectory()
    weights = np.ones(20)
    weights[4] = 2
    twice = np.concatenate([x[:5], x[4:]])
    left, right = principal_subspace(x, 4, weights=weights), principal_subspace(twice, 4)
    np.testing.assert_allclose(left.explained_variance, right.explained_variance, rtol=1e-12)


def test_the_sign_does_not_depend_on_the_orientation_of_the_axes():
    x = a_trajectory()
    np.testing.assert_allclose(principal_subspace(-x, 3).scores, principal_subspace(x, 3).scores, atol=1e-10)


def test_a_constant_trajectory_has_no_variance():
    found = components(np.zeros((5, 5)), 2)
    assert found.total_variance == 0
    np.testing.assert_array_equal(found.explained_variance, 0)
    np.testing.assert_array_equal(found.combination, 0)


def test_projection_is_idempotent_and_orthogonal():
    found = principal_subspace(a_trajectory(), 4)
    vectors = np.random.default_rng(3).standard_normal((5, 300))
    once = project(vectors, found.basis)
    np.testing.assert_allclose(project(once, found.basis), once, atol=1e-13)
    np.testing.assert_allclose((vectors - once) @ found.basis.T, 0, atol=1e-13)
    np.testing.assert_allclose(project(vectors[0], found.basis), once[0], atol=1e-13)


def test_principal_angles_in_the_plane_and_tiny_ones():
    a = np.eye(4)[:2]
    tilt = np.array([[1.0, 0, 0, 0], [0, np.cos(1e-9), np.sin(1e-9), 0]])
    np.testing.assert_allclose(principal_angles(a, tilt), [0, 1e-9], rtol=1e-6, atol=1e-15)
    np.testing.assert_allclose(principal_angles(a, np.eye(4)[1:4]), [0, np.pi / 2], atol=1e-12)
