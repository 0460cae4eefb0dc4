"""Norms of the residual stream by name."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NORMS = ("layer", "rms", "sphere", "none")


class Sphere(nn.Module):
    """The unit vector x / ‖x‖ over the last dimension (Yildirim 2026, arXiv 2603.05228)."""

    def forward(self, x: Tensor) -> Tensor:
        """The unit vectors along x (..., width); NaN where x is zero."""
        return unit(x)


def make_norm(kind: str, width: int) -> nn.Module:
    """The norm that `kind` names, one of NORMS; `layer` and `rms` learn a gain per coordinate."""
    if kind == "layer":
        return nn.LayerNorm(width)
    if kind == "rms":
        return nn.RMSNorm(width)
    return Sphere() if kind == "sphere" else nn.Identity()


def unit(x: Tensor) -> Tensor:
    """Each x (..., d) over its Euclidean norm along the last dimension."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norm
