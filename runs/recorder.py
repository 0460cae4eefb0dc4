"""Recorder: the run that `train` would write, from anybody's own PyTorch loop."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..geometry.objective import canonical_name, parameter_table
from ..geometry.parameters import ParameterTable
from .evaluation import norms, second_moment
from .pace import COMMIT_BYTES
from .provenance import provenance as surroundings
from .schedule import is_due
from .writer import RunWriter


class Recorder:
    """Records a model while somebody else's loop trains it.

        with Recorder("out/mine", model, optimizer) as recorder:
            recorder.step(0)
            for step, batch in enumerate(batches, start=1):
                ...
                optimizer.step()
                recorder.step(step, train_loss=mean_loss(model))

    What is given at step s, and the snapshot taken then, describe the parameters after s updates. The
    snapshot holds the parameters with `requires_grad`, tied ones once, under names without what wrappers
    (DataParallel, torch.compile, ...) add; buffers are no part of it. Half precision is widened to
    float32, which is exact; float64 stays. `squared_norm` and its parts per parameter group are logged
    with every snapshot. Model, optimizer, gradients and random states stay as they are.

    Leaving the context marks the run as finished; an error that leaves it commits what there is, and the
    run can be continued. In a distributed job only the process of rank 0 writes; elsewhere every call
    does nothing.
    """

    def __init__(
        self,
        path: str | Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        snapshot_every: int = 1,
        second_moment_every: int = 0,
        resume: int | None = None,
        provenance: Mapping[str, Any] | None = None,
        commit_bytes: int = COMMIT_BYTES,
        lock: bool = True,
    ) -> None:
        """Begin or continue the run in folder `path`.

        Args:
            path: folder of the run, made if missing.
            model: what is trained; wrapped or not.
            optimizer: its settings are written down, and its second moments if asked for.
            snapshot_every: cadence in steps, dense at first as in `is_due`; 1 is every recorded step.
            second_moment_every: the same for Adam's second moments; 0 is never.
            resume: continue the run that is there after this step; what it holds of later steps is dropped.
            provenance: facts to keep with the run, as JSON; `train_total` and `test_total` are the numbers
                of samples behind `train_correct` and `test_correct`, and give the run its milestones.
            commit_bytes: commit at least after so many appended bytes.
            lock: False on a file system without locks.

        Raises:
            FileExistsError: there is a run already and `resume` is not given.
            BlockingIOError: another process writes a run there.
            ValueError: the model has nothing to record, or is not the one of the run to continue.
        """
        self._model, self._optimizer = model, optimizer
        self._every = {"snapshot": snapshot_every, "second_moment": second_moment_every}
        self._writer: RunWriter | None = None
        self.last_step = -1  # the last recorded one
        for name, every in self._every.items():
            if every < 0:
                raise ValueError(f"{name}_every={every} must be at least 0; 0 means never")
        if _rank() != 0:
            return
        self._table = _recordable(model)
        self._dtype = _dtype(_trainable(model))
        device = str(next(iter(_trainable(model))).device)
        self._facts = surroundings(device) | _optimizer_facts(model, optimizer) | dict(provenance or {})
        options: dict[str, Any] = {"provenance": self._facts, "commit_bytes": commit_bytes, "lock": lock}
        self._writer = _writer(Path(path), self._table, self._dtype, resume, options)
        self.last_step = -1 if self._writer.last_step is None else self._writer.last_step

    def step(
        self, step: int, metrics: Mapping[str, Any] | None = None, /, *, snapshot: bool = False, **more: Any
    ) -> None:
        """Log metrics of the parameters after `step` updates, and snapshot them when that is due.

        `snapshot=True` takes a snapshot that is not due, for instance of the last step.

        Metrics are numbers or tensors and arrays of one element; whole numbers stay whole numbers. The
        names of `train` are `train_loss`, `test_loss`, `train_correct`, `test_correct` (counts).

        Raises:
            ValueError: a step that does not rise, a metric that is no number or has a slash in its name,
                parameters that are not finite, or others than at the beginning; a count without a total.
            OSError: the disk does not take it; what was committed before is whole.
        """
        self.last_step = step = operator.index(step)
        if self._writer is None:
            return
        values = {name: _number(name, value) for name, value in {**(metrics or {}), **more}.items()}
        self._require_totals(values)
        moments = is_due(step, self._every["second_moment"])
        if snapshot or moments or is_due(step, self._every["snapshot"]):
            self._snapshot(self._writer, step, moments=moments)
        if values:
            self._writer.log(step, values)
        if self._writer.due():
            self._writer.commit()

    def commit(self) -> None:
        """Make all that was recorded permanent now, for instance beside a checkpoint of your own.

        Raises:
            OSError: the disk does not take it.
        """
        if self._writer is not None:
            self._writer.commit()

    def finish(self, reason: str = "recorded") -> None:
        """Commit, mark the run as finished, and free it.

        Raises:
            OSError: the disk does not take it.
        """
        if self._writer is not None:
            self._writer.finish(reason)
        self.close()

    def close(self) -> None:
        """Commit and free the run without marking it as finished; once closed, every call does nothing.

        Raises:
            OSError: the disk does not take it; the run is free nevertheless.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        elif self._writer is not None:
            self._writer.__exit__(kind, error, trace)
            self._writer = None

    def _require_totals(self, values: Mapping[str, Any]) -> None:
        for split in ("train", "test"):
            if f"{split}_correct" in values and f"{split}_total" not in self._facts:
                raise ValueError(
                    f"{split}_correct counts right answers, but of how many? Give Recorder "
                    f"provenance={{'{split}_total': ...}}"
                )

    def _snapshot(self, writer: RunWriter, step: int, *, moments: bool) -> None:
        if parameter_table(self._model) != self._table:
            raise ValueError(
                f"at step {step} the model has other trainable parameters than at the beginning; "
                "record each phase as a run of its own"
            )
        theta = _flat(_trainable(self._model), self._dtype)
        second = None
        if moments and self._optimizer is not None:
            second = second_moment(self._model, self._optimizer)
        moment = None if second is None else _flat([second], self._dtype).numpy()
        writer.append(step, theta.numpy(), second_moment=moment)
        writer.log(step, norms(theta, self._table))


