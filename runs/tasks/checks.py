"""The contract of a user's own task, checked before anything trains on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .samples import Samples


def checked_samples(result: Any, *, source: str) -> tuple[Samples, tuple[Tensor, Tensor] | None]:
    """The samples that a user's function returned, and its split if it made one.

    Raises:
        ValueError: the result breaks the contract of `make_task`; the message says how and what to do.
    """
    if isinstance(result, Samples):
        parts: tuple[Any, ...] = (result.inputs, result.targets)
    else:
        parts = result if isinstance(result, tuple) else ()
    if len(parts) not in (2, 4) or not all(map(torch.is_tensor, parts)):
        raise ValueError(
            f"{source} returned {_described(result)}; return tensors (inputs, targets), "
            "(inputs, targets, train, test), or Samples"
        )
    inputs, targets, *split = parts
    num_tokens, num_classes = _check_inputs(inputs, source), _check_targets(targets, len(inputs), source)
    if isinstance(result, Samples):
        return _check_ranges(result, num_tokens, num_classes, source), None
    heads = tuple(f"head{i}" for i in range(targets.shape[1])) if targets.ndim == 2 else ()
    samples = Samples(inputs, targets, num_classes, num_tokens, heads)
    return samples, (split[0], split[1]) if split else None


def check_split(train: Tensor, test: Tensor, total: int) -> None:
    """Nothing, if train and test are usable sample numbers.

    Raises:
        ValueError: a split is empty, of another dtype or shape, out of range, or they overlap.
    """
    for name, indices in (("train", train), ("test", test)):
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise ValueError(
                f"{name} is {_described(indices)}; it must be a list of sample numbers, int64 (n,)"
            )
        if len(indices) == 0:
            raise ValueError(f"{name} has no sample out of {total}; change train_fraction")
        if int(indices.min()) < 0 or int(indices.max()) >= total:
            raise ValueError(f"{name} names a sample outside [0, {total})")
    if len(torch.unique(torch.cat([train, test]))) < len(train) + len(test):
        raise ValueError(
            "train and test overlap or repeat a sample; each sample may stand once in one of them"
        )


def _check_inputs(inputs: Tensor, source: str) -> int:
    """The number of tokens, 0 for features."""
    if inputs.ndim != 2 or inputs.numel() == 0:
        raise ValueError(
            f"{source}: inputs is {_described(inputs)}; it must be (samples, positions), not empty"
        )
    if inputs.is_floating_point():
        if not bool(torch.isfinite(inputs).all()):
            raise ValueError(f"{source}: inputs holds NaN or infinite numbers; clean them")
        return 0
    if inputs.dtype != torch.int64:
        raise ValueError(
            f"{source}: inputs is {_described(inputs)}; use int64 for tokens or a float for features"
        )
    if int(inputs.min()) < 0:
        raise ValueError(f"{source}: inputs holds token {int(inputs.min())}; tokens start at 0")
    return int(inputs.max()) + 1


def _check_targets(targets: Tensor, count: int, source: str) -> int:
    """The number of classes."""
    if targets.dtype != torch.int64 or targets.ndim not in (1, 2) or targets.numel() == 0:
        raise ValueError(
            f"{source}: targets is {_described(targets)}; it must be int64 (samples,) or (samples, heads)"
        )
    if len(targets) != count:
        raise ValueError(f"{source}: {count} inputs but {len(targets)} targets; they must agree")
    if int(targets.min()) < 0:
        raise ValueError(f"{source}: targets holds label {int(targets.min())}; labels start at 0")
    return int(targets.max()) + 1


def _check_ranges(samples: Samples, num_tokens: int, num_classes: int, source: str) -> Samples:
    """The samples, if their tokens and labels lie below the numbers that they declare."""
    if num_tokens > samples.num_tokens or (num_tokens == 0 and samples.num_tokens):
        raise ValueError(f"{source}: token {num_tokens - 1} is outside [0, num_tokens={samples.num_tokens})")
    if num_classes > samples.num_classes:
        raise ValueError(
            f"{source}: label {num_classes - 1} is outside [0, num_classes={samples.num_classes})"
        )
    wanted = samples.targets.shape[1] if samples.targets.ndim == 2 else 0
    if len(samples.heads) != wanted:
        raise ValueError(f"{source}: {len(samples.heads)} heads are named for {wanted} columns of targets")
    return samples


def _described(value: Any) -> str:
    if torch.is_tensor(value):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return type(value).__name__
