"""Gradient descent with weight decay on both layers of ReLU networks, several at once.

The case beyond the theorem in "To Grok Grokking: Provable Grokking in Ridge Regression" (Xu, Vardi,
Safran 2026, arXiv 2601.19791). For its closed form where only the outer layer trains, see `ridge.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float64]


class Networks(NamedTuple):
    """B networks f(x) = Σ_j a_j max(0, w_j·x): inner weights w (B, m, d), outer weights a (B, m)."""

    inner: Tensor
    outer: Tensor

    def outputs(self, inputs: Tensor) -> Tensor:
        """Values f (B, n) at inputs (B, n, d)."""
        return _outer((inputs @ self.inner.mT).relu(), self.outer)


class Curves(NamedTuple):
    """What happened to B networks at S steps."""

    steps: NDArray[np.int64]  # (S,)
    train_loss: FloatArray  # (B, S) ½ mean f², without the penalty
    population_loss: FloatArray  # (B, S) mean f² over the fresh inputs, without ½
    squared_norm: FloatArray  # (B, S) ‖a‖² + ‖w‖²


def descend(
    networks: Networks, inputs: Tensor, fresh: Tensor, *, lr: float, ridge: Tensor, at: Iterable[int]
) -> Curves:
    """Full-batch descent of ½ mean_i f(x_i)² + (λ/2)(‖a‖² + ‖w‖²), a teacher that is zero everywhere.

    inputs (B, n, d) are the training samples of each network, fresh (B, r, d) those of its population
    loss, ridge (B,) is λ. Measures after `at` updates, and ends with the last of them. A step costs one
    gradient.

    Raises:
        ValueError: the descent diverged; lr is too large.
    """
    inner, outer = networks
    rate, wanted, found = lr * ridge[:, None], set(at), []
    for step in range(max(wanted) + 1):
        hidden = (inputs @ inner.mT).relu()  # (B, n, m)
        output = _outer(hidden, outer)
        if step in wanted:
            found.append((step, *_measured(Networks(inner, outer), output, fresh)))
        error = output / output.shape[1]
        active = (hidden > 0).to(outer.dtype) * outer[:, None, :] * error[:, :, None]
        inner = inner - lr * active.mT @ inputs - rate[:, :, None] * inner
        outer = outer - lr * (error[:, None, :] @ hidden)[:, 0] - rate * outer
    taken, train, population, norm = zip(*found, strict=True)
    curves = Curves(np.array(taken), *(torch.stack(part, 1).numpy() for part in (train, population, norm)))
    if not np.isfinite(curves.train_loss).all():
        raise ValueError(f"lr={lr} lets the descent diverge; ask for less")
    return curves


def _measured(networks: Networks, output: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    population = networks.outputs(fresh).square().mean(1)
    norm = networks.inner.square().sum((1, 2)) + networks.outer.square().sum(1)
    return output.square().mean(1) / 2, population, norm


def _outer(hidden: Tensor, outer: Tensor) -> Tensor:
    return (hidden @ outer[:, :, None])[:, :, 0]
