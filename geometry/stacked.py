"""Losses and gradients of stacks of parameter vectors, and of single samples, by vmap where it pays."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .objective import Objective, exact_attention

_STACKED_WORK = 2**25  # parameters times samples per vmap call; above it, a loop over rows is as fast


def sample_losses(objective: Objective, theta: Tensor) -> Tensor:
    """Loss of each sample (n,) in float64; their mean is the full loss (one forward pass)."""
    # With gradients on: without them PyTorch's encoder layers take a fused path that vmap can't batch.
    point = theta.detach().requires_grad_(True)
    each = torch.func.vmap(lambda index: objective.sample_loss(point, index[None]))
    with torch.enable_grad(), exact_attention():
        return torch.cat([each(chunk).detach().double() for chunk in _chunks(objective)])


def _chunks(objective: Objective) -> list[Tensor]:
    starts = range(0, objective.num_samples, objective.chunk_size)
    stops = [min(at + objective.chunk_size, objective.num_samples) for at in starts]
    return [torch.arange(a, b, device=objective.device) for a, b in zip(starts, stops, strict=True)]


def sample_gradients(objective: Objective, theta: Tensor, indices: Tensor) -> Tensor:
    """Gradient of the loss of each of the samples named by indices (m,), as rows (m, P)."""
    each = torch.func.vmap(
        torch.func.grad(lambda point, index: objective.sample_loss(point, index[None])), (None, 0)
    )
    with exact_attention():
        found: Tensor = each(theta.detach(), indices)
    return found


def draw_batch(
    generators: Sequence[torch.Generator], num_samples: int, batch_size: int | None
) -> Tensor | None:
    """A minibatch per chain (C, b), drawn with replacement; None stands for the whole data."""
    if batch_size is None:
        return None
    draws = [
        torch.randint(num_samples, (batch_size,), generator=generator, device=generator.device)
        for generator in generators
    ]
    return torch.stack(draws)


def losses_and_gradients(
    objective: Objective, theta: Tensor, indices: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Losses (K, C) and gradients (K, C, P) of a stack theta (K, C, P).

    Chain c is evaluated on its minibatch indices[c] (b,), or on the whole data, chunk by chunk. Small
    problems go through one vmap over the stack, larger ones chain by chain.
    """
    copies, chains, size = theta.shape
    rows = theta.detach().reshape(-1, size)
    if indices is not None:
        losses, gradients = _evaluate(objective, rows, indices.repeat(copies, 1))
    else:
        losses, gradients = _evaluate_all(objective, rows)
    return losses.view(copies, chains), gradients.view(copies, chains, size)


def _evaluate_all(objective: Objective, rows: Tensor) -> tuple[Tensor, Tensor]:
    losses, gradients = torch.zeros_like(rows[:, 0]), torch.zeros_like(rows)
    for chunk in _chunks(objective):
        weight = len(chunk) / objective.num_samples
        loss, gradient = _evaluate(objective, rows, chunk)
        losses.add_(loss, alpha=weight)
        gradients.add_(gradient, alpha=weight)
    return losses, gradients


def _evaluate(objective: Objective, rows: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (R,) and gradients (R, P) of rows (R, P) on samples (b,), or (R, b) of each row's own."""
    losses, gradients = torch.empty_like(rows[:, 0]), torch.empty_like(rows)
    together = max(1, _STACKED_WORK // (rows.shape[1] * indices.shape[-1]))
    for at in range(0, len(rows), together):
        block = slice(at, at + together) if together > 1 else at
        points, samples = rows[block].detach(), indices if indices.dim() == 1 else indices[block]
        losses[block], gradients[block] = _evaluate_block(objective, points, samples)
    return losses, gradients


def _evaluate_block(objective: Objective, points: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The same for some rows by one vmap, or for a single point (P,)."""
    points = points.requires_grad_(True)
    with torch.enable_grad():
        if points.dim() == 1:  # first derivatives only and no vmap: any attention kernel will do
            losses = objective.sample_loss(points, indices)
        else:
            shared = None if indices.dim() == 1 else 0
            with exact_attention():
                losses = torch.func.vmap(objective.sample_loss, (0, shared))(points, indices)
        if not losses.requires_grad:
            return losses, torch.zeros_like(points)
        (gradients,) = torch.autograd.grad(losses.sum(), points)
    return losses.detach(), gradients
