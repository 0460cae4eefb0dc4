import numpy as np
import pytest
import torch
from grokscope.geometry.ridge_network import Networks, descend

DOUBLE = {"dtype": torch.float64}


def problem(*, networks=2, n=4, d=3, m=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((networks, m, d), (networks, m), (networks, n, d), (networks, 7, d))
    inner, outer, inputs, fresh = (torch.randn(*shape, generator=generator, **DOUBLE) for shape in shapes)
    return Networks(inner / 3, outer / 3), inputs, fresh


def test_it_is_gradient_descent_of_the_penalized_loss():
    start, inputs, fresh = problem()
    ridge = torch.tensor([0.1, 0.3], **DOUBLE)
    curves = descend(start, inputs, fresh, lr=0.05, ridge=ridge, at=range(21))
    inner, outer = (tensor.clone().requires_grad_() for tensor in start)
    for step in range(21):
        output = torch.einsum("bnm,bm->bn", torch.einsum("bnd,bmd->bnm", inputs, inner).relu(), outer)
        loss = output.square().mean(1) / 2
        norm = inner.square().sum((1, 2)) + outer.square().sum(1)
        np.testing.assert_allclose(curves.train_loss[:, step], loss.detach(), rtol=1e-12)
        np.testing.assert_allclose(curves.squared_norm[:, step], norm.detach(), rtol=1e-12)
        slopes = torch.autograd.grad((loss + ridge / 2 * norm).sum(), (inner, outer))
        inner, outer = (
            (weight - 0.05 * slope).detach().requires_grad_()
            for weight, slope in zip((inner, outer), slopes, strict=True)
        )


def test_without_data_the_loss_decays_as_the_fourth_power():
    """Where no unit is active on the samples, only decay acts: f is homogeneous of degree 2, f² of 4."""
    start, inputs, fresh = problem(networks=1)
    inputs, fresh = inputs.abs(), -fresh.abs()
    start = Networks(-start.inner.abs(), start.outer)
    ridge = torch.tensor([0.2], **DOUBLE)
    curves = descend(start, inputs, fresh, lr=0.1, ridge=ridge, at=range(0, 51, 10))
    assert (curves.train_loss == 0).all()
    factor = (1 - 0.1 * 0.2) ** (4 * curves.steps)
    np.testing.assert_allclose(curves.population_loss[0], factor * curves.population_loss[0, 0], rtol=1e-10)


def test_it_measures_where_asked_and_ends_there():
    start, inputs, fresh = problem()
    ridge = torch.ones(2, **DOUBLE)
    curves = descend(start, inputs, fresh, lr=0.01, ridge=ridge, at=(25, 3))
    np.testing.assert_array_equal(curves.steps, [3, 25])
    every = descend(start, inputs, fresh, lr=0.01, ridge=ridge, at=range(26))
    np.testing.assert_array_equal(curves.train_loss, every.train_loss[:, [3, 25]])


def test_divergence_is_refused():
    start, inputs, fresh = problem()
    with pytest.raises(ValueError, match=r"lr=50.*diverge"):
        descend(start, inputs, fresh, lr=50.0, ridge=torch.ones(2, **DOUBLE), at=[100])
