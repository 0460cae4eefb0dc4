"""A task: inputs, targets and their split into training and test samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..config import RunConfig
from ..named import load, options
from ..streams import generator, stream_seed
from .checks import check_split, checked_samples
from .modular import OPERATIONS, multiple, operation, random_labels, sampled_pairs
from .samples import Samples
from .symbolic import parity, s5


@dataclass(frozen=True)
class Task:
    """N samples with their targets, and which of them are for training and for test.

    inputs: (N, positions) int64 tokens in [0, num_tokens), or (N, features) floating point where num_tokens
        is 0.
    targets: (N,) int64 in [0, num_classes), or (N, heads) where `heads` names several questions about one
        input.
    train, test: sample numbers, int64, without overlap.
    """

    inputs: Tensor
    targets: Tensor
    train: Tensor
    test: Tensor
    num_classes: int
    num_tokens: int
    heads: tuple[str, ...] = ()

    def to(self, device: str | torch.device) -> Task:
        """The same task with its tensors on device.

        Raises:
            ValueError: this machine or this torch has no such device.
        """
        names = ("inputs", "targets", "train", "test")
        try:
            return replace(self, **{name: getattr(self, name).to(device) for name in names})
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"device={str(device)!r} is not to be had here: {reason}") from error


def make_task(config: RunConfig, *, trust: bool = False) -> Task:
    """The task that config describes, on its device: the same one whenever it is called.

    Of a random order of all samples (stream `split` of config.split_seed) the first
    floor(train_fraction N) are for training and the others for test. Every task takes two options
    besides its own: `test_fraction` keeps only the last floor(test_fraction N) for test, `stratify`
    applies train_fraction within each class of the first head. A fraction config.label_noise of the
    training labels, chosen by stream `labels`, is replaced by another class; test labels are clean.

    `config.task` may be `module:function` of your own, imported only if `trust`:
    `function(config, **task_options)` returns (inputs, targets), or (inputs, targets, train, test) with a
    split of its own, as tensors on the CPU shaped as in `Task`; or `Samples`, which also names the numbers
    of classes and tokens (else: the largest that occur, plus one). Both count from 0. It runs with torch's
    global generator on stream `task`, so that torch's random numbers are repeatable.

    Raises:
        ValueError: an unknown option or a value out of bounds, or tensors that break the contract.
    """
    own, test_fraction, stratify = _split_options(config.task_options)
    samples, split = (
        _user_samples(config, own, trust) if ":" in config.task else (_samples(config, own), None)
    )
    train, test = split or _split(samples, config, test_fraction=test_fraction, stratify=stratify)
    check_split(train, test, len(samples.inputs))
    targets = _with_noise(samples, train, config)
    inputs = samples.inputs
    if inputs.is_floating_point():
        inputs = inputs.to(getattr(torch, config.dtype))
    task = Task(inputs, targets, train, test, samples.num_classes, samples.num_tokens, samples.heads)
    return task.to(config.device)


def _split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], float, bool]:
    """The task's own options, and the two that belong to every task."""

    def common(*, test_fraction: float = 1.0, stratify: bool = False) -> tuple[float, bool]:
        return test_fraction, stratify

    shared = {name: value for name, value in given.items() if name in ("test_fraction", "stratify")}
    fraction, stratify = common(**options(common, shared, field="task_options"))
    if not 0 < fraction <= 1:
        raise ValueError(f"task_options.test_fraction={fraction} must be in (0, 1]")
    return {name: value for name, value in given.items() if name not in shared}, fraction, stratify


def _samples(config: RunConfig, given: Mapping[str, Any]) -> Samples:
    others: dict[str, Callable[..., Samples]] = {
        "multiple": multiple,
        "sampled_pairs": sampled_pairs,
        "random_labels": random_labels,
        "parity": parity,
        "s5": s5,
    }
    build = operation if config.task in OPERATIONS else others[config.task]
    return build(config, **options(build, given, field="task_options"))


def _user_samples(
    config: RunConfig, given: Mapping[str, Any], trust: bool
) -> tuple[Samples, tuple[Tensor, Tensor] | None]:
    function = load(config.task, field="task", trust=trust)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(config.split_seed, "task"))
        result = function(config, **given)
    return checked_samples(result, source=f"task={config.task!r}")


def _split(
    samples: Samples, config: RunConfig, *, test_fraction: float, stratify: bool
) -> tuple[Tensor, Tensor]:
    """Training and test samples, each in random order."""
    total = len(samples.inputs)
    if samples.train_count is not None:
        return torch.arange(samples.train_count), torch.arange(samples.train_count, total)
    order = torch.randperm(total, generator=generator(config.split_seed, "split"))
    chosen = _first_share(samples.targets.reshape(total, -1)[order, 0], config.train_fraction, stratify)
    train, others = order[chosen], order[~chosen]
    return train, others[max(0, len(others) - int(test_fraction * total)) :]


def _first_share(labels: Tensor, fraction: float, stratify: bool) -> Tensor:
    """Mask (n,) of the first floor(fraction n) samples, of all or of each class."""
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    members = [torch.nonzero(labels == label)[:, 0] for label in torch.unique(labels)] if stratify else None
    for positions in members or [torch.arange(len(labels))]:
        chosen[positions[: int(fraction * len(positions))]] = True
    return chosen


def _with_noise(samples: Samples, train: Tensor, config: RunConfig) -> Tensor:
    """Targets with round(label_noise n) of the n training labels of each head moved to another class."""
    count = round(config.label_noise * len(train))
    if not count:
        return samples.targets
    stream = generator(config.split_seed, "labels")
    noisy = samples.targets.clone().reshape(len(samples.targets), -1)
    for head in range(noisy.shape[1]):
        wrong = train[torch.randperm(len(train), generator=stream)[:count]]
        shift = torch.randint(1, samples.num_classes, (count,), generator=stream)
        noisy[wrong, head] = (noisy[wrong, head] + shift) % samples.num_classes
    return noisy.reshape(samples.targets.shape)
