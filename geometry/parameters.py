"""Where each named tensor lies in the flat parameter vector theta (P,)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# First match wins; a name that matches nothing belongs to the group of its first component.
_GROUP_MARKS = {
    "norm": ("norm", "ln_", ".ln"),
    "embedding": ("embed", "token", "position", "wte", "wpe"),
    "attention": ("attn", "attention"),
    "feedforward": ("linear1", "linear2", "mlp", "feedforward"),
    "head": ("head", "unembed"),
}


class Matrix(NamedTuple):
    """A weight matrix inside theta: `theta[start : start + rows * columns].reshape(rows, columns)`."""

    name: str
    start: int
    rows: int
    columns: int


@dataclass(frozen=True)
class ParameterTable:
    """Names, shapes and order of the tensors that theta concatenates (row-major, P entries in all).

    `aliases` maps each further name of a tied tensor to the name under which it is stored, so that a
    shared tensor is counted once.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    aliases: Mapping[str, str]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.shapes):
            raise ValueError(
                f"names: {len(self.names)} names for {len(self.shapes)} shapes; give one shape a name"
            )
        if len(set(self.names)) != len(self.names):
            raise ValueError("names: a name stands twice; every tensor needs a name of its own")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Entries per tensor, in order."""
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """P, the length of theta."""
        return sum(self.sizes)

    @property
    def starts(self) -> tuple[int, ...]:
        """Offset of each tensor in theta."""
        return tuple(accumulate(self.sizes, initial=0))[:-1]

    def unflatten(self, theta: Any) -> dict[str, Any]:
        """Views of theta (P,) by name, aliases included; works on NumPy arrays and torch tensors alike.

        Raises:
            ValueError: theta does not have P entries.
        """
        if theta.shape != (self.size,):
            raise ValueError(
                f"theta has shape {tuple(theta.shape)}; this model's parameters need ({self.size},)"
            )
        # The gradient of one split is one concatenation; that of a slice is padded to P, for every tensor.
        split = theta.split(list(self.sizes)) if hasattr(theta, "split") else np.split(theta, self.starts[1:])
        parts = zip(self.names, split, self.shapes, strict=False)
        named = {name: part.reshape(shape) for name, part, shape in parts}
        return named | {alias: named[name] for alias, name in self.aliases.items()}

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Parameter names by group (embedding, attention, feedforward, norm, head, or first component)."""
        found: dict[str, list[str]] = {}
        for name in self.names:
            found.setdefault(group_of(name), []).append(name)
        return {group: tuple(names) for group, names in found.items()}

    def select(self, patterns: str | Iterable[str]) -> NDArray[np.int64]:
        """Sorted coordinates of theta in the given groups or shell-style name patterns.

        Raises:
            ValueError: a pattern matches nothing; the message lists the groups and names there are.
        """
        patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        spans = [span for pattern in patterns for span in self._spans(pattern)]
        return np.unique(np.concatenate([np.arange(start, start + size) for start, size in spans]))

    def _spans(self, pattern: str) -> list[tuple[int, int]]:
        groups = self.groups()
        chosen = [
            name for name in self.names if name in groups.get(pattern, ()) or fnmatchcase(name, pattern)
        ]
        if not chosen:
            known = ", ".join((*groups, *self.names))
            raise ValueError(f"parameters={pattern!r} matches no group and no name; there are: {known}")
        where = dict(zip(self.names, zip(self.starts, self.sizes, strict=True), strict=True))
        return [where[name] for name in chosen]

    def matrices(self) -> tuple[Matrix, ...]:
        """Every two-dimensional tensor; a stacked `in_proj_weight` (3d, d) as its .q, .k and .v thirds."""
        found = []
        for name, start, shape in zip(self.names, self.starts, self.shapes, strict=True):
            if len(shape) == 2 and name.endswith("in_proj_weight"):
                found += _thirds(name, start, shape)
            elif len(shape) == 2:
                found.append(Matrix(name, start, *shape))
        return tuple(found)


def group_of(name: str) -> str:
    """The group a parameter name belongs to; unknown names belong to their first component."""
    for group, marks in _GROUP_MARKS.items():
        if any(mark in name for mark in marks):
            return group
    return name.split(".")[0]


def _thirds(name: str, start: int, shape: Sequence[int]) -> list[Matrix]:
    rows, columns = shape[0] // 3, shape[1]
    return [
        Matrix(f"{name}.{part}", start + i * rows * columns, rows, columns) for i, part in enumerate("qkv")
    ]
