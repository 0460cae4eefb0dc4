"""Binary operations modulo p: on all pairs, several at once, on sampled pairs, or with random labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..config import RunConfig
from ..streams import generator
from .samples import Samples, arrange, distinct

OPERATIONS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "add": lambda a, b, p: (a + b) % p,
    "sub": lambda a, b, p: (a - b) % p,
    "mul": lambda a, b, p: a * b % p,
    "div": lambda a, b, p: a * _inverses(p)[b] % p,
    "x2_y2": lambda a, b, p: (a * a + b * b) % p,
    "x2_xy_y2": lambda a, b, p: (a * a + a * b + b * b) % p,
    "x3_xy": lambda a, b, p: (a * a % p * a + a * b) % p,
}
"""(a, b, p) -> c for residues a, b (n,) int64; division needs a prime p and b != 0."""


def operation(config: RunConfig, *, layout: str = "ab", zero: bool = False) -> Samples:
    """All ordered pairs (a, b) modulo p = config.modulus and the result of the operation config.task.

    Multiplication leaves out a = 0 and b = 0 (as the papers do, for the multiplicative group) unless
    `zero`; division leaves out b = 0. `layout` is the token sequence, see `arrange`.
    """
    samples = _all_pairs(config.modulus, (config.task,), layout=layout, zero=zero)
    return replace(samples, targets=samples.targets[:, 0])


def multiple(config: RunConfig, *, ops: str = "add,mul", layout: str = "ab", zero: bool = False) -> Samples:
    """Several operations on the same pairs, each answered by a head of its own; `ops` lists them.

    The pairs are those that every operation admits, as in multi-task grokking (Xu 2026, arXiv 2602.18523).

    Raises:
        ValueError: an operation that does not exist, or one that stands twice.
    """
    names = tuple(name.strip() for name in ops.split(","))
    unknown = [name for name in names if name not in OPERATIONS]
    if unknown or len(set(names)) < len(names):
        raise ValueError(f"ops={ops!r} must list different operations out of {', '.join(OPERATIONS)}")
    samples = _all_pairs(config.modulus, names, layout=layout, zero=zero)
    return replace(samples, heads=names)


def sampled_pairs(
    config: RunConfig,
    *,
    op: str = "add",
    train_pairs: int = 300_000,
    test_pairs: int = 1_000_000,
    layout: str = "ab",
) -> Samples:
    """Different random pairs modulo a large p: train_pairs for training, test_pairs others for test.

    For moduli whose p^2 pairs are too many (LeDoux 2026, arXiv 2603.25047: p = 9973). The split follows the
    two counts, not config.train_fraction.

    Raises:
        ValueError: op does not exist, or there are fewer pairs than wanted.
    """
    p = config.modulus
    if op not in OPERATIONS:
        raise ValueError(f"op={op!r} must be one of {', '.join(OPERATIONS)}")
    if train_pairs < 1 or test_pairs < 1:
        raise ValueError(f"train_pairs={train_pairs} and test_pairs={test_pairs} must be at least 1")
    _check_prime((op,), p)
    skipped = int(op == "div")  # b = 0
    chosen = distinct(p * (p - skipped), train_pairs + test_pairs, generator(config.split_seed, "task"))
    a, b = chosen // (p - skipped), chosen % (p - skipped) + skipped
    inputs, num_tokens = arrange(a, b, layout=layout, operands=p)
    return Samples(inputs, OPERATIONS[op](a, b, p), p, num_tokens, train_count=train_pairs)


def random_labels(config: RunConfig, *, layout: str = "ab") -> Samples:
    """All pairs modulo p with a uniformly random label each: nothing to generalize, for controls."""
    p = config.modulus
    pairs = torch.cartesian_prod(torch.arange(p), torch.arange(p))
    inputs, num_tokens = arrange(*pairs.unbind(1), layout=layout, operands=p)
    labels = torch.randint(p, (p * p,), generator=generator(config.split_seed, "task"))
    return Samples(inputs, labels, p, num_tokens)


def _all_pairs(p: int, ops: tuple[str, ...], *, layout: str, zero: bool) -> Samples:
    """All pairs that every operation admits; targets (n, ops)."""
    _check_prime(ops, p)
    a, b = torch.cartesian_prod(torch.arange(p), torch.arange(p)).unbind(1)
    product = "mul" in ops and not zero
    admitted = ((a > 0) | (not product)) & ((b > 0) | (not (product or "div" in ops)))
    a, b = a[admitted], b[admitted]
    inputs, num_tokens = arrange(a, b, layout=layout, operands=p)
    answers = torch.stack([OPERATIONS[op](a, b, p) for op in ops], dim=1)
    return Samples(inputs, answers, p, num_tokens)


def _check_prime(ops: tuple[str, ...], p: int) -> None:
    if "div" in ops and any(p % divisor == 0 for divisor in range(2, int(p**0.5) + 1)):
        raise ValueError(
            f"modulus={p} is not prime, so div is undefined; choose a prime or another operation"
        )


def _inverses(p: int) -> Tensor:
    """The inverse of every residue modulo a prime p; 0 for 0."""
    return torch.tensor([0] + [pow(residue, -1, p) for residue in range(1, p)])
