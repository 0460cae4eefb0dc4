"""What a task consists of before it is split, and the sampling that several tasks share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """All samples of a task; see `Task` for the shapes.

    Where `train_count` is given, the first train_count samples are for training and the others for test,
    whatever the configuration's train_fraction.
    """

    inputs: Tensor
    targets: Tensor
    num_classes: int
    num_tokens: int
    heads: tuple[str, ...] = ()
    train_count: int | None = None


def arrange(a: Tensor, b: Tensor, *, layout: str, operands: int) -> tuple[Tensor, int]:
    """Token sequences (n, len(layout)) and the number of tokens, for operands a and b (n,) in [0, operands).

    `layout` is the sequence, one character per token: a and b are the operands, o the operation and = the
    equals sign, as in "ab", "ab=" or "aob="; o and = are tokens of their own after the operands.

    Raises:
        ValueError: layout lacks an operand or has another character.
    """
    if set(layout) - set("abo=") or not {"a", "b"} <= set(layout):
        raise ValueError(f"layout={layout!r} must hold a and b, and may hold o and =, such as 'ab' or 'aob='")
    extra = [mark for mark in "o=" if mark in layout]
    columns = {"a": a, "b": b} | {mark: torch.full_like(a, operands + i) for i, mark in enumerate(extra)}
    return torch.stack([columns[mark] for mark in layout], dim=1), operands + len(extra)


def distinct(population: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` different numbers (count,) int64 drawn uniformly from [0, population), in random order.

    Draws with rejection where few of many are wanted, and permutes all otherwise.

    Raises:
        ValueError: count exceeds population.
    """
    if count > population:
        raise ValueError(
            f"{count} different samples are wanted but there are only {population}; ask for fewer"
        )
    if 2 * count >= population:
        return torch.randperm(population, generator=generator)[:count]
    found = torch.empty(0, dtype=torch.int64)
    while len(found) < count:
        drawn = torch.cat([found, torch.randint(population, (2 * count,), generator=generator)])
        found = _first_occurrences(drawn)
    return found[:count]


def _first_occurrences(numbers: Tensor) -> Tensor:
    """The different values of numbers in the order in which they first appear."""
    values, inverse = torch.unique(numbers, return_inverse=True)
    first = torch.full((len(values),), len(numbers)).scatter_reduce(
        0, inverse, torch.arange(len(numbers)), reduce="amin"
    )
    return numbers[first.sort().values]
