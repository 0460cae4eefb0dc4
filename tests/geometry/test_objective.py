import math

import pytest
import torch
from grokscope.geometry.objective import Objective, flatten, from_module, gradient, load_flat, parameter_table
from grokscope.geometry.probe import probe_determinism, require_deterministic
from problems_curvature import network_objective, small_mlp
from torch import nn
from torch.nn import functional


def data(count=9, features=3, classes=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, features, generator=generator, dtype=dtype)
    return inputs, torch.randint(classes, (count,), generator=generator)


@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_no_partition_changes_value_or_gradient(kind):
    objective, theta = network_objective(kind)
    point = theta.clone().requires_grad_(True)
    value = objective.full(point)
    (slope,) = torch.autograd.grad(value, point)
    for chunk_size in (1, 2, 8, 20, 1000):
        other = objective.with_chunk_size(chunk_size)
        assert other.value(theta) == pytest.approx(float(value.detach()), rel=1e-14)
        torch.testing.assert_close(other.gradient(theta), slope, rtol=0, atol=1e-15)
        assert sum(weight for weight, _ in other.chunks()) == pytest.approx(1, abs=1e-15)


def test_an_outlier_in_a_ragged_last_batch_counts_once():
    # 1,025 samples in batches of 512: with equal weight per batch the last sample would count 512-fold.
    inputs = torch.ones(1025, 1, dtype=torch.float64)
    inputs[-1] = 100.0
    objective = Objective(lambda theta, i: ((inputs[i] @ theta) ** 2).mean() / 2, 1025, chunk_size=512)
    theta = torch.ones(1, dtype=torch.float64)
    assert float(objective.gradient(theta)) == pytest.approx((1024 + 100**2) / 1025)


def test_gradients_are_zero_where_the_loss_ignores_theta():
    theta = torch.ones(3, dtype=torch.float64)
    assert gradient(lambda t: torch.tensor(2.0), theta).tolist() == [0, 0, 0]
    assert gradient(lambda t: (t[:2] ** 2).sum(), theta).tolist() == [2, 2, 0]


def test_frozen_parameters_are_no_part_of_theta():
    model = small_mlp().double()
    model[0].weight.requires_grad_(False)
    inputs, targets = data()
    objective = from_module(model, inputs, targets, functional.cross_entropy)
    assert objective.table.names == ("0.bias", "2.weight", "2.bias")
    assert len(flatten(model)) == objective.table.size == 39
    expected = functional.cross_entropy(model(inputs), targets)
    assert objective.value(flatten(model)) == pytest.approx(float(expected.detach()), rel=1e-14)


def test_tied_parameters_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.head = nn.Embedding(5, 6), nn.Linear(6, 5, bias=False)
            self.head.weight = self.token.weight

        def forward(self, index):
            return self.head(self.token(index))

    model = Tied().double()
    inputs, targets = torch.arange(5), torch.arange(5).flip(0)
    objective = from_module(model, inputs, targets, functional.cross_entropy)
    assert objective.table.size == 30
    functional.cross_entropy(model(inputs), targets).backward()
    found = objective.gradient(flatten(model))
    torch.testing.assert_close(found, model.token.weight.grad.reshape(-1), rtol=0, atol=1e-15)


def test_sum_and_mean_over_output_terms_are_the_criterions_business():
    # MSE over k outputs: torch's mean divides by n k, and so does the objective; both are means over samples.
    model = nn.Linear(3, 4).double()
    inputs, targets = data()[0], torch.randn(9, 4, dtype=torch.float64)
    for criterion, factor in (
        (functional.mse_loss, 1.0),
        (lambda f, y: ((f - y) ** 2).sum(1).mean(), 4.0),
    ):
        objective = from_module(model, inputs, targets, criterion, chunk_size=4)
        expected = factor * functional.mse_loss(model(inputs), targets)
        assert objective.value(flatten(model)) == pytest.approx(float(expected.detach()), rel=1e-14)


