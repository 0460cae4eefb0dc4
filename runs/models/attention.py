"""Attention over short sequences, with derivatives of every order."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

# Up to this many query-key pairs are mixed elementwise; tiny matrix products cost more (512 sequences).
ELEMENTWISE_PAIRS = 12


def mix(
    query: Tensor, key: Tensor, value: Tensor, *, number: int, heads: int, allowed: Tensor | None = None
) -> Tensor:
    """sum_j softmax_j(query_i · key_j / sqrt(d/heads)) value_j per head: (r n, d) from query (r n, d).

    key and value are (l n, d); n = `number` of sequences, r and l positions, which come first in the rows.
    `allowed` (r, l) masks out the pairs where it is false. Nothing here calls PyTorch's fused attention
    kernels: they have no second derivatives.
    """
    query, key, value = (x.view(-1, number, heads, x.shape[-1] // heads) for x in (query, key, value))
    if len(query) * len(key) > ELEMENTWISE_PAIRS:
        return _by_products(query, key, value, allowed)
    scores = (query.unsqueeze(1) * key.unsqueeze(0)).sum(-1) / sqrt(query.shape[-1])  # (r, l, n, heads)
    if allowed is not None:
        scores = scores.masked_fill(~allowed[:, :, None, None], -torch.inf)
    weights = scores.softmax(1).unsqueeze(-1)
    return (weights * value.unsqueeze(0)).sum(1).view(-1, value.shape[-2] * value.shape[-1])


def _by_products(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """The same by matrix products over (n, heads, positions, d/heads)."""
    query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    scores = query @ key.transpose(-1, -2) / sqrt(query.shape[-1])
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return (scores.softmax(-1) @ value).permute(2, 0, 1, 3).flatten(0, 1).flatten(1)
