"""Attention over short sequences, with derivatives of every order."""

from __future__ import annotations

import torch
from torch import Tensor

# Up to this many query-key pairs are mixed elementwise; tiny matrix products cost more (512 sequences).
ELEMENTWISE_PAIRS = 12


def mix(query: Tensor, key: Tensor, value: Tensor, *, heads: int, allowed: Tensor | None = None) -> Tensor:
    """sum_j softmax_j(query_i · key_j) value_j per head, (r, n, d); query (r, n, d), key, value (l, n, d).

    n is the number of sequences, r and l positions; the scale 1/sqrt(d/heads) is already in the query.
    `allowed` (r, l) masks out the pairs where it is false. Nothing here calls PyTorch's fused attention
    kernels: they have no second derivatives.
    """
    query, key, value = (x.view(*x.shape[:-1], heads, x.shape[-1] // heads) for x in (query, key, value))
    rows, positions = query.shape[0], key.shape[0]
    if rows * positions > ELEMENTWISE_PAIRS:
        return _by_products(query, key, value, allowed)
    scores = (query.unsqueeze(1) * key.unsqueeze(0)).sum(-1)  # (r, l, n, heads)
    if allowed is not None:
        scores = scores.masked_fill(~allowed[:, :, None, None], -torch.inf)
    weights = scores.softmax(1).unsqueeze(-1)
    return (weights * value.unsqueeze(0)).sum(1).flatten(-2)


def _by_products(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """The same by matrix products over (n, heads, positions, d/heads)."""
    query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    scores = query @ key.transpose(-1, -2)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return (scores.softmax(-1) @ value).permute(2, 0, 1, 3).flatten(-2)