@pytest.mark.parametrize("training", [False, True])
def test_model_and_random_state_stay_untouched(training):
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.0), nn.Linear(6, 4)).double()
    model.train(training)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    inputs, targets = data()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    flags = [p.requires_grad for p in model.parameters()]
    state = torch.get_rng_state()
    objective = from_module(model, inputs, targets, functional.cross_entropy)
    theta = flatten(model) + 1
    objective.value(theta)
    objective.gradient(theta)
    probe_determinism(objective, theta)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training is training
    assert [p.requires_grad for p in model.parameters()] == flags
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[3].weight.grad is None
    assert torch.equal(state, torch.get_rng_state())


def test_wrapped_models_have_plain_names():
    model = small_mlp()
    assert parameter_table(nn.DataParallel(model)) == parameter_table(model)
    theta = flatten(model) * 2
    load_flat(model, theta)
    assert torch.equal(flatten(model), theta)


def test_works_under_vmap_over_samples():
    objective, theta = network_objective("transformer")
    each = torch.func.vmap(torch.func.grad(objective.at), in_dims=(None, 0))(theta, torch.arange(25)[:, None])
    torch.testing.assert_close(each.mean(0), objective.gradient(theta), rtol=0, atol=1e-14)


def test_sound_losses_pass_the_probe_at_any_scale():
    for scale in (1.0, 1e-9):
        objective, theta = network_objective("transformer", dtype=torch.float32, chunk_size=7)
        small = Objective(lambda t, i: scale * objective.sample_loss(t, i), objective.num_samples, 7)  # noqa: B023
        found = probe_determinism(small, theta)
        assert found.deterministic
        assert found.difference == 0
        require_deterministic(small, theta)


def test_a_minimum_is_no_false_alarm():
    inputs = torch.randn(50, 2, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    mean = inputs.mean(0)
    objective = Objective(lambda theta, i: ((inputs[i] - theta) ** 2).sum(1).mean(), 50, chunk_size=16)
    assert probe_determinism(objective, mean).deterministic


def test_probe_names_dropout():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 4)).double()
    objective, theta = from_module(model, *data(), functional.cross_entropy), flatten(model)
    found = probe_determinism(objective, theta)
    assert not found.deterministic
    assert found.draws
    assert "dropout" in found.cause
    with pytest.raises(ValueError, match=r"has no Hessian: it draws random numbers.*model\.eval\(\)"):
        require_deterministic(objective, theta)
    model.eval()
    require_deterministic(objective, theta)


def test_probe_names_batch_statistics():
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double()
    objective = from_module(model, *data(), functional.cross_entropy)
    found = probe_determinism(objective, flatten(model))
    assert "batch norm" in found.cause
    assert found.difference == 0
    model.eval()
    require_deterministic(objective, flatten(model))


def test_probe_names_a_sum_reduction_and_hidden_state():
    inputs, targets = data()
    model = small_mlp().double()
    summed = from_module(model, inputs, targets, lambda f, y: functional.cross_entropy(f, y, reduction="sum"))
    assert "sum reduction" in probe_determinism(summed, flatten(model)).cause
    calls = iter(range(10_000))
    moving = Objective(lambda theta, i: (theta**2).sum() * (1 + math.sin(next(calls))), 9)
    assert "from call to call" in probe_determinism(moving, torch.ones(3, dtype=torch.float64)).cause


def test_bad_arguments():
    inputs, targets = data()
    model = small_mlp().double()
    with pytest.raises(ValueError, match="9 samples but targets has 8"):
        from_module(model, inputs, targets[:8], functional.cross_entropy)
    with pytest.raises(ValueError, match="num_samples=0"):
        Objective(lambda theta, i: theta.sum(), 0)
    with pytest.raises(ValueError, match="chunk_size=0"):
        Objective(lambda theta, i: theta.sum(), 3, chunk_size=0)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="requires_grad=True"):
        from_module(model, inputs, targets, functional.cross_entropy)
