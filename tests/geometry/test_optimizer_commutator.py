"""Optimizer commutators against torch.optim itself, taken twice from the same state."""

from copy import deepcopy

import pytest
import torch
from grokscope.geometry.commutator import commutator
from grokscope.geometry.finite_commutator import finite_commutator
from grokscope.geometry.objective import gradient
from grokscope.geometry.optimizer_commutator import OptimizerState, adam, optimizer_commutator, sgd

SIZE = 12


def quartic(seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)
    return lambda theta: ((matrix @ theta) ** 4).mean() + (matrix[0] @ theta) ** 2


LOSS_A, LOSS_B, LOSS_C = quartic(1), quartic(2), quartic(3)
THETA = torch.randn(SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def torch_steps(make, losses, clip=None, warmup=()):
    """theta after torch.optim steps on the losses in order, and the optimizer."""
    parameter = torch.nn.Parameter(THETA.clone())
    optimizer = make([parameter])
    for loss in (*warmup, *losses):
        parameter.grad = gradient(loss, parameter.detach())
        if clip is not None:
            torch.nn.utils.clip_grad_norm_([parameter], clip)
        optimizer.step()
    return parameter.detach().clone(), deepcopy(optimizer.state[parameter])


OPTIMIZERS = {
    "adamw": (
        lambda p: torch.optim.AdamW(p, lr=1e-2, betas=(0.9, 0.98), weight_decay=0.7),
        {"decoupled": True},
    ),
    "adam": (
        lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.9, 0.98), weight_decay=0.7),
        {"decoupled": False},
    ),
}


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("warmup", [(), (LOSS_C, LOSS_A, LOSS_C)])
def test_adam_is_torch_adam_in_both_orders(name, warmup, clip):
    make, options = OPTIMIZERS[name]
    step = adam(lr=1e-2, betas=(0.9, 0.98), weight_decay=0.7, clip=clip, **options)
    start, memory = torch_steps(make, (), clip, warmup)
    state = (
        OptimizerState(memory["exp_avg"], memory["exp_avg_sq"], len(warmup))
        if warmup
        else OptimizerState.start(start)
    )
    found = optimizer_commutator(LOSS_A, LOSS_B, start, step=step, state=state)
    ab, _ = torch_steps(make, (LOSS_A, LOSS_B), clip, warmup)
    ba, _ = torch_steps(make, (LOSS_B, LOSS_A), clip, warmup)
    # Both round theta of order one in float64.
    torch.testing.assert_close(found.vector, ab - ba, rtol=1e-9, atol=1e-15)
    assert found.update_norms[0] == pytest.approx(
        float((torch_steps(make, (LOSS_A,), clip, warmup)[0] - start).norm())
    )


@pytest.mark.parametrize("warmup", [(), (LOSS_C, LOSS_A)])
def test_sgd_is_torch_sgd_in_both_orders(warmup):
    def make(parameters):
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, weight_decay=0.1)

    start, memory = torch_steps(make, (), None, warmup)
    state = OptimizerState.start(start)
    if warmup:
        state = OptimizerState(memory["momentum_buffer"], torch.zeros(SIZE), len(warmup))
    found = optimizer_commutator(
        LOSS_A, LOSS_B, start, step=sgd(lr=1e-4, momentum=0.9, weight_decay=0.1), state=state
    )
    ab, ba = (
        torch_steps(make, (LOSS_A, LOSS_B), None, warmup)[0],
        torch_steps(make, (LOSS_B, LOSS_A), None, warmup)[0],
    )
    torch.testing.assert_close(found.vector, ab - ba, rtol=1e-9, atol=1e-15)


def test_plain_sgd_is_the_finite_step():
    eta = 1e-6
    found = optimizer_commutator(LOSS_A, LOSS_B, THETA, step=sgd(lr=eta), state=OptimizerState.start(THETA))
    plain = finite_commutator(LOSS_A, LOSS_B, THETA, step_size=eta)
    torch.testing.assert_close(found.vector, plain.vector * eta**2)
    assert found.defect == pytest.approx(plain.defect)
    exact = commutator(LOSS_A, LOSS_B, THETA)
    # First order in eta · curvature ~ 1e-4; roundoff of theta over eta² ~ 1e-4.
    assert found.defect == pytest.approx(exact.defect, rel=1e-2)
    assert found.scale_free == pytest.approx(exact.scale_free, rel=1e-2)


def test_equal_batches_commute_and_order_is_antisymmetric():
    step, state = adam(lr=1e-2, weight_decay=1.0), OptimizerState.start(THETA)
    assert optimizer_commutator(LOSS_A, LOSS_A, THETA, step=step, state=state).raw == 0
    forward = optimizer_commutator(LOSS_A, LOSS_B, THETA, step=step, state=state)
    backward = optimizer_commutator(LOSS_B, LOSS_A, THETA, step=step, state=state)
    assert torch.equal(forward.vector, -backward.vector)
    assert 0 < forward.scale_free <= 1


def test_rates_per_coordinate():
    lr = torch.linspace(1e-3, 1e-2, SIZE, dtype=torch.float64)
    whole = adam(lr=lr, weight_decay=1.0)(THETA, gradient(LOSS_A, THETA), OptimizerState.start(THETA))[0]
    for i in (0, SIZE - 1):
        alone = adam(lr=float(lr[i]), weight_decay=1.0)(
            THETA, gradient(LOSS_A, THETA), OptimizerState.start(THETA)
        )[0]
        assert whole[i] == pytest.approx(float(alone[i]))


def test_float32_is_refused():
    with pytest.raises(ValueError, match="need float64"):
        optimizer_commutator(
            LOSS_A, LOSS_B, THETA.float(), step=sgd(lr=1e-3), state=OptimizerState.start(THETA.float())
        )
