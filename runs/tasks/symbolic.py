"""Tasks beyond modular arithmetic: sparse parity of bits, and composition of permutations."""

from __future__ import annotations

from itertools import permutations

import torch

from ..config import RunConfig
from ..streams import generator
from .samples import Samples, arrange, distinct


def parity(config: RunConfig, *, bits: int = 40, k: int = 3, samples: int = 2_000) -> Samples:
    """Bit strings (n, bits), tokens 0 and 1, and the parity of k hidden positions.

    The n = samples strings are different and uniform; which k positions count is random as well. Both come
    from stream `task` of config.split_seed. (Barak et al. 2022, arXiv 2207.08799.)

    Raises:
        ValueError: bits outside [1, 62], k outside [1, bits], or more samples than there are strings.
    """
    if not 1 <= bits <= 62:
        raise ValueError(f"bits={bits} must be in [1, 62]")
    if not 1 <= k <= bits:
        raise ValueError(f"k={k} must be in [1, bits={bits}]")
    stream = generator(config.split_seed, "task")
    hidden = torch.randperm(bits, generator=stream)[:k]
    strings = distinct(2**bits, samples, stream).unsqueeze(1) >> torch.arange(bits) & 1
    return Samples(strings, strings[:, hidden].sum(1) % 2, num_classes=2, num_tokens=2)


def s5(config: RunConfig, *, layout: str = "ab") -> Samples:
    """All 14,400 pairs of permutations of five things and their composition (a b)(i) = a(b(i)).

    Permutations are numbered in lexicographic order; `layout` is the token sequence, see `arrange`.
    """
    table = torch.tensor(list(permutations(range(5))))
    number = {tuple(row): i for i, row in enumerate(table.tolist())}
    a, b = torch.cartesian_prod(torch.arange(120), torch.arange(120)).unbind(1)
    composed = table[a].gather(1, table[b])
    targets = torch.tensor([number[tuple(row)] for row in composed.tolist()])
    inputs, num_tokens = arrange(a, b, layout=layout, operands=120)
    return Samples(inputs, targets, num_classes=120, num_tokens=num_tokens)
