from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
import torch
from grokscope.geometry.parameters import group_of
from grokscope.runs.config import RunConfig
from grokscope.runs.models.model import make_model
from grokscope.runs.optimizers import adapt_embedding_lr, embedding_lr_ratio, make_optimizer
from grokscope.runs.tasks.task import make_task
from torch import Tensor, nn

SMALL = RunConfig(modulus=5, width=8, heads=2, feedforward=8, dtype="float64", lr=0.1, weight_decay=0.5)


def steps(config: RunConfig, gradients: list[float], start: float = 1.0) -> list[float]:
    """A scalar parameter after each step of config's optimizer under the given gradients."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = make_optimizer(config, model)
    found = []
    for gradient in gradients:
        model.weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        found.append(model.weight.item())
    return found


def adam(config: RunConfig, gradients: list[float], *, decoupled: bool) -> list[float]:
    """Kingma & Ba's algorithm, with decay decoupled or added to the gradient, written out."""
    (beta1, beta2), theta, m, v, found = config.betas, 1.0, 0.0, 0.0, []
    for t, raw in enumerate(gradients, start=1):
        g = raw if decoupled else raw + config.weight_decay * theta
        theta -= config.lr * config.weight_decay * theta * decoupled
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        theta -= config.lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + config.eps)
        found.append(theta)
    return found


GRADIENTS = [0.3, -1.0, 2.0, 0.0, 0.7]


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_adam_with_decoupled_and_coupled_decay(name: str) -> None:
    config = replace(SMALL, optimizer=name, betas=(0.8, 0.95))
    expected = adam(config, GRADIENTS, decoupled=name == "adamw")
    assert steps(config, GRADIENTS) == pytest.approx(expected, rel=1e-12)


def test_sgd_with_momentum() -> None:
    config = replace(SMALL, optimizer="sgd", momentum=0.9)
    theta, velocity, expected = 1.0, 0.0, []
    for raw in GRADIENTS:
        velocity = 0.9 * velocity + raw + 0.5 * theta
        theta -= 0.1 * velocity
        expected.append(theta)
    assert steps(config, GRADIENTS) == pytest.approx(expected, rel=1e-12)


def model_and_task(config: RunConfig) -> nn.Module:
    return make_model(config, make_task(config))


def test_groups_have_their_own_rates() -> None:
    config = replace(
        SMALL, group_lr={"embedding": 10.0, "head": 0.0}, group_weight_decay={"norm": 0.0, "head": 2.0}
    )
    model = model_and_task(config)
    optimizer = make_optimizer(config, model)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    lrs, decays = {"embedding": 1.0, "head": 0.0}, {"norm": 0.0, "head": 2.0}
    for name, parameter in model.named_parameters():
        lr, decay = lrs.get(group_of(name), 0.1), decays.get(group_of(name), 0.5)
        # Adam's first step is lr times the gradient's sign; eps moves it by 1e-8.
        torch.testing.assert_close(
            parameter.detach(), before[name] * (1 - lr * decay) - lr, rtol=0, atol=1e-7
        )


def test_unknown_group_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"group='heads' is no parameter group .* there are embedding, attention"
    ):
        make_optimizer(replace(SMALL, group_lr={"heads": 1.0}), model_and_task(SMALL))


def test_frozen_parameters_stay_out() -> None:
    model = model_and_task(SMALL)
    model.token.weight.requires_grad_(False)
    (group,) = make_optimizer(SMALL, model).param_groups
    assert len(group["params"]) == len(list(model.parameters())) - 1


def spectral(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh((matrix.T @ matrix).detach())[-1].sqrt())


def test_embedding_ratio_against_the_spectrum_and_the_papers_example() -> None:
    """PyTorch's initialization of a 99 x 128 embedding and a 512 x 512 layer gives 18.4."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        embedding, layer = nn.Embedding(99, 128).weight, nn.Linear(512, 512).weight
    ratio = embedding_lr_ratio(embedding, layer)
    assert ratio == pytest.approx(spectral(embedding.double()) / spectral(layer.double()), rel=1e-5)
    assert ratio == pytest.approx(18.4, rel=0.05)  # draws of two extreme singular values vary by 2 %
    assert embedding_lr_ratio(embedding, layer, frequency=0.8) == pytest.approx(ratio / 0.8)
    assert embedding_lr_ratio(embedding, layer, scale=100.0) == 30.0
    assert embedding_lr_ratio(embedding, layer, scale=1e-3) == 1.0


def test_adaptive_ratio_reaches_the_embedding_group_only() -> None:
    config = replace(
        SMALL, adaptive_embedding_lr=5, model="embedding_mlp", group_lr={"embedding": 2.0}, batch_size=3
    )
    model = model_and_task(config)
    optimizer = make_optimizer(config, model)
    ratio = adapt_embedding_lr(config, model, optimizer)
    e, w = model.token.weight, model.feedforward[0].weight
    assert ratio == pytest.approx(2 * spectral(e) / (spectral(w) * (1 - 0.8**6)))
    rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {"embedding": pytest.approx(0.1 * ratio), "": 0.1}
    full = adapt_embedding_lr(replace(config, batch_size="full"), model, optimizer)
    assert full == pytest.approx(ratio * (1 - 0.8**6))


def test_state_survives_saving() -> None:
    model = model_and_task(SMALL)
    optimizer = make_optimizer(SMALL, model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    other = make_optimizer(SMALL, model)
    other.load_state_dict(optimizer.state_dict())
    for parameter in model.parameters():
        assert torch.equal(other.state[parameter]["exp_avg_sq"], optimizer.state[parameter]["exp_avg_sq"])
