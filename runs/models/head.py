"""From the features that are read out to logits: one linear head, several, or one of cosines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from .norm import unit


class Heads(nn.ModuleDict):
    """One linear head per question on the same features: (n, width) -> (n, heads, num_classes)."""

    def forward(self, features: Tensor) -> Tensor:
        """Logits of every head, in the order of their names' creation."""
        return torch.stack([head(features) for head in self.values()], dim=1)


class CosineHead(nn.Linear):
    """scale · cos(features, class weights): (n, width) -> (n, num_classes), without bias.

    Neither the features' norm nor the weights' reaches the logits (Yildirim 2026, arXiv 2603.05228).
    """

    def __init__(self, width: int, num_classes: int, *, scale: float) -> None:
        super().__init__(width, num_classes, bias=False)
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        """Logits between -scale and scale."""
        return self.scale * functional.linear(unit(features), unit(self.weight))


def make_head(
    width: int, num_classes: int, heads: Sequence[str], *, bias: bool, scale: float = 0.0
) -> nn.Module:
    """A linear head, or one per name in `heads`; with scale > 0 of cosines times scale."""

    def one() -> nn.Linear:
        return CosineHead(width, num_classes, scale=scale) if scale else nn.Linear(width, num_classes, bias)

    return Heads({name: one() for name in heads}) if heads else one()
