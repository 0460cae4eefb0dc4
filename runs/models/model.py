"""Models by name, initialized from their own random stream."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ...geometry.parameters import group_of
from ..config import RunConfig
from ..named import load, options
from ..streams import stream_seed
from ..tasks.task import Task
from .mlp import EmbeddingMLP, OneHotMLP, TwoLayer
from .transformer import Transformer


def make_model(config: RunConfig, task: Task, *, trust: bool = False) -> nn.Module:
    """The model that config describes for task, initialized, on config.device in config.dtype.

    Initial values are drawn on the CPU in float32 from stream `init` of config.init_seed and then cast, so
    that they agree over devices and dtypes; the global random state is left as it was. Weights and biases
    are multiplied by config.init_scale, the embedding group by config.embedding_init_scale, norms by one.

    `feedforward` is the number of hidden units of every model; `layers`, `width` and `heads` count where a
    model has them. config.model may be `module:function` of your own, imported only if `trust`:
    `function(config, task, **model_options)` returns an nn.Module that maps inputs (n, ...) to logits
    (n, num_classes), or (n, heads, num_classes) for a task with heads.

    Raises:
        ValueError: an unknown option, a model that can't take the task's inputs, or a module of your own
            that breaks the contract.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(config.init_seed, "init"))
        model = _user_model(config, task, trust) if ":" in config.model else _built(config, task)
    _scale(model, config)
    return model.to(device=config.device, dtype=getattr(torch, config.dtype))


def _built(config: RunConfig, task: Task) -> nn.Module:
    kinds: dict[str, Callable[..., nn.Module]] = {
        "transformer": Transformer,
        "embedding_mlp": EmbeddingMLP,
        "onehot_mlp": OneHotMLP,
        "two_layer": TwoLayer,
    }
    kind = kinds[config.model]
    if not task.num_tokens and kind in (Transformer, EmbeddingMLP):
        raise ValueError(
            f"model={config.model!r} needs token inputs; use onehot_mlp or two_layer for features"
        )
    sizes = {
        "num_tokens": task.num_tokens,
        "positions": task.inputs.shape[1],
        "num_classes": task.num_classes,
        "head_names": task.heads,
        "feedforward": config.feedforward,
    }
    if kind is not TwoLayer:
        sizes["layers"] = config.layers
    if kind in (Transformer, EmbeddingMLP):
        sizes["width"] = config.width
    if kind is Transformer:
        sizes["heads"] = config.heads
    return kind(**sizes, **options(kind, config.model_options, field="model_options"))


def _user_model(config: RunConfig, task: Task, trust: bool) -> nn.Module:
    """The user's module in float32 on the CPU, if it keeps the contract."""
    source = f"model={config.model!r}"
    model = load(config.model, field="model", trust=trust)(config, task, **config.model_options)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{source} returned {type(model).__name__}; return an nn.Module")
    model = model.to(device="cpu", dtype=torch.float32)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"{source} has no trainable parameter")
    probe = task.inputs[:2].cpu()
    with torch.no_grad():
        outputs = model(probe.float() if probe.is_floating_point() else probe)
    wanted = (len(probe), *((len(task.heads),) if task.heads else ()), task.num_classes)
    if not isinstance(outputs, torch.Tensor) or tuple(outputs.shape) != wanted:
        found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise ValueError(f"{source} maps {len(probe)} samples to {found}; this task needs logits {wanted}")
    if not bool(torch.isfinite(outputs).all()):
        raise ValueError(f"{source} gives NaN or infinite logits at its initialization")
    return model


def _scale(model: nn.Module, config: RunConfig) -> None:
    factors = {"embedding": config.embedding_init_scale, "norm": 1.0}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(factors.get(group_of(name), config.init_scale))
