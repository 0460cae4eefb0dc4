"""A folder of checkpoints becomes a run: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..geometry.parameters import ParameterTable
from .checkpoint_files import fetch, find, read
from .checkpoint_steps import Gap, Source, gaps, natural, steps_of
from .checkpoint_tensors import Found, dtypes, look, parameters, table_of
from .excursions import Excursion, Excursions
from .store import Run, RunWriter

Progress = Callable[..., Iterable[Any]]
# Buffers by the names that torch and Hugging Face give them; what is no floating point is one as well.
BUFFERS = ("*running_mean", "*running_var", "*inv_freq", "*masked_bias")
_LOG_NAMES = {"loss": "train_loss", "eval_loss": "test_loss"}


@dataclass(frozen=True)
class Imported:
    """What became of a folder of checkpoints.

    `duplicates` are groups of steps whose parameters are equal, byte for byte; `gaps` where a regular
    schedule is interrupted; `excursions` checkpoints far from both neighbors, which are near each other;
    `constant` parameters that are the same in every checkpoint, as frozen ones and buffers are.
    """

    run: Path
    checkpoints: int
    first_step: int
    last_step: int
    steps_from: str
    parameters: int
    dtype: str
    stored_dtypes: tuple[str, ...]  # wider than dtype never; narrower ones were widened, exactly
    metrics: tuple[str, ...]
    duplicates: tuple[tuple[int, ...], ...]
    gaps: tuple[Gap, ...]
    excursions: tuple[Excursion, ...]
    constant: tuple[str, ...]
    left_out: tuple[str, ...]  # tensors that are no parameters, or asked to be left out
    not_read: tuple[str, ...]  # files beside the checkpoints, further sets of tensors inside, repetitions


def import_checkpoints(
    directory: str | Path,
    path: str | Path,
    *,
    key: str | None = None,
    only: str = "*",
    leave_out: Sequence[str] = (),
    buffers: bool = False,
    steps_from: Source = "auto",
    totals: Mapping[str, int] | None = None,
    progress: Progress = lambda iterable, **_: iterable,
) -> Imported:
    """Make the run at `path` from the checkpoints in `directory`; read them with torch's `weights_only`.

    Checkpoints are files (.pt, .pth, .ckpt, .bin of torch.save, .safetensors) or folders with one model
    each (`checkpoint-500`, `step1000`; sharded or not). Parameters keep their order and names, without
    what wrappers add. float16 and bfloat16 are widened to float32, exactly; with any float64 all are. The
    numbers saved beside the parameters become metrics, and so does the log in a `trainer_state.json`
    (its `loss` as train_loss, its `eval_loss` as test_loss). Reads everything once, holds three snapshots.

    Args:
        directory: folder with the checkpoints directly in it.
        path: folder of the run; nothing is left there if anything goes wrong.
        key: entry of each file that holds the parameters, dotted where nested; looked for by default.
        only: shell-style pattern of checkpoint names.
        leave_out: shell-style patterns of tensor names that are no parameters.
        buffers: keep floating-point buffers (running means and the like) as if they were parameters.
        steps_from: where the step is found; see `steps_of`.
        totals: train_total and test_total, the numbers of samples behind `train_correct`, `test_correct`.
        progress: wraps the iterable of checkpoints, for a progress bar.

    Raises:
        ValueError: no checkpoints, one that can't be read or is refused, no step, other tensors or shapes
            than in the first, different checkpoints of one step, entries that are not finite.
        FileExistsError: there is a run at `path`.
        OSError: the disk does not take it.
    """
    directory, path = Path(directory), Path(path)
    chosen = sorted((p for p in find(directory) if fnmatchcase(p.name, only)), key=lambda p: natural(p.name))
    if not chosen:
        raise ValueError(f"directory={str(directory)!r} holds no checkpoint whose name is like {only!r}")
    omit = (*leave_out, *(() if buffers else BUFFERS))
    looked = progress(chosen, description="look at checkpoints", total=len(chosen))
    found = [look(p, key, omit) for p in looked]
    steps, source = steps_of([f.name for f in found], [f.numbers for f in found], source=steps_from)
    ordered = sorted(zip(steps, found, strict=True), key=lambda pair: pair[0])
    table, dtype = table_of(ordered)
    unread = sorted(p.name for p in directory.iterdir() if p not in chosen and p.is_file())
    plan = _Plan(ordered, table, dtype, key, omit)
    provenance: dict[str, Any] = {
        "imported_from": str(directory.absolute()),
        "grokscope": version("grokscope"),
    }
    provenance |= {"checkpoints": {f.name: step for step, f in ordered}, **_totals(ordered, totals)}
    repeated, excursions = _write(plan, path, provenance, progress)
    run = Run.open(path)
    return Imported(
        run=path,
        checkpoints=len(run),
        first_step=int(run.steps[0]),
        last_step=int(run.steps[-1]),
        steps_from=source,
        parameters=table.size,
        dtype=dtype,
        stored_dtypes=dtypes(ordered),
        metrics=tuple(sorted(run.metrics)),
        duplicates=_duplicates(run),
        gaps=gaps(run.steps.tolist()),
        excursions=excursions.found(),
        constant=excursions.constant(),
        left_out=tuple(sorted({name for _, f in ordered for name in f.left_out})),
        not_read=(*unread, *sorted({other for _, f in ordered for other in f.others}), *repeated),
    )


class _Plan(NamedTuple):
    ordered: Sequence[tuple[int, Found]]
    table: ParameterTable
    dtype: str
    key: str | None
    omit: Sequence[str]


def _totals(ordered: Sequence[tuple[int, Found]], given: Mapping[str, int] | None) -> dict[str, int]:
    """train_total and test_total, given or found inside, which counts of right answers need.

    Raises:
        ValueError: there are counts but no total.
    """
    totals = dict(given or {})
    for split in ("train", "test"):
        count, total = f"{split}_correct", f"{split}_total"
        inside = [int(f.numbers[total]) for _, f in ordered if total in f.numbers]
        if inside:
            totals.setdefault(total, inside[-1])
        if total not in totals and any(count in f.numbers for _, f in ordered):
            raise ValueError(f"{count} is saved in the checkpoints, but not of how many; give {total}")
    return totals


def _write(
    plan: _Plan, path: Path, provenance: Mapping[str, Any], progress: Progress
) -> tuple[list[str], Excursions]:
    """Write the run with one commit at the end; names of repeated checkpoints, and what stands out."""
    fetch(plan.ordered[0][1].path)
    writer = RunWriter.create(path, None, plan.table, dtype=plan.dtype, provenance=provenance)
    seen, repeated, last = Excursions(plan.table), [], -1
    rows = np.empty((2, plan.table.size), plan.dtype)  # used in turn: fresh memory costs more than reading
    try:
        shown = progress(plan.ordered, description="import", total=len(plan.ordered))
        for k, (step, found) in enumerate(shown):
            theta = _row(plan, found, rows[seen.count % 2])
            fetch(plan.ordered[min(k + 1, len(plan.ordered) - 1)][1].path)  # while this one is written
            if step == last:
                _require_same(plan, step, found, theta, seen.latest)
                repeated.append(found.name)
                continue
            writer.append(step, theta, allow_nonfinite=True)  # looked at by _row
            seen.add(step, theta)
            last = step
        for name, step, value in _metrics(plan.ordered):
            writer.log(step, {name: value})
        writer.finish("imported")
    except BaseException:
        writer.discard()
        raise
    writer.close()
    return repeated, seen


def _row(plan: _Plan, found: Found, row: NDArray[Any]) -> NDArray[Any]:
    """The parameters of one checkpoint, in the given array (P,).

    Raises:
        ValueError: it changed since it was looked at, or has entries that are not finite.
    """
    parts = parameters(read(found.path, found.name, key=plan.key), plan.omit)
    spans = zip(plan.table.names, plan.table.starts, plan.table.sizes, strict=True)
    for name, start, size in spans:
        if name not in parts or parts[name].shape != found.signature[name][0]:
            raise ValueError(f"{found.name} changed while it was imported")
        view = row[start : start + size]
        torch.from_numpy(view).copy_(parts[name].load().detach().reshape(-1))
        with np.errstate(all="ignore"):
            if not np.isfinite(view.sum()) and not np.isfinite(view).all():
                raise ValueError(f"{found.name}: {name} has entries that are NaN or infinite; leave it out")
    return row


def _require_same(
    plan: _Plan, step: int, found: Found, theta: NDArray[Any], latest: NDArray[Any] | None
) -> None:
    if latest is None or not np.array_equal(theta, latest):
        names = [other.name for s, other in plan.ordered if s == step]
        raise ValueError(f"{' and '.join(names)} are both of step {step} and differ; choose with only=")


def _metrics(ordered: Sequence[tuple[int, Found]]) -> Iterator[tuple[str, int, int | float]]:
    """(name, step, value), rising per name: numbers inside, and the log of the last one that has any."""
    log = next((f.log for _, f in reversed(ordered) if f.log), ())
    series: dict[str, dict[int, int | float]] = {}
    for step, f in ordered:
        for name, value in f.numbers.items():
            series.setdefault(name, {})[step] = value
    logged: dict[str, dict[int, int | float]] = {}
    for entry in log:
        step = entry.get("step")
        numbers = {
            k: v for k, v in entry.items() if isinstance(v, int | float) and k not in ("step", "epoch")
        }
        for name, value in numbers.items() if isinstance(step, int) and step >= 0 else ():
            logged.setdefault(_LOG_NAMES.get(name, name).replace("/", "."), {})[step] = value
    for name, values in {**series, **logged}.items():
        if name not in ("step", "global_step", "train_total", "test_total"):
            yield from ((name, step, values[step]) for step in sorted(values))


def _duplicates(run: Run) -> tuple[tuple[int, ...], ...]:
    groups: dict[str, list[int]] = {}
    for step, digest in zip(run.steps.tolist(), run.hashes, strict=True):
        groups.setdefault(digest, []).append(step)
    return tuple(tuple(steps) for steps in groups.values() if len(steps) > 1)
