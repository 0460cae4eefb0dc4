"""All pairs (a, b) of a modular task: which were trained on, their transposes, their answers in the group."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..geometry.fourier import discrete_logarithms
from ..runs.config import RunConfig

GROUPS = ("add", "sub", "mul", "div")
COMMUTATIVE = ("add", "mul", "x2_y2", "x2_xy_y2")


@dataclass(frozen=True)
class Pairs:
    """N pairs in the order of the task's samples.

    The answers of a group task are numbered so that the operation adds (or subtracts) numbers modulo
    `order`: residues themselves for add and sub, discrete logarithms for mul and div.
    """

    targets: NDArray[np.int64]  # (N,) right answers, without label noise
    train: NDArray[np.bool_]  # (N,)
    test: NDArray[np.bool_]  # (N,) may leave out some that aren't trained on
    mirror: NDArray[np.int64]  # (N,) number of the pair (b, a), -1 where it is no sample
    answers: NDArray[np.int64]  # (N,) in Z_order, -1 for a zero of mul and div; empty without a group
    order: int  # 0 without a group
    commutative: bool

    @property
    def transposed(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs that are trained on while their transposes are not, and these transposes."""
        first = np.flatnonzero(self.train & (self.mirror >= 0))
        first = first[~self.train[self.mirror[first]]]
        return first, self.mirror[first]

    @property
    def unseen(self) -> NDArray[np.int64]:
        """Test pairs whose transpose isn't trained on either."""
        return np.flatnonzero(self.test & ~((self.mirror >= 0) & self.train[self.mirror]))


def all_pairs(config: RunConfig) -> Pairs:
    """The pairs of a binary modular task on all of them.

    Raises:
        ValueError: another task, or neither a group nor commutative; the message names those that are.
    """
    from ..runs.tasks.task import make_task

    if config.task not in {*GROUPS, *COMMUTATIVE}:
        known = ", ".join(dict.fromkeys((*GROUPS, *COMMUTATIVE)))
        raise ValueError(f"task={config.task!r} has no progress measures; they exist for {known}")
    clean = make_task(replace(config, label_noise=0.0, device="cpu"))
    layout = str(config.task_options.get("layout", "ab"))
    a, b = (clean.inputs[:, layout.index(name)].numpy() for name in "ab")
    p, count = config.modulus, len(a)
    numbers = np.full((p, p), -1, dtype=np.int64)
    numbers[a, b] = np.arange(count)
    answers, order = _in_group(clean.targets.numpy(), config.task, p)
    return Pairs(
        targets=clean.targets.numpy(),
        train=_mask(clean.train.numpy(), count),
        test=_mask(clean.test.numpy(), count),
        mirror=numbers[b, a],
        answers=answers,
        order=order,
        commutative=config.task in COMMUTATIVE,
    )


def _in_group(targets: NDArray[np.int64], task: str, p: int) -> tuple[NDArray[np.int64], int]:
    if task in ("add", "sub"):
        return targets, p
    if task in ("mul", "div"):
        return discrete_logarithms(p)[targets], p - 1
    return np.empty(0, dtype=np.int64), 0


def _mask(numbers: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    mask = np.zeros(count, dtype=bool)
    mask[numbers] = True
    return mask
