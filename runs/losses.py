"""Losses of logits, as means over the samples of a batch, and counts of right answers."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from .config import RunConfig
from .tasks.task import Task

Criterion = Callable[[Tensor, Tensor], Tensor]
"""(outputs (n, classes) or (n, heads, classes), targets (n,) or (n, heads)) -> (): mean over the n samples."""


def make_criterion(config: RunConfig, task: Task) -> Criterion:
    """The loss that config names; for several heads the sum over heads of their mean losses."""
    loss = {"cross_entropy": F.cross_entropy}[config.loss]
    return loss


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many samples are answered right, () int64; with several heads (heads,), one count each."""
    return (outputs.argmax(-1) == targets).sum(0)
