"""Langevin kernels against the exact law of the discretized Gaussian, and their random streams."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.geometry import sgld
from scipy.linalg import solve_discrete_lyapunov

CASES = json.loads((Path(__file__).parents[1] / "data" / "sgld_gaussian.json").read_text())["cases"]
OURS = [case for case in CASES if case["localization_preconditioned"] is not False]
WITHIN = 4.5  # standard errors: false alarm 7e-6 per comparison


def ids(case):
    return case["id"]


def quadratic(case):
    """Curvature A, options of the kernel and diagonal preconditioner of a case."""
    A = torch.tensor(case["A"], dtype=torch.float64)
    names = {"num_beta": "nbeta", "localization": "gamma", "step_size": "step_size"}
    options = {ours: case[theirs] for ours, theirs in names.items()}
    scale = case["preconditioner"] and torch.tensor(case["preconditioner"], dtype=torch.float64)
    return A, options | {"center": torch.zeros(len(A), dtype=torch.float64)}, scale


def matrices(case):
    """Drift D and noise S of w' = D w + S ξ, read off the kernel itself."""
    A, options, scale = quadratic(case)
    eye, zero = torch.eye(len(A), dtype=torch.float64), torch.zeros(len(A), len(A), dtype=torch.float64)
    stack = None if scale is None else scale.expand(len(A), -1)
    drift = sgld.step(sgld.init(eye, preconditioner=stack), eye @ A, zero, **options).theta.T
    noise = sgld.step(sgld.init(zero, preconditioner=stack), zero, eye, **options).theta.T
    return drift.numpy(), noise.numpy()


@pytest.mark.parametrize("case", OURS, ids=ids)
def test_stationary_law_of_the_kernel_is_that_of_the_table(case):
    drift, noise = matrices(case)
    covariance = solve_discrete_lyapunov(drift, noise @ noise.T)
    np.testing.assert_allclose(covariance, case["stationary_covariance"], rtol=1e-8, atol=1e-11)
    loss = case["nbeta"] * np.trace(np.array(case["A"]) @ covariance) / 2
    assert loss == pytest.approx(case["stationary_nbeta_loss"], rel=1e-9)


def test_localization_is_preconditioned():
    (other,) = (case for case in CASES if case["localization_preconditioned"] is False)
    drift, noise = matrices(other)
    covariance = solve_discrete_lyapunov(drift, noise @ noise.T)
    assert not np.allclose(covariance, other["stationary_covariance"], rtol=1e-4)


@pytest.mark.parametrize("case", OURS, ids=ids)
def test_simulated_chains_have_the_finite_chain_mean(case):
    A, options, scale = quadratic(case)
    chains, generator = 400, torch.Generator().manual_seed(0)
    theta = torch.zeros(chains, len(A), dtype=torch.float64)
    state = sgld.init(theta, preconditioner=None if scale is None else scale.expand(chains, -1))
    values = []
    for draw in range(1, case["last_draw"] + 1):
        noise = torch.randn(theta.shape, generator=generator, dtype=torch.float64)
        state = sgld.step(state, state.theta @ A, noise, **options)
        if draw >= case["first_draw"]:
            values.append(case["nbeta"] / 2 * torch.einsum("ci,ij,cj->c", state.theta, A, state.theta))
    means = torch.stack(values).mean(0)
    stderr = float(means.std() / chains**0.5)
    assert stderr < 0.05 * case["finite_chain_mean_nbeta_loss"]
    assert abs(float(means.mean()) - case["finite_chain_mean_nbeta_loss"]) < WITHIN * stderr


