"""From a run back to its objective: the only bridge from a run to geometry."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..geometry.objective import Objective, from_module, parameter_table
from .config import RunConfig
from .losses import make_criterion
from .models.model import make_model
from .store import Run
from .tasks.task import make_task


def rebuild(
    run: Run,
    split: Literal["train", "test", "all"] = "train",
    *,
    dtype: torch.dtype | None = None,
    trust: bool = False,
    chunk_size: int = 16384,
) -> Objective:
    """The mean loss that the run minimized, over its training samples (or test, or all), by theta.

    L(θ) = (1/N) Σ_i ℓ(model_θ(x_i), y_i) without any weight-decay term: AdamW's decay is decoupled and no
    part of a loss. The model is in evaluation mode. `dtype` computes in another precision than the run's.
    `trust` imports a `module:function` task or model; only where the user named it.

    Raises:
        ValueError: the run has no configuration (it was recorded or imported: give an objective of your
            own), or today's model has other parameters than the recorded ones.
    """
    if run.config is None:
        raise ValueError(
            f"run={str(run.path)!r} has no configuration to rebuild its loss from; give an objective"
        )
    config: RunConfig = run.config
    task = make_task(config, trust=trust)
    model = make_model(config, task, trust=trust).eval()
    if parameter_table(model) != run.table:
        raise ValueError(
            f"run={str(run.path)!r} was recorded with other parameters than its configuration gives now"
        )
    dtype = dtype or getattr(torch, run.dtype)
    samples = torch.arange(len(task.inputs)) if split == "all" else getattr(task, split)
    inputs, targets = _as(task.inputs[samples], dtype), task.targets[samples]
    criterion = make_criterion(config, task)
    return from_module(model.to(dtype), inputs, targets, criterion, chunk_size=chunk_size)


def _as(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    return inputs.to(dtype) if inputs.is_floating_point() else inputs
