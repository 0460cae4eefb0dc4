"""Models by name, initialized from their own random stream."""

from __future__ import annotations

import torch
from torch import nn

from ...geometry.parameters import group_of
from ..config import RunConfig
from ..streams import stream_seed
from ..tasks.task import Task
from .transformer import Transformer


def make_model(config: RunConfig, task: Task, *, trust: bool = False) -> nn.Module:
    """The model that config describes for task, initialized, on config.device in config.dtype.

    Initial values are drawn on the CPU in float32 from stream `init` of config.init_seed and then cast, so
    that they agree over devices and dtypes; the global random state is left as it was. Weights and biases
    are multiplied by config.init_scale, embeddings by config.embedding_init_scale; norms are not scaled.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(config.init_seed, "init"))
        model = _build(config, task)
    _scale(model, config)
    return model.to(device=config.device, dtype=getattr(torch, config.dtype))


def _build(config: RunConfig, task: Task) -> nn.Module:
    return Transformer(
        num_tokens=task.num_tokens,
        positions=task.inputs.shape[1],
        num_classes=task.num_classes,
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        feedforward=config.feedforward,
        **config.model_options,
    )


def _scale(model: nn.Module, config: RunConfig) -> None:
    factors = {"embedding": config.embedding_init_scale, "norm": 1.0}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter *= factors.get(group_of(name), config.init_scale)
