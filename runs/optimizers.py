"""Optimizers by name, with learning rate and weight decay per parameter group."""

from __future__ import annotations

import torch
from torch import nn

from .config import RunConfig


def make_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that config describes, over all parameters of model."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )
