from __future__ import annotations

import pytest
import torch
from grokscope.runs.config import RunConfig
from grokscope.runs.losses import correct, correct_per_head, make_criterion, mse, stablemax
from grokscope.runs.tasks.task import make_task
from torch import nn
from torch.func import grad, vmap

STREAM = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 5, dtype=torch.float64, generator=STREAM)
LABELS = torch.tensor([0, 4, 2, 1, 1, 3])


def test_cross_entropy_and_mse_are_pytorchs() -> None:
    task = make_task(RunConfig(modulus=5))
    ours = make_criterion(RunConfig(modulus=5), task)(LOGITS, LABELS)
    torch.testing.assert_close(ours, nn.CrossEntropyLoss()(LOGITS, LABELS))
    one_hot = nn.functional.one_hot(LABELS, 5).double()
    torch.testing.assert_close(mse(LOGITS, LABELS), nn.MSELoss()(LOGITS, one_hot))


def test_stablemax_against_its_definition() -> None:
    s = torch.where(LOGITS >= 0, LOGITS + 1, 1 / (1 - LOGITS))
    probabilities = s / s.sum(1, keepdim=True)
    expected = -probabilities.gather(1, LABELS[:, None]).log().mean()
    torch.testing.assert_close(stablemax(LOGITS, LABELS), expected)


def test_stablemax_keeps_a_gradient_where_softmax_rounds_to_one() -> None:
    logits = torch.tensor([[200.0, 0.0, 0.0]])
    target = torch.tensor([0])
    assert grad(lambda z: nn.functional.cross_entropy(z, target))(logits)[0, 0] == 0
    # d/dz log(1 + 2 / (z + 1)) at z = 200
    slope = grad(lambda z: stablemax(z, target))(logits)[0, 0].item()
    assert slope == pytest.approx(1 / 203 - 1 / 201, rel=1e-3)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "stablemax"])
def test_every_loss_is_a_mean_and_works_under_vmap(loss: str) -> None:
    config = RunConfig(modulus=5, loss=loss)
    criterion = make_criterion(config, make_task(config))
    whole = criterion(LOGITS, LABELS)
    torch.testing.assert_close(
        (criterion(LOGITS[:2], LABELS[:2]) * 2 + criterion(LOGITS[2:], LABELS[2:]) * 4) / 6, whole
    )
    singles = vmap(criterion)(LOGITS[:, None], LABELS[:, None])
    torch.testing.assert_close(singles.mean(), whole)
    stacked = vmap(criterion, in_dims=(0, None))(torch.stack([LOGITS, 2 * LOGITS]), LABELS)
    torch.testing.assert_close(stacked[0], whole)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "stablemax"])
def test_heads_add_up(loss: str) -> None:
    config = RunConfig(task="multiple", modulus=5, loss=loss)
    criterion = make_criterion(config, make_task(config))
    single = make_criterion(RunConfig(modulus=5, loss=loss), make_task(RunConfig(modulus=5)))
    outputs = torch.randn(6, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    targets = torch.stack([LABELS, LABELS.flip(0)], dim=1)
    expected = single(outputs[:, 0], targets[:, 0]) + single(outputs[:, 1], targets[:, 1])
    torch.testing.assert_close(criterion(outputs, targets), expected)


def test_counts() -> None:
    outputs = torch.eye(4)
    assert correct(outputs, torch.tensor([0, 1, 2, 0])) == 3
    both = torch.stack([outputs, outputs.flip(0)], dim=1)
    targets = torch.tensor([[0, 3], [1, 0], [2, 1], [0, 0]])
    assert correct_per_head(both, targets) == (3, 3)
    assert correct(both, targets) == 2