KERNELS = {
    "sgld": ({}, lambda h, eps: 1 / (h * (1 - eps * h / 4))),
    "preconditioned": ({"preconditioner": 0.3}, lambda h, eps: 1 / (h * (1 - 0.3 * eps * h / 4))),
    "averaged": ({"averaged_noise": True}, lambda h, eps: 1 / h),
    "averaged_preconditioned": ({"averaged_noise": True, "preconditioner": 0.3}, lambda h, eps: 1 / h),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("relative_step", [0.3, 1.8])
def test_stationary_variance_at_two_step_sizes(kernel, relative_step):
    kind, variance = KERNELS[kernel]
    a, nb, gamma, chains = 0.8, 50.0, 10.0, 4000
    h = nb * a + gamma
    step_size = relative_step / h
    generator = torch.Generator().manual_seed(1)
    zero, one = torch.zeros(chains, 1, dtype=torch.float64), torch.ones(chains, 1, dtype=torch.float64)
    options = {"center": zero[0], "num_beta": nb, "localization": gamma, "step_size": step_size}

    def noise():
        return torch.randn(chains, 1, generator=generator, dtype=torch.float64)

    first = noise() if "averaged_noise" in kind else None
    scale = kind["preconditioner"] * one if "preconditioner" in kind else None
    state = sgld.init(zero, preconditioner=scale, averaged_noise=first)
    for _ in range(200):  # the slowest forgets its start as (1 - 0.045)^400 = 1e-8
        state = sgld.step(state, a * state.theta, noise(), **options)
    found, expected = float(state.theta.square().mean()), variance(h, step_size)
    assert abs(found / expected - 1) < WITHIN * (2 / chains) ** 0.5


@pytest.mark.parametrize("averaged", [False, True])
def test_mean_and_covariance_of_a_correlated_gaussian(averaged):
    A = torch.tensor([[1.0, 0.6, -0.2], [0.6, 0.8, 0.1], [-0.2, 0.1, 0.5]], dtype=torch.float64)
    minimum = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    center = torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64)
    options = {"center": center, "num_beta": 30.0, "localization": 4.0, "step_size": 0.01}
    precision = 30 * A + 4 * torch.eye(3, dtype=torch.float64)
    mean = torch.linalg.solve(precision, 30 * A @ minimum + 4 * center)
    factor = torch.eye(3, dtype=torch.float64) - (0 if averaged else 0.01 / 4) * precision
    covariance = torch.linalg.inv(precision @ factor)
    chains, generator = 6000, torch.Generator().manual_seed(2)
    start = center.expand(chains, -1)

    def noise():
        return torch.randn(chains, 3, generator=generator, dtype=torch.float64)

    state = sgld.init(start, averaged_noise=noise() if averaged else None)
    for _ in range(300):  # slowest direction: (1 - 0.01 * 4.6 / 2)^300 = 1e-3 of an initial offset below 3
        state = sgld.step(state, (state.theta - minimum) @ A, noise(), **options)
    deviation = state.theta.mean(0) - mean
    assert bool((deviation.abs() < WITHIN * (covariance.diagonal() / chains).sqrt() + 3e-3).all())
    spread = (covariance.square() + covariance.diagonal()[:, None] * covariance.diagonal()) / chains
    assert bool(((state.theta.T.cov() - covariance).abs() < WITHIN * spread.sqrt() + 1e-4).all())


def test_rmsprop_preconditioner_is_the_running_mean_corrected_for_its_start():
    gradients = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state = sgld.init(torch.zeros(2, 5, dtype=torch.float64))
    for gradient in gradients:
        state = sgld.adapt(state, gradient, decay=0.9, damping=0.5)
    weights = torch.tensor([0.81, 0.9, 1.0], dtype=torch.float64)
    mean_square = (weights[:, None, None] * gradients**2).sum(0) / weights.sum()
    torch.testing.assert_close(state.preconditioner, 0.5 / (0.5 + mean_square.sqrt()))
    still = sgld.adapt(sgld.init(torch.zeros(1, 2)), torch.zeros(1, 2), damping=0.5)
    assert still.preconditioner.tolist() == [[1.0, 1.0]]


def test_step_changes_no_argument():
    theta, gradient, noise = (torch.full((2, 3), float(i)) for i in range(3))
    state = sgld.init(theta, averaged_noise=torch.zeros(2, 3))
    sgld.step(state, gradient, noise, center=theta[0], num_beta=2.0, localization=1.0, step_size=0.1)
    assert [float(t.mean()) for t in (theta, gradient, noise)] == [0.0, 1.0, 2.0]


def test_each_chain_has_a_stream_of_its_own():
    generators = sgld.spawn(torch.Generator().manual_seed(3), 3)
    noise = sgld.draw_noise(generators, torch.zeros(3, 20_000))
    again = sgld.draw_noise(sgld.spawn(torch.Generator().manual_seed(3), 3), torch.zeros(3, 20_000))
    assert torch.equal(noise, again)
    alone = sgld.draw_noise(sgld.spawn(torch.Generator().manual_seed(3), 2)[1:], torch.zeros(1, 20_000))
    assert torch.equal(noise[1:2], alone)
    correlation = torch.corrcoef(noise) - torch.eye(3)
    assert float(correlation.abs().max()) < WITHIN / 20_000**0.5
    other = sgld.draw_noise(sgld.spawn(torch.Generator().manual_seed(4), 3), torch.zeros(3, 20_000))
    assert not torch.equal(noise, other)


def test_bad_preconditioners_are_refused():
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive and finite"):
            sgld.init(torch.zeros(1, 2), preconditioner=torch.tensor([[1.0, value]]))
