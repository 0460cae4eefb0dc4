import json
from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.geometry.lanczos import lanczos
from grokscope.geometry.operators import preconditioned
from grokscope.geometry.stability import (
    adam_edge,
    adam_preconditioner,
    gradient_descent_edge,
    heavy_ball_edge,
    nesterov_edge,
    root_second_moment,
    spectral_ceilings,
)
from problems_curvature import matrix_operator, tensor

TABLE = json.loads((Path(__file__).parents[1] / "data" / "stability.json").read_text())
SCALAR = {case["id"]: case for case in TABLE["scalar"]}
DENSE = {case["id"]: case for case in TABLE["dense_preconditioned"]}


def edge(case):
    method, lr = case["method"], case["lr"]
    momentum, decay = case.get("momentum", 0.0), case.get("weight_decay", 0.0)
    terms = {"decay": decay} if method.endswith("decoupled") or method == "adamw_frozen" else {"l2": decay}
    if method.startswith("gd"):
        return gradient_descent_edge(lr, **terms)
    if method.startswith("heavy_ball"):
        return heavy_ball_edge(lr, momentum, dampening=case.get("dampening", 0.0), **terms)
    if method.startswith("nesterov"):
        return nesterov_edge(lr, momentum, averaged=method == "nesterov_ema", **terms)
    if method == "ema":
        return heavy_ball_edge(lr, momentum, dampening=momentum)
    return adam_edge(lr, case["beta1"], decay=decay)


def update_matrix(case, h):
    """One step of the optimizer on h x²/2 as a matrix on (x, momentum buffer)."""
    method, lr = case["method"], case["lr"]
    b, decay = case.get("momentum", case.get("beta1", 0.0)), case.get("weight_decay", 0.0)
    decoupled = method.endswith("decoupled") or method == "adamw_frozen"
    g = h if decoupled else h + decay
    kept = 1 - lr * decay if decoupled else 1.0
    averaged = method in ("ema", "nesterov_ema", "adam_frozen", "adamw_frozen")
    gain = 1 - b if averaged else 1 - case.get("dampening", 0.0)
    if method.startswith("gd"):
        return np.array([[kept - lr * g]])
    if method == "nesterov":
        return np.array([[kept - lr * g * (1 + b), -lr * b * b], [g, b]])
    if method == "nesterov_ema":
        return np.array([[kept - lr * gain * g * (1 + b), -lr * b * b], [gain * g, b]])
    return np.array([[kept - lr * gain * g, -lr * b], [gain * g, b]])


def radius(case, h):
    return abs(np.linalg.eigvals(update_matrix(case, h))).max()


@pytest.mark.parametrize("case", SCALAR.values(), ids=SCALAR)
def test_edge_against_oracle_and_recurrence(case):
    critical = edge(case)
    assert critical == pytest.approx(case["critical_curvature"], rel=1e-9)  # the table's precision
    assert radius(case, critical) == pytest.approx(1, abs=1e-9)
    assert radius(case, 0.99 * critical) < 1 < radius(case, 1.01 * critical)
    assert radius(case, 0.9 * critical) == pytest.approx(case["spectral_radius_at_0_9"], rel=1e-9)
    assert radius(case, 1.1 * critical) == pytest.approx(case["spectral_radius_at_1_1"], rel=1e-9)
    assert np.linalg.eigvals(update_matrix(case, critical)).real.min() == pytest.approx(-1, abs=1e-9)


def test_adaptive_edge_is_38_over_lr():
    assert adam_edge(1e-3) == pytest.approx(38_000)
    assert adam_edge(1e-3, decay=1.0) == pytest.approx(37_981)


@pytest.mark.parametrize("case", DENSE.values(), ids=DENSE)
def test_preconditioned_sharpness_and_its_threshold(case):
    hessian, diagonal = tensor(case["H"]), tensor(case["P"])
    found = float(lanczos(preconditioned(matrix_operator(hessian), diagonal), tolerance=1e-9).values[0])
    assert found == pytest.approx(case["preconditioned_sharpness"], rel=1e-9)
    threshold = adam_edge(case["lr"], case["beta1"], decay=case["weight_decay"])
    assert threshold == pytest.approx(case["threshold"], rel=1e-9)
    assert threshold / found == pytest.approx(case["critical_scale"], rel=1e-9)


@pytest.mark.parametrize(
    ("optimizer", "critical"),
    [
        (lambda x: torch.optim.SGD(x, lr=0.01), gradient_descent_edge(0.01)),
        (lambda x: torch.optim.SGD(x, lr=0.01, momentum=0.9), heavy_ball_edge(0.01, 0.9)),
        (lambda x: torch.optim.SGD(x, lr=0.01, momentum=0.9, nesterov=True), nesterov_edge(0.01, 0.9)),
        (lambda x: torch.optim.SGD(x, lr=0.01, weight_decay=5.0), gradient_descent_edge(0.01, l2=5.0)),
    ],
)
def test_torch_optimizers_diverge_beyond_the_edge(optimizer, critical):
    for factor, grows in ((0.99, False), (1.01, True)):
        x = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
        stepper = optimizer([x])
        for _ in range(2000):
            x.grad = factor * critical * x.detach()
            stepper.step()
        assert (abs(float(x.detach())) > 1) == grows


@pytest.mark.parametrize("steps", [1, 3, 50])
def test_preconditioner_reproduces_adams_update(steps):
    torch.manual_seed(0)
    x = torch.nn.Parameter(torch.randn(7, dtype=torch.float64))
    stepper = torch.optim.Adam([x], lr=0.01, betas=(0.8, 0.95), eps=1e-3)
    for _ in range(steps):
        x.grad = torch.randn(7, dtype=torch.float64)
        before = x.detach().clone()
        stepper.step()
    state = stepper.state[x]
    diagonal = adam_preconditioner(state["exp_avg_sq"], steps, betas=(0.8, 0.95), eps=1e-3)
    torch.testing.assert_close(x.detach() - before, -0.01 * state["exp_avg"] / diagonal, rtol=1e-10, atol=0)


def test_ceilings():
    root, direction = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.0, 2.0, 0.0])
    found = spectral_ceilings(root, direction, lr=0.1, eps=0.5)
    assert found == pytest.approx((20 * 4.5, 20 * 2.5, 20 * 9.5, 20 * 2.5))


def test_bad_arguments():
    for call in (
        lambda: gradient_descent_edge(0.0),
        lambda: gradient_descent_edge(1.0, decay=2.0),
        lambda: heavy_ball_edge(0.1, 1.0),
        lambda: heavy_ball_edge(0.1, 0.9, dampening=1.0),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()
    with pytest.raises(ValueError, match="step=0"):
        root_second_moment(torch.ones(2), 0)
