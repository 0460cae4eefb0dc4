"""Exact brackets: stored oracles, dense Hessians, and the law of their size over minibatches."""

import json
from math import isnan, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.geometry.commutator import background, commutator, full_product
from grokscope.geometry.objective import flatten, from_module
from torch import nn
from torch.nn.functional import cross_entropy

ORACLES = json.loads((Path(__file__).parents[1] / "data" / "commutators.json").read_text())
TOLERANCE = ORACLES["relative_tolerance"]  # 1e-11; values are exact fractions, ours roundoff of float64


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def quadratic(hessian, center):
    hessian, center = double(hessian), double(center)
    return lambda theta: (theta - center) @ hessian @ (theta - center) / 2


def polynomial(text):
    return lambda theta: eval(text, {"x": theta[0], "y": theta[1]})


def losses(case):
    if "H_A" in case:
        return quadratic(case["H_A"], case["center_A"]), quadratic(case["H_B"], case["center_B"])
    return polynomial(case["loss_A"]), polynomial(case["loss_B"])


def cases():
    return [
        pytest.param(case, id=case["id"]) for kind in ("quadratic", "polynomial") for case in ORACLES[kind]
    ]


def logistic(n=60, features=4, seed=0):
    """Softmax regression, small enough for dense Hessians of every sample."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, features, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (n,), generator=generator)
    model = nn.Linear(features, 3).double()
    theta = torch.randn(3 * features + 3, generator=generator, dtype=torch.float64)
    return from_module(model, inputs, targets, cross_entropy, chunk_size=25), theta


@pytest.mark.parametrize("case", cases())
def test_stored_oracles(case):
    found = commutator(*losses(case), double(case["theta"]))
    scale = max(1.0, case["raw"])
    np.testing.assert_allclose(found.vector, case["bracket"], rtol=TOLERANCE, atol=TOLERANCE * scale)
    for name, key in (("raw", "raw"), ("defect", "D"), ("curvature", "C1"), ("scale_free", "C0")):
        assert getattr(found, name) == pytest.approx(case[key], rel=TOLERANCE, abs=TOLERANCE)
    assert found.undefined == ""


@pytest.mark.parametrize("case", cases())
def test_swapping_the_batches_flips_the_sign(case):
    loss_a, loss_b = losses(case)
    theta = double(case["theta"])
    forward, backward = commutator(loss_a, loss_b, theta), commutator(loss_b, loss_a, theta)
    assert torch.equal(forward.vector, -backward.vector)
    assert (forward.defect, forward.scale_free) == (backward.defect, backward.scale_free)


def test_dense_hessians_give_the_bracket_and_its_three_parts():
    objective, theta = logistic()
    a, b = torch.arange(0, 20), torch.arange(15, 40)
    shared = background(objective, theta)
    found = commutator(objective.on(a), objective.on(b), theta, batch_size=20, background=shared)

    def dense(loss):
        return torch.func.grad(loss)(theta), torch.func.hessian(loss)(theta)

    (g_a, h_a), (g_b, h_b), (g, h) = dense(objective.on(a)), dense(objective.on(b)), dense(objective.full)
    parts = h @ (g_a - g_b), (h_b - h_a) @ g, (h_b - h) @ (g_a - g) - (h_a - h) @ (g_b - g)
    # Two float64 computations of numbers of order one.
    torch.testing.assert_close(found.vector, h_b @ g_a - h_a @ g_b, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(sum(parts), found.vector, rtol=1e-10, atol=1e-14)
    got = found.gradient_noise, found.curvature_noise, found.cross_noise
    assert got == pytest.approx([float(part.norm()) for part in parts], rel=1e-10)
    assert found.curvature_proper == pytest.approx(float((h @ g).norm() / g.norm()), rel=1e-10)
    assert found.signal_to_noise == pytest.approx(float(g @ g / ((g_a - g_b).norm() ** 2 / 2)), rel=1e-10)
    assert found.sqrt_b_raw == pytest.approx(sqrt(20) * found.raw)
    torch.testing.assert_close(full_product(objective, theta, g_a), h @ g_a, rtol=1e-10, atol=1e-14)


def test_size_follows_the_covariance_of_single_samples():
    """E‖bracket‖² = (2/b) tr Cov_i(H g_i − H_i g) to leading order, and SNR estimates ‖g‖² b / tr Cov g_i."""
    objective, theta = logistic()
    singles = [objective.on(torch.tensor([i])) for i in range(objective.num_samples)]
    gradients = torch.stack([torch.func.grad(loss)(theta) for loss in singles])
    hessians = torch.stack([torch.func.hessian(loss)(theta) for loss in singles])
    g, h = gradients.mean(0), hessians.mean(0)
    variation = gradients @ h - hessians @ g  # rows H g_i − H_i g
    size, pairs = 512, 1000
    expected = 2 / size * float(variation.var(0, correction=0).sum())
    noise = float(gradients.var(0, correction=0).sum()) / size
    picks = torch.randint(60, (pairs, 2, size), generator=torch.Generator().manual_seed(1))
    weights = (
        torch.zeros(pairs, 2, 60, dtype=torch.float64).scatter_add_(
            2, picks, torch.ones(picks.shape).double()
        )
        / size
    )
    g_ab, h_ab = weights @ gradients, torch.einsum("pbn,nij->pbij", weights, hessians)
    brackets = torch.einsum("pij,pj->pi", h_ab[:, 1], g_ab[:, 0]) - torch.einsum(
        "pij,pj->pi", h_ab[:, 0], g_ab[:, 1]
    )
    # The mean of 1000 squares of ~8 effective directions is within 2 % (one sigma); 4 sigma and the O(1/b).
    assert float((brackets**2).sum(1).mean()) == pytest.approx(expected, rel=0.08)
    found = [commutator(objective.on(a), objective.on(b), theta) for a, b in picks[:20]]
    torch.testing.assert_close(torch.stack([f.vector for f in found]), brackets[:20], rtol=1e-9, atol=1e-14)
    scatter = [f.gradient_scatter for f in found]
    # Mean of 20 squares of about 8 effective directions: 11 % (one sigma).
    assert np.mean(scatter) == pytest.approx(noise, rel=0.45)
    ratio = float(g_ab[0, 0] @ g_ab[0, 1]) / scatter[0]
    assert found[0].signal_to_noise == pytest.approx(ratio)


def test_raw_falls_as_one_over_the_root_of_the_batch_size():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)).double()
    inputs, targets = torch.randn(2000, 6).double(), torch.randint(5, (2000,))
    objective, theta = from_module(model, inputs, targets, cross_entropy), flatten(model)
    sizes = (64, 128, 256, 512, 1024)
    raws = []
    for size in sizes:
        picks = torch.randint(2000, (24, 2, size))
        raws.append(
            np.mean([np.log(commutator(objective.on(a), objective.on(b), theta).raw) for a, b in picks])
        )
    slope = np.polyfit(np.log(sizes), raws, 1)[0]
    # log raw scatters by about .1 between pairs: the slope by .1/sqrt(24)/2.2 = .01; O(1/b) terms add .02.
    assert slope == pytest.approx(-0.5, abs=0.05)


def test_full_batches_commute():
    objective, theta = logistic()
    found = commutator(objective.full, objective.full, theta)
    assert found.raw == 0
    assert found.scale_free == 0


def test_float32_error_is_near_the_noise_floor():
    _, theta = logistic()
    model, inputs = (
        nn.Linear(4, 3),
        torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    )
    targets = torch.randint(3, (60,), generator=torch.Generator().manual_seed(2))
    single = from_module(model, inputs.float(), targets, cross_entropy)
    double = from_module(model.double(), inputs.float().double(), targets, cross_entropy)
    point = theta.float()
    for seed in range(10):
        a, b = torch.randint(60, (2, 32), generator=torch.Generator().manual_seed(seed))
        found = commutator(single.on(a), single.on(b), point)
        exact = commutator(double.on(a), double.on(b), point.double())
        error = float((found.vector.double() - exact.vector).norm())
        assert error < 5 * found.noise_floor  # each product is a sum of a few dozen rounded terms


@pytest.mark.parametrize(
    ("loss_a", "loss_b", "reason"),
    [
        (lambda t: (t * 0).sum(), lambda t: (t**2).sum(), "the gradient on A is exactly zero"),
        (lambda t: torch.tensor(1.0), lambda t: torch.tensor(2.0), "the gradient on A and B is exactly zero"),
        (lambda t: t.sum(), lambda t: t[0], "both Hessian-vector products are exactly zero"),
        (lambda t: t.sum() / 0, lambda t: (t**2).sum(), "loss, gradient or curvature is not finite"),
    ],
)
def test_undefined_fields_are_nan_with_a_reason(loss_a, loss_b, reason):
    found = commutator(loss_a, loss_b, torch.ones(3))
    assert found.undefined == reason
    assert isnan(found.scale_free) or reason.startswith("the gradient on A is")


def test_wrong_operands_name_themselves():
    objective, theta = logistic()
    loss = objective.on(torch.arange(5))
    with pytest.raises(ValueError, match=r"theta has shape \(3, 5\)"):
        commutator(loss, loss, theta.reshape(3, 5))
    with pytest.raises(ValueError, match="batch_size=0"):
        commutator(loss, loss, theta, batch_size=0)
    with pytest.raises(ValueError, match="another theta"):
        commutator(loss, loss, theta + 1, background=background(objective, theta))


def test_works_on_a_bare_function():
    found = commutator(lambda t: t[0] ** 2 * t[1], lambda t: t[1] ** 3, torch.tensor([1.0, 2.0]))
    # g_A = (4, 1), H_A = [[4, 2], [2, 0]], g_B = (0, 12), H_B = diag(0, 12).
    assert found.vector.tolist() == [-24.0, 12.0]
