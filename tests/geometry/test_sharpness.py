import numpy as np
import pytest
import torch
from grokscope.geometry.objective import Objective
from grokscope.geometry.operators import dense, hessian_operator
from grokscope.geometry.sharpness import batch_sharpness
from problems_curvature import network_objective


def test_batches_of_the_whole_give_the_full_quotient():
    # One sample, drawn over and over: every batch is the full data.
    objective, theta = network_objective("mlp")
    single = Objective(lambda t, i: objective.sample_loss(t, torch.zeros_like(i)), 1)
    diagonal = torch.rand(len(theta), dtype=theta.dtype, generator=torch.Generator().manual_seed(1)) + 0.1
    hessian, g = dense(hessian_operator(single, theta)), single.gradient(theta)
    found = batch_sharpness(single, theta, batch_size=5, batches=3, diagonal=diagonal)
    assert found.plain.value == pytest.approx(float(g @ hessian @ g / (g @ g)), rel=1e-12)
    assert found.plain.stderr == pytest.approx(0, abs=1e-12)
    # The preconditioned form is the Rayleigh quotient of P^(-1/2) H P^(-1/2) at P^(-1/2) g.
    root = diagonal.rsqrt()
    inner, direction = root[:, None] * hessian * root, root * g
    expected = direction @ inner @ direction / (direction @ direction)
    assert found.preconditioned.value == pytest.approx(float(expected), rel=1e-12)


def test_mean_over_batches_matches_brute_force():
    # f_i = c_i x²/2 at x = 1: g = H = mean c over the batch, so the quotient is that mean, whatever the
    # batch.
    curvatures = torch.arange(1.0, 11.0, dtype=torch.float64)
    objective = Objective(lambda t, i: (curvatures[i] * t**2).mean() / 2, 10)
    found = batch_sharpness(objective, torch.ones(1, dtype=torch.float64), batch_size=4, batches=400)
    assert abs(found.plain.value - 5.5) < 4.5 * found.plain.stderr  # false alarm below 1e-5
    assert found.plain.stderr == pytest.approx(
        float(curvatures.std(correction=0)) / np.sqrt(4 * 400), rel=0.2
    )
    assert np.isnan(found.preconditioned.value)


def test_no_gradient_and_bad_arguments():
    objective = Objective(lambda t, i: (t * 0).sum(), 3)
    assert np.isnan(batch_sharpness(objective, torch.ones(2), batch_size=2).plain.value)
    with pytest.raises(ValueError, match="batch_size=0"):
        batch_sharpness(objective, torch.ones(2), batch_size=0)
