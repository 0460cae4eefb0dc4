"""The user's own loss for runs that no configuration describes: `--objective module:function`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from math import isclose, isfinite
from typing import Any

import torch
from torch import Tensor

from ..geometry.objective import Objective
from ..geometry.parameters import ParameterTable
from ..runs.named import load
from ..runs.store import Run


def load_objective(name: str, run: Run) -> Objective:
    """The objective that `module:function` returns, its coordinates in the order of the run's.

    The module is imported from the current folder or the Python path. The function takes nothing, or the
    Run, and returns an Objective; with a model, data and a criterion that is one line:

        def objective():
            return from_module(model.eval(), inputs, targets, torch.nn.functional.cross_entropy)

    The model's values don't matter, since snapshots take their place; its trainable parameters must be
    the recorded ones. `criterion(outputs (n, ...), targets (n, ...))` is the mean over its n samples.

    Raises:
        ValueError: no such module or function, it returns no Objective, or one of other parameters; or it
            is no mean over samples at the run's first or middle snapshot (see `require_mean`).
    """
    function = load(name, field="objective", trust=True)
    with torch.random.fork_rng(devices=[]):  # a model that is made draws numbers
        found: Any = function(run) if _takes_run(function) else function()
    if not isinstance(found, Objective):
        raise ValueError(f"objective={name!r} returned {type(found).__name__}; return an Objective")
    objective = aligned(found, run.table)
    with torch.random.fork_rng(devices=[]):
        for theta in run.rows((0, len(run) // 2)):
            require_mean(objective, torch.from_numpy(theta).to(objective.device), source=name)
    return objective


def require_mean(objective: Objective, theta: Tensor, *, source: str) -> None:
    """Nothing, if the loss at theta (P,) is one finite number, and a mean over samples.

    It is taken of up to 32 samples twice, and of their two halves: a model in training mode draws dropout
    masks anew and normalizes each batch by itself, a sum over samples grows with the batch; either would
    make numbers that depend on chunks and chance. Costs three passes over these samples.

    Raises:
        ValueError: what it is instead, and what to do.
    """
    count = min(32, objective.num_samples)
    indices, half = torch.arange(count, device=objective.device), count // 2
    where = f"objective={source!r}: the loss of its first {count} samples"
    try:
        with torch.no_grad():
            whole, again = (objective.at(theta, indices) for _ in range(2))
            parts = [objective.at(theta, part) for part in (indices[:half], indices[half:]) if len(part)]
    except Exception as error:  # whatever the user's own code raises
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{where} can't be taken: {type(error).__name__}: {reason}") from error
    if whole.ndim or not isfinite(whole):
        found = f"shape {tuple(whole.shape)}" if whole.ndim else f"value {float(whole)}"
        raise ValueError(f"{where} has {found}; return one finite number, their mean")
    if not isclose(whole, again, rel_tol=1e-4, abs_tol=1e-6):
        raise ValueError(f"{where} is random: {whole:.6g}, then {again:.6g}; call the model's eval()")
    mean = (half * float(parts[0]) + (count - half) * float(parts[-1])) / count
    if not isclose(whole, mean, rel_tol=1e-4, abs_tol=1e-6):
        raise ValueError(
            f"{where} is {whole:.6g}, but the mean over its halves {mean:.6g}; use a criterion that averages "
            "over its samples, and call the model's eval() (batch normalization in training mode mixes them)"
        )


def aligned(objective: Objective, table: ParameterTable) -> Objective:
    """The objective as a function of theta (P,) in the order of `table`, as a run's may be another one.

    A tied tensor may go by any of its names. An objective without a table is taken as it is.

    Raises:
        ValueError: the two have different tensors.
    """
    own = objective.table
    if own is None or (own.names, own.shapes) == (table.names, table.shapes):
        return replace(objective, table=table)
    order = torch.cat([torch.arange(start, start + size) for start, size in _spans(own, table)])
    outputs = None if objective.outputs is None else _reordered(objective.outputs, order)
    sample_loss = _reordered(objective.sample_loss, order)
    return replace(objective, sample_loss=sample_loss, outputs=outputs, table=table)


def _reordered(
    function: Callable[[Tensor, Tensor], Tensor], order: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda theta, indices: function(theta[order], indices)


def _spans(own: ParameterTable, table: ParameterTable) -> list[tuple[int, int]]:
    """Where each tensor of `own` lies in `table`."""
    spans = zip(table.starts, table.sizes, table.shapes, strict=True)
    there = dict(zip(table.names, spans, strict=True))
    found = []
    for name, shape in zip(own.names, own.shapes, strict=True):
        names = (name, *(alias for alias, owner in own.aliases.items() if owner == name))
        used = next((n for n in names if n in there), None)
        if used is None:
            raise ValueError(
                f"objective: its parameter {name} is not in the run, which has {', '.join(table.names)}; "
                "give the model that was recorded"
            )
        start, size, stored = there.pop(used)
        if stored != shape:
            raise ValueError(f"objective: its {name} has shape {shape}, in the run it has {stored}")
        found.append((start, size))
    if there:
        raise ValueError(
            f"objective: it lacks {', '.join(there)}, which the run has; give the model that was recorded, "
            "or import without these (--leave-out)"
        )
    return found


def _takes_run(function: Any) -> bool:
    needed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind in needed and p.default is p.empty for p in parameters)
