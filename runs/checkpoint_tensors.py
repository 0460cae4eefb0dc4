"""What checkpoints have in common: their tensors, without reading any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..geometry.objective import canonical_name
from ..geometry.parameters import ParameterTable
from .checkpoint_files import Checkpoint, Part, read


class Found(NamedTuple):
    """A checkpoint without its tensors."""

    path: Path
    name: str
    signature: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    aliases: Mapping[str, str]
    numbers: Mapping[str, int | float]
    log: tuple[Mapping[str, Any], ...]
    left_out: tuple[str, ...]
    others: tuple[str, ...]


def look(path: Path, key: str | None, omit: Sequence[str]) -> Found:
    """What can be known of a checkpoint without reading its tensors.

    Raises:
        ValueError: it can't be read, is refused, or holds no parameters.
    """
    name = path.name
    checkpoint = read(path, name, key=key)
    parts = parameters(checkpoint, omit)
    first: dict[tuple[int, ...], str] = {}
    aliases = {}
    for tensor, part in parts.items():
        owner = first.setdefault(part.place, tensor) if part.place and 0 not in part.shape else tensor
        if owner != tensor:
            aliases[tensor] = owner
    signature = {n: (part.shape, part.dtype) for n, part in parts.items() if n not in aliases}
    if not signature:
        raise ValueError(f"{name} holds no floating-point parameters")
    left_out = tuple(sorted(set(map(canonical_name, checkpoint.parts)) - set(parts)))
    return Found(path, name, signature, aliases, checkpoint.numbers, checkpoint.log, left_out,
                  checkpoint.left_out)  # fmt: skip


def parameters(checkpoint: Checkpoint, omit: Sequence[str]) -> dict[str, Part]:
    """The floating-point tensors by canonical name, without those like a pattern of `omit`.

    Raises:
        ValueError: complex ones, or two that are called the same without their wrappers.
    """
    found: dict[str, Part] = {}
    for name, part in checkpoint.parts.items():
        canonical = canonical_name(name)
        if part.dtype.is_complex:
            raise ValueError(f"{checkpoint.name}: {name} is {part.dtype}; only real parameters are known")
        if not part.dtype.is_floating_point or any(fnmatchcase(canonical, pattern) for pattern in omit):
            continue
        if canonical in found:
            raise ValueError(f"{checkpoint.name}: two tensors are called {canonical} without their wrappers")
        found[canonical] = part
    return found


def table_of(ordered: Sequence[tuple[int, Found]]) -> tuple[ParameterTable, str]:
    """The tensors that all checkpoints share, and the dtype that holds them all exactly.

    Raises:
        ValueError: tensors or shapes differ; every checkpoint that differs from the first is named.
    """
    _, first = ordered[0]
    problems = [_difference(first, other) for _, other in ordered[1:]]
    problems = [problem for problem in problems if problem]
    if problems:
        raise ValueError(
            f"{len(problems)} checkpoints differ from {first.name}: {'; '.join(problems[:5])}; import them "
            "apart with only=, or leave tensors out with leave_out="
        )
    names = tuple(first.signature)
    shapes = tuple(shape for shape, _ in first.signature.values())
    wide = "torch.float64" in dtypes(ordered)
    return ParameterTable(names, shapes, dict(first.aliases)), "float64" if wide else "float32"


def _difference(first: Found, other: Found) -> str:
    mine, theirs = ({n: shape for n, (shape, _) in f.signature.items()} for f in (first, other))
    if missing := sorted(set(mine) - set(theirs)):
        return f"{other.name} lacks {missing[0]}"
    if more := sorted(set(theirs) - set(mine)):
        return f"{other.name} has {more[0]} more"
    for name, shape in mine.items():
        if theirs[name] != shape:
            return f"{other.name} has {name} of shape {theirs[name]}, not {shape}"
    return ""


def dtypes(ordered: Sequence[tuple[int, Found]]) -> tuple[str, ...]:
    """Names of the dtypes that occur, sorted."""
    return tuple(sorted({str(dtype) for _, f in ordered for _, dtype in f.signature.values()}))