def _writer(
    path: Path, table: ParameterTable, dtype: str, resume: int | None, options: dict[str, Any]
) -> RunWriter:
    if resume is None:
        if (path / "run.h5").exists():
            raise FileExistsError(
                f"{path} holds a run already; give resume=STEP to continue it after that step, "
                "or another folder"
            )
        return RunWriter.create(path, None, table, dtype=dtype, **options)
    return RunWriter.resume(path, None, table, at=resume, **options)


def _trainable(model: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]


def _recordable(model: nn.Module) -> ParameterTable:
    """The model's table, if there is something to record and all of it is in this process's memory.

    Raises:
        ValueError: no trainable parameters, or some that are complex, sharded or not there yet.
    """
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter) or parameter.is_meta:
            raise ValueError(f"model: {name} has no values yet; run one forward pass, then record")
        if hasattr(parameter, "full_tensor"):
            raise ValueError(
                f"model: {name} is sharded over processes; save full checkpoints and import them instead"
            )
        if not parameter.is_floating_point() and parameter.requires_grad:
            raise ValueError(f"model: {name} is {parameter.dtype}; only real parameters can be recorded")
    table = parameter_table(model)
    if not table.size:
        raise ValueError("model has no parameter with requires_grad=True; nothing to record")
    return table


def _dtype(tensors: Iterable[Tensor]) -> str:
    """float64 if any tensor needs it, else float32, which holds every shorter format exactly."""
    return "float64" if any(tensor.dtype == torch.float64 for tensor in tensors) else "float32"


def _flat(tensors: Iterable[Tensor], dtype: str) -> Tensor:
    wanted = getattr(torch, dtype)
    return torch.cat([tensor.reshape(-1).to("cpu", wanted) for tensor in tensors])


def _number(name: str, value: Any) -> int | float:
    """One number of a metric, still an int if it was one.

    Raises:
        ValueError: it is no number, or more than one.
    """
    if isinstance(value, Tensor | np.ndarray | np.generic):
        if (value.numel() if isinstance(value, Tensor) else value.size) != 1:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; give one number, e.g. its mean")
        value = value.item()
    if not isinstance(value, bool | int | float):
        raise ValueError(f"{name}={value!r} is no number")
    return int(value) if isinstance(value, bool) else value


def _optimizer_facts(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """The optimizer's name and, per group, its plain settings and the parameters that they hold for."""
    if optimizer is None:
        return {}
    names = {id(parameter): canonical_name(name) for name, parameter in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        plain = {k: v for k, v in group.items() if isinstance(v, bool | int | float | str | tuple | None)}
        members = [names.get(id(parameter), "?") for parameter in group["params"]]
        groups.append({**plain, "parameters": members})
    return {"optimizer": {"name": type(optimizer).__name__, "groups": groups}}


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
