"""Losses of logits, as means over the samples of a batch, and counts of right answers.

Outputs are logits (n, classes), or (n, heads, classes) where a task asks several questions about one
input; targets are class numbers (n,) or (n, heads).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from .config import RunConfig
from .tasks.task import Task

Criterion = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> (): mean over the n samples, summed over heads."""


def make_criterion(config: RunConfig, task: Task) -> Criterion:
    """The loss that config names; for several heads the sum over heads of their mean losses.

    All are means over samples, and pure functions that work under torch.func.
    """
    losses: dict[str, Criterion] = {
        "cross_entropy": functional.cross_entropy,
        "mse": mse,
        "stablemax": stablemax,
    }
    loss, heads = losses[config.loss], len(task.heads)
    if not heads:
        return loss
    # The mean over n * heads answers, times heads, is the sum over heads of means over n.
    return lambda outputs, targets: heads * loss(outputs.flatten(0, 1), targets.flatten())


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples and classes of the squared distance to the one-hot target, (n, C) and (n,) -> ().

    As nn.MSELoss on one-hot targets (Liu et al. 2022, Omnigrok, arXiv 2210.01117).
    """
    one_hot = targets.unsqueeze(-1) == torch.arange(outputs.shape[-1], device=targets.device)
    return (outputs - one_hot.to(outputs.dtype)).square().mean()


def stablemax(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples of -log(s(z_y) / sum_c s(z_c)), logits z (n, C), targets y (n,).

    s(z) = z + 1 for z >= 0 and 1 / (1 - z) for z < 0 grows like z instead of exp(z), so that the gradient
    survives where softmax rounds to one (Prieto et al. 2025, arXiv 2501.04697). We stay in log space and
    in the dtype of the logits; they use float64.
    """
    magnitude = torch.log1p(outputs.abs())
    logs = torch.where(outputs < 0, -magnitude, magnitude)
    return functional.cross_entropy(logs, targets)


def correct(outputs: Tensor, targets: Tensor) -> int:
    """How many of the n samples are answered right, by every head where there are several."""
    right = outputs.argmax(-1) == targets
    return int(right.reshape(len(targets), -1).all(1).sum())


def correct_per_head(outputs: Tensor, targets: Tensor) -> tuple[int, ...]:
    """Right answers of each head, from outputs (n, heads, C) and targets (n, heads)."""
    return tuple((outputs.argmax(-1) == targets).sum(0).tolist())
