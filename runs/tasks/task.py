"""A task: inputs, targets and their split into training and test samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..config import RunConfig
from ..streams import generator
from .modular import pairs_task


@dataclass(frozen=True)
class Task:
    """N samples with their targets, and which of them are for training and for test.

    inputs (N, positions) int64 tokens in [0, num_tokens), or (N, features) floating point where
    num_tokens is 0. targets (N,) int64 in [0, num_classes), or (N, heads) for several questions about
    one input, named by `heads`. train and test hold sample numbers (int64) without overlap.
    """

    inputs: Tensor
    targets: Tensor
    train: Tensor
    test: Tensor
    num_classes: int
    num_tokens: int
    heads: tuple[str, ...] = ()

    def to(self, device: str | torch.device) -> Task:
        """The same task with its tensors on device."""
        names = ("inputs", "targets", "train", "test")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def make_task(config: RunConfig, *, trust: bool = False) -> Task:
    """The task that config describes, on its device: the same one whenever it is called.

    The split comes from stream `split` of config.split_seed: the first floor(train_fraction N) of a random
    order are for training.
    """
    inputs, targets, num_classes, num_tokens = pairs_task(config)
    count = int(config.train_fraction * len(inputs))
    order = torch.randperm(len(inputs), generator=generator(config.split_seed, "split"))
    task = Task(inputs, targets, order[:count], order[count:], num_classes, num_tokens)
    return task.to(config.device)
