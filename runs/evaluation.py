"""The metrics of a run: cheap norms at one cadence, full evaluation at another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..geometry.parameters import ParameterTable
from .losses import Criterion, correct, correct_per_head

Metrics = dict[str, int | float]


def norms(theta: Tensor, table: ParameterTable) -> Metrics:
    """V = ‖θ‖² as `squared_norm` and its part per parameter group, summed in float64."""
    squares = theta.double().square()
    parts = dict.fromkeys(table.groups(), 0.0)
    for group, names in table.groups().items():
        parts[group] = sum(float(squares[span].sum()) for span in _spans(table, names))
    return {"squared_norm": float(squares.sum())} | {f"squared_norm.{g}": value for g, value in parts.items()}


def evaluate(
    model: nn.Module,
    criterion: Criterion,
    splits: Mapping[str, tuple[Tensor, Tensor]],
    *,
    heads: tuple[str, ...] = (),
    chunk_size: int = 16384,
) -> Metrics:
    """Mean loss and count of right answers per split, and the collapsed fraction of the training split.

    `splits` maps "train" and "test" to (inputs, targets). An answer is right when every head is; the count
    of each of several `heads` is `<split>_correct.<head>`. `collapsed_fraction` is the share of training
    samples whose softmax is exactly one at its largest logit in the model's own precision: their gradient
    is zero (Prieto et al. 2025, arXiv 2501.04697). One forward pass over all samples.
    """
    found: Metrics = {}
    for split, (inputs, targets) in splits.items():
        parts = zip(torch.split(inputs, chunk_size), torch.split(targets, chunk_size), strict=True)
        with torch.no_grad():
            sums = [_sums(model(part), wanted, criterion, len(heads)) for part, wanted in parts]
        loss, collapsed, right, *each = (sum(column) for column in zip(*sums, strict=True))
        found |= {f"{split}_loss": loss / len(inputs), f"{split}_correct": right}
        found |= {f"{split}_correct.{head}": count for head, count in zip(heads, each, strict=True)}
        if split == "train":
            found["collapsed_fraction"] = collapsed / len(inputs)
    return found


def root_second_moments(optimizer: torch.optim.Optimizer) -> Metrics:
    """Mean, median and maximum over coordinates of Adam's √v̂, bias-corrected; empty for other optimizers."""
    roots = [_root(state, group["betas"][1]) for group, state in _adam_states(optimizer)]
    if not roots:
        return {}
    everything = torch.cat(roots)
    values = {"mean": everything.mean(), "median": everything.median(), "max": everything.max()}
    return {f"root_second_moment.{name}": float(value) for name, value in values.items()}


def second_moment(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor | None:
    """Adam's second moment v (P,) in the order of theta, not bias-corrected; None before the first step."""
    states = [optimizer.state.get(p, {}) for p in model.parameters() if p.requires_grad]
    if not states or any("exp_avg_sq" not in state for state in states):
        return None
    return torch.cat([state["exp_avg_sq"].reshape(-1) for state in states])


def _spans(table: ParameterTable, names: tuple[str, ...]) -> list[slice]:
    where = dict(zip(table.names, zip(table.starts, table.sizes, strict=True), strict=True))
    return [slice(where[name][0], sum(where[name])) for name in names]


def _adam_states(optimizer: torch.optim.Optimizer) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    pairs = [(group, optimizer.state.get(p, {})) for group in optimizer.param_groups for p in group["params"]]
    return [(group, state) for group, state in pairs if "exp_avg_sq" in state]


def _root(state: dict[str, Any], beta2: float) -> Tensor:
    second: Tensor = state["exp_avg_sq"]
    bias: float = 1 - beta2 ** float(state["step"])
    return (second.reshape(-1) / bias).sqrt()


def _sums(outputs: Tensor, targets: Tensor, criterion: Criterion, heads: int) -> tuple[float | int, ...]:
    """Loss, collapsed samples, right answers and right answers per head, summed over a chunk."""
    each = correct_per_head(outputs, targets) if heads else ()
    loss = float(criterion(outputs, targets)) * len(targets)
    return (loss, _collapsed(outputs), correct(outputs, targets), *each)


def _collapsed(outputs: Tensor) -> int:
    exact = torch.softmax(outputs, dim=-1).amax(dim=-1) == 1
    return int((exact.all(dim=1) if exact.ndim > 1 else exact).sum())
