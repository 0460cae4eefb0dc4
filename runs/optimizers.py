"""Optimizers by name, with learning rate and weight decay per parameter group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..geometry.parameters import group_of
from .config import RunConfig


def make_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that config describes, over all trainable parameters of model.

    adamw decouples weight decay (theta shrinks by 1 - lr weight_decay a step), adam and sgd add
    weight_decay theta to the gradient (coupled L2). A parameter group named in config.group_lr has
    lr times that factor, one named in config.group_weight_decay that weight decay.

    Raises:
        ValueError: config names a parameter group that model does not have.
    """
    groups = _groups(config, model)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def _groups(config: RunConfig, model: nn.Module) -> list[dict[str, Any]]:
    """One group per name that config sets apart, and one for all others."""
    apart = {*config.group_lr, *config.group_weight_decay} | (
        {"embedding"} if config.adaptive_embedding_lr else set()
    )
    members: dict[str, list[nn.Parameter]] = {}
    known = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        group = group_of(name)
        known.append(group)
        members.setdefault(group if group in apart else "", []).append(parameter)
    missing = sorted(apart - set(known))
    if missing:
        there = ", ".join(dict.fromkeys(known))
        raise ValueError(f"group={missing[0]!r} is no parameter group of this model; there are {there}")
    return [
        {
            "params": parameters,
            "lr": config.lr * config.group_lr.get(group, 1.0),
            "weight_decay": config.group_weight_decay.get(group, config.weight_decay),
            "name": group,
        }
        for group, parameters in members.items()
    ]


def embedding_lr_ratio(
    embedding: Tensor,
    weight: Tensor,
    *,
    frequency: float = 1.0,
    scale: float = 1.0,
    bounds: tuple[float, float] = (1.0, 30.0),
) -> float:
    """The embedding's lr over the others': scale · sigma_max(E) / (frequency · sigma_max(W)), within bounds.

    E (tokens, d) is the embedding, W the first layer's weight, frequency the share of steps in which a
    token's row receives a gradient. With it both change at the same rate: ‖∇E‖ is proportional to
    sigma_max(W), ‖∇W‖ to sigma_max(E) (AlQuabeh et al. 2025, arXiv 2505.15624, proposition 4.1; they fix the
    ratio at 10, we can renew it). Costs two symmetric eigenvalue problems
    of the smaller sides.
    """
    ratio = scale * _largest_singular_value(embedding) / (frequency * _largest_singular_value(weight))
    return min(max(ratio, bounds[0]), bounds[1])


def adapt_embedding_lr(config: RunConfig, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Set the embedding group's lr to config.lr times `embedding_lr_ratio`, and return that ratio.

    config.group_lr["embedding"], if given, is the ratio's scale. E and W are the first embedding and the
    first matrix outside embeddings; the frequency is 1 - (1 - 1/tokens)^(2 batch_size), as for pairs of
    uniformly drawn tokens.
    """
    matrices = {name: p for name, p in model.named_parameters() if p.ndim == 2}
    embedding = next(p for name, p in matrices.items() if group_of(name) == "embedding")
    weight = next(p for name, p in matrices.items() if group_of(name) != "embedding")
    drawn = float("inf") if config.batch_size == "full" else 2 * config.batch_size
    frequency = 1 - (1 - 1 / len(embedding)) ** drawn
    ratio = embedding_lr_ratio(
        embedding, weight, frequency=frequency, scale=config.group_lr.get("embedding", 1.0)
    )
    for group in optimizer.param_groups:
        if group["name"] == "embedding":
            group["lr"] = config.lr * ratio
    return ratio


def _largest_singular_value(matrix: Tensor) -> float:
    wide = matrix.detach() if len(matrix) <= matrix.shape[1] else matrix.detach().T
    return float(torch.linalg.eigvalsh(wide @ wide.T)[-1].sqrt())
