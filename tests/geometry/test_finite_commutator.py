"""The published finite step: exact on quadratics, converging to the bracket, honest about its rounding."""

import json
from math import isnan
from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.geometry.commutator import commutator
from grokscope.geometry.finite_commutator import finite_commutator, noise_floor_bound, ulp
from grokscope.geometry.objective import flatten, from_module, gradient
from torch import nn
from torch.nn.functional import cross_entropy

ORACLES = json.loads((Path(__file__).parents[1] / "data" / "commutators.json").read_text())


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def quadratic(hessian, center):
    hessian, center = double(hessian), double(center)
    return lambda theta: (theta - center) @ hessian @ (theta - center) / 2


def network(seed=0, scale=1.0):
    """A tanh network of 3,141 parameters with one objective in each precision."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(300, 20, generator=generator), torch.randint(5, (300,), generator=generator)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 27), nn.Tanh(), nn.Linear(27, 5))
    theta = scale * flatten(model)
    single = from_module(model, inputs, targets, cross_entropy)
    copy = nn.Sequential(
        nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 27), nn.Tanh(), nn.Linear(27, 5)
    ).double()
    return single, from_module(copy, inputs.double(), targets, cross_entropy), theta


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for c in ORACLES["quadratic"]])
def test_quadratics_are_exact_for_every_step(case):
    losses = quadratic(case["H_A"], case["center_A"]), quadratic(case["H_B"], case["center_B"])
    theta = double(case["theta"])
    for step in case["finite_steps"]:
        eta = step["eta"]
        found = finite_commutator(*losses, theta, step_size=eta)
        # The subtraction of parameters loses ulp(theta)/eta² even in float64, but no more.
        np.testing.assert_allclose(found.vector * eta**2, step["delta"], rtol=1e-11, atol=1e-14)
        assert found.compensated_raw == pytest.approx(case["raw"], rel=1e-11 / eta, abs=1e-11)


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for c in ORACLES["polynomial"]])
def test_stored_polynomials(case):
    losses = [lambda t, text=case[k]: eval(text, {"x": t[0], "y": t[1]}) for k in ("loss_A", "loss_B")]
    for step in case["finite_steps"]:
        found = finite_commutator(*losses, double(case["theta"]), step_size=step["eta"])
        # Rounding of raw is ulp/eta² ~ 1e-16/eta², relative to values of order one.
        assert found.defect == pytest.approx(step["D_finite"], rel=1e-11 + 1e-15 / step["eta"] ** 2)
        assert found.noise_floor < 1e-15 / step["eta"] ** 2


def test_finite_step_tends_to_the_bracket():
    _, objective, theta = network()
    theta = theta.double()
    a, b = objective.on(torch.arange(0, 64)), objective.on(torch.arange(50, 130))
    exact = commutator(a, b, theta)
    errors = []
    for eta in (1e-1, 1e-2, 1e-3):
        found = finite_commutator(a, b, theta, step_size=eta)
        errors.append(float((found.vector - exact.vector).norm()) / exact.raw)
    assert errors[2] < 1e-2
    # First order in eta: each factor 10 brings a factor 10, within what eta² terms leave.
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.3)
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize("eta", [1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_noise_floor_is_the_measured_error(eta, scale):
    for seed in range(5):
        single, objective, theta = network(seed, scale)
        a, b = torch.randint(300, (2, 64), generator=torch.Generator().manual_seed(seed))
        rough = finite_commutator(single.on(a), single.on(b), theta, step_size=eta)
        truth = finite_commutator(objective.on(a), objective.on(b), theta.double(), step_size=eta)
        error = float((rough.vector.double() - truth.vector).norm())
        assert 0.5 < rough.noise_floor / error < 2
        # The variance r(1 − r) of a rounding is at most 1/4, the bound takes its mean 1/6.
        assert rough.noise_floor < 1.3 * rough.noise_floor_bound
        assert rough.compensated_raw == pytest.approx(truth.raw, rel=0.2)


def test_independent_roundings_reach_the_bound():
    """Where a step moves every coordinate by many ulps through the bracket, rule and error agree."""
    single, _, theta = network(scale=1.0)
    a, b = torch.randint(300, (2, 16), generator=torch.Generator().manual_seed(0))
    found = finite_commutator(single.on(a), single.on(b), theta, step_size=0.1)
    assert found.noise_floor / found.noise_floor_bound == pytest.approx(1, abs=0.25)


def test_value_below_the_floor_says_so():
    single, _, theta = network()
    a, b = single.on(torch.arange(64)), single.on(torch.arange(64, 128))
    assert finite_commutator(a, b, theta, step_size=1e-4).below_floor
    assert not finite_commutator(a, b, theta, step_size=1e-1).below_floor


def test_stagnant_coordinates_are_counted():
    theta = torch.tensor([1.0, 1.0, 1.0, 0.0])
    # ulp(1)/2 is 6e-8: steps of 1e-8 and 5e-8 leave 1 where it is, at 0 every step moves.
    push = torch.tensor([1e-5, 5e-5, 5e-4, 1e-9])
    found = finite_commutator(lambda t: t @ push, lambda t: t @ push, theta, step_size=1e-3)
    assert found.stagnant_fraction == 0.5
    assert found.raw == 0
    assert found.below_floor


def test_adaptive_step_is_the_published_rule():
    loss = [lambda t: 1e-5 * (t**2).sum() / 2, lambda t: 2e-5 * (t**2).sum() / 2]
    theta = torch.ones(4, dtype=torch.float64)  # gradient norms 2e-5 and 4e-5
    assert finite_commutator(*loss, theta, adaptive=True).step_size == pytest.approx(1e-6 / 2e-5)
    assert finite_commutator(*loss, 1e-3 * theta, adaptive=True).step_size == 1.0
    assert finite_commutator(*loss, 1e5 * theta, adaptive=True).step_size == 1e-3
    assert finite_commutator(*loss, 0 * theta, adaptive=True).step_size == 1.0
    assert finite_commutator(*loss, theta).step_size == 1e-3


def test_zero_gradient_leaves_the_defect_undefined():
    found = finite_commutator(lambda t: (t**2).sum(), lambda t: t.sum(), torch.zeros(3))
    assert isnan(found.defect)
    assert isnan(found.defect_floor)


def test_ulp_and_bound():
    theta = torch.tensor([1.0, -1.5, 3.0, 0.25])
    np.testing.assert_array_equal(ulp(theta), np.spacing(np.abs(theta.numpy())))
    expected = np.sqrt((np.spacing(np.abs(theta.numpy())).astype(float) ** 2).sum() / 3) / 0.1**2
    assert noise_floor_bound(theta, step_size=0.1) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["step_size", "min_step_norm"])
def test_steps_must_be_positive(name):
    with pytest.raises(ValueError, match=f"{name}=0 must be positive"):
        finite_commutator(torch.sum, torch.sum, torch.ones(2), **{name: 0})


def test_gradients_are_those_of_the_losses():
    single, _, theta = network()
    a, b = single.on(torch.arange(10)), single.on(torch.arange(20))
    found = finite_commutator(a, b, theta)
    assert found.gradient_norms == pytest.approx(
        [float(gradient(a, theta).norm()), float(gradient(b, theta).norm())]
    )
