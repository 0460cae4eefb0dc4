"""branch(run, path, at=step): continue a run from a kept full state, with changed fields or other batches."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from . import safe_load
from .config import RunConfig, from_mapping
from .store import Run
from .train import Branch, Progress, train
from .trainer import Trainer

# They decide what theta is, or were used up before the first step: a continued run can't change them.
_FIXED = (
    "task", "task_options", "modulus", "train_fraction", "label_noise", "model", "model_options", "layers",
    "width", "heads", "feedforward", "optimizer", "init_scale", "embedding_init_scale", "seed", "init_seed",
    "split_seed", "dtype", "device",
)  # fmt: skip
# They live in the saved optimizer, where the parent's values would win.
_OPTIMIZER = ("lr", "weight_decay", "group_lr", "group_weight_decay", "betas", "eps", "momentum")


def branch(
    parent: Run,
    path: str | Path,
    *,
    at: int,
    changes: Mapping[str, Any] | None = None,
    batch_seed: int | None = None,
    progress: Progress | None = None,
    trust: bool = False,
) -> Run:
    """The run at `path` that leaves `parent` at step `at` with changed fields or another batch stream.

    It starts from the parent's kept state (`state_at`): parameters, optimizer moments, batch stream and
    milestones. With no change it takes the parent's own steps, bit for bit on the same machine; with
    `batch_seed` the minibatches after `at` come from that seed instead. It carries the parent's metrics
    before `at`, and names the parent (path, hash, step) in its provenance.

    Raises:
        ValueError: no state was kept at that step, or a changed field can't change in a continued run.
    """
    if parent.config is None:
        raise ValueError(
            f"run={str(parent.path)!r} is of a loop of your own; only runs of `train` can branch"
        )
    changed = dict(changes or {}) | ({} if batch_seed is None else {"batch_seed": batch_seed})
    config = from_mapping(changed, source="set", base=parent.config)
    differing = parent.config.differences(config)
    for name in set(changed) & set(_FIXED):
        raise ValueError(f"set={name}: it can't change in a run that has begun; train a new run instead")
    state = kept_state(parent, at)
    if set(differing) & set(_OPTIMIZER):
        state = with_optimizer_of(config, state, trust=trust)
    origin = Branch(
        parent={"path": str(parent.path), "hash": parent.hash, "identity": parent.identity, "step": at},
        step=at,
        state=state,
        metrics=parent.metrics,
        batches="batch_seed" not in differing,
    )
    return train(config, path, branch=origin, progress=progress, trust=trust)


def kept_state(run: Run, at: int) -> bytes:
    """The full state that the run kept at step `at`.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if at not in run.states:
        there = ", ".join(map(str, run.states)) or "none; train with --state-at STEP or --state-at memorized"
        raise ValueError(f"at={at}: no state was kept at this step; there are {there}")
    return run.state(at)


def with_optimizer_of(config: RunConfig, state: bytes, *, trust: bool = False) -> bytes:
    """The state with its optimizer's settings (not its moments) replaced by those of config."""
    content = safe_load.load(state, "the kept state")
    fresh = Trainer(config, trust=trust).optimizer.state_dict()["param_groups"]
    content["optimizer"]["param_groups"] = fresh
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()
