import numpy as np
import pytest
from grokscope.geometry.ranks import effective_rank, random_stable_rank, stable_rank


def test_one_direction_and_equal_directions():
    for rank in (stable_rank, effective_rank):
        assert rank(np.array([3.0, 0.0, 0.0])) == 1
        assert rank(np.full(5, 0.2)) == pytest.approx(5)
        assert np.isnan(rank(np.zeros(3)))


def test_two_directions_by_hand():
    # σ = (2, 1): stable 5/4; shares 2/3 and 1/3 have entropy ln 3 − (2/3) ln 2.
    assert stable_rank(np.array([2.0, 1.0])) == 1.25
    assert effective_rank(np.array([2.0, 1.0])) == pytest.approx(3 / 2 ** (2 / 3))


def test_ranks_ignore_the_scale():
    values = np.random.default_rng(0).uniform(size=9)
    assert stable_rank(7 * values) == pytest.approx(stable_rank(values))
    assert effective_rank(7 * values) == pytest.approx(effective_rank(values))


def test_random_matrices_have_their_stable_rank():
    values = np.linalg.svd(np.random.default_rng(0).normal(size=(300, 700)), compute_uv=False)
    # The edge fluctuates by about n^(-2/3), some 2 % at this size.
    assert stable_rank(values) == pytest.approx(random_stable_rank(300, 700), rel=0.04)
