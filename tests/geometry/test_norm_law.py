import json
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.geometry import norm_law

TABLE = json.loads((Path(__file__).parents[1] / "data" / "norm_decay.json").read_text())
TOLERANCE = TABLE["relative_tolerance"]


def cases(name):
    return pytest.mark.parametrize("case", TABLE[name], ids=lambda case: case["id"])


@cases("decoupled_or_sgd")
def test_zero_gradient_decay(case):
    rate = norm_law.contraction_rate(lr=case["lr"], weight_decay=case["weight_decay"])
    assert rate == pytest.approx(case["log_rate_per_step"], rel=TOLERANCE)
    for step, value in case["V"].items():
        assert norm_law.decayed_squared_norm(case["V0"], int(step), rate=rate) == pytest.approx(
            value, rel=TOLERANCE
        )
    for ratio, passage in case["first_step_at_or_below_ratio"].items():
        target = case["V0"] * float(ratio)
        assert norm_law.passage_step(case["V0"], target, rate=rate) == passage["step"]
        exact = norm_law.delay(case["V0"], target, rate=rate)
        assert exact == pytest.approx(passage["exact_real"], rel=TOLERANCE)
        assert norm_law.implied_target(case["V0"], exact, rate=rate) == pytest.approx(target, rel=TOLERANCE)


@cases("sgd_momentum_l2")
def test_momentum(case):
    options = {name: case[name] for name in ("lr", "weight_decay", "momentum")}
    for step, value in case["V"].items():
        found = norm_law.momentum_squared_norm(case["V0"], int(step), **options)
        assert found == pytest.approx(value, rel=1e-8)  # matrix power of up to 1,000 near-unit factors
    radius = max(abs(complex(*value)) for value in case["factor_eigenvalues"])
    assert norm_law.contraction_rate(optimizer="sgd", **options) == pytest.approx(
        -2 * log(radius), rel=TOLERANCE
    )


@cases("adam_coupled")
def test_coupled_adam_is_linear_in_the_norm(case):
    norms = norm_law.coupled_adam_squared_norm(
        case["theta0"],
        1000,
        lr=case["lr"],
        weight_decay=case["weight_decay"],
        betas=(case["beta1"], case["beta2"]),
        eps=case["eps"],
    )
    for step, value in case["V"].items():
        assert norms[int(step)] == pytest.approx(value, rel=1e-8)  # oscillates once a coordinate is near zero


@cases("noise_floor")
def test_noise_floor(case):
    options = {"lr": case["lr"], "weight_decay": case["weight_decay"], "noise": case["noise_second_moment"]}
    assert norm_law.noise_floor(**options) == pytest.approx(case["floor_exact"], rel=TOLERANCE)
    for step, value in case["expected_V"].items():
        exact = norm_law.noisy_squared_norm(case["V0"], int(step), **options)
        assert exact == pytest.approx(value, rel=TOLERANCE)
        assert norm_law.lyapunov_bound(case["V0"], int(step), **options) >= exact


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_rate_is_that_of_the_torch_optimizer(optimizer):
    theta = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    kind = torch.optim.AdamW if optimizer == "adamw" else torch.optim.SGD
    stepper = kind([theta], lr=0.01, weight_decay=0.5)
    norms = []
    for _ in range(40):
        norms.append(float(theta.detach() @ theta.detach()))
        theta.grad = torch.zeros_like(theta)
        stepper.step()
    rate = norm_law.contraction_rate(lr=0.01, weight_decay=0.5, optimizer=optimizer)
    assert norm_law.local_rate(range(40), norms).rate == pytest.approx(rate, rel=1e-9)


def test_coupled_adam_has_no_rate():
    with pytest.raises(ValueError, match="linearly"):
        norm_law.contraction_rate(lr=0.1, weight_decay=1.0, optimizer="adam")


@pytest.mark.parametrize("weight_decay", [0.0, 1000.0, 3000.0])
def test_decay_that_does_not_contract_is_refused(weight_decay):
    with pytest.raises(ValueError, match="does not contract"):
        norm_law.contraction_rate(lr=1e-3, weight_decay=weight_decay)


def test_local_rate_survives_wild_entries():
    steps = np.arange(0, 100, 5)
    norms = 300 * np.exp(-0.002 * steps)
    norms[[3, 9, 10, 17]] *= [5, 0.1, 3, 9]
    found = norm_law.local_rate(steps, norms)
    assert found.rate == pytest.approx(0.002, rel=1e-9)
    assert found.low <= found.rate <= found.high


def test_escape_bounds_bracket_and_meet():
    bounds = norm_law.escape_bounds(100.0, 1.0, lr=0.01, weight_decay=0.5, noise=30.0)
    assert bounds.lower < bounds.exact < bounds.upper
    assert norm_law.noisy_squared_norm(
        100.0, bounds.exact, lr=0.01, weight_decay=0.5, noise=30.0
    ) == pytest.approx(1.0)
    assert norm_law.lyapunov_bound(
        100.0, bounds.upper, lr=0.01, weight_decay=0.5, noise=30.0
    ) == pytest.approx(1)
    silent = norm_law.escape_bounds(100.0, 1.0, lr=0.01, weight_decay=0.5)
    assert silent.lower == silent.exact == pytest.approx(silent.upper / 2)
    assert norm_law.escape_bounds(100.0, 0.1, lr=0.01, weight_decay=0.5, noise=30.0).exact == float("inf")


def test_simulated_noise_meets_the_exact_mean():
    generator = np.random.default_rng(1)
    theta = np.full((4000, 5), 1.0)
    for _ in range(60):
        theta = (1 - 0.02) * theta - 0.1 * generator.normal(0, 1, theta.shape)
    norms = (theta**2).sum(1)
    expected = norm_law.noisy_squared_norm(5.0, 60, lr=0.1, weight_decay=0.2, noise=5.0)
    assert abs(norms.mean() - expected) < 4 * norms.std() / 4000**0.5  # false alarm: 6e-5


@pytest.mark.parametrize("bad", [{"start": 0.0}, {"target": -1.0}, {"rate": 0.0}])
def test_delay_names_what_is_not_positive(bad):
    values = {"start": 2.0, "target": 1.0, "rate": 0.1} | bad
    with pytest.raises(ValueError, match=next(iter(bad))):
        norm_law.delay(values["start"], values["target"], rate=values["rate"])
