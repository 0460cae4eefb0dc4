"""Binary operations modulo p on all pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import RunConfig


def pairs_task(config: RunConfig) -> tuple[Tensor, Tensor, int, int]:
    """All ordered pairs (a, b) modulo p and a + b."""
    p = config.modulus
    pairs = torch.cartesian_prod(torch.arange(p), torch.arange(p))
    return pairs, pairs.sum(1) % p, p, p
