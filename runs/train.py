"""train(config, path): one loop, read top to bottom."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import RunConfig
from .interventions import disturbance
from .pace import COMMIT_BYTES
from .provenance import drift, provenance
from .store import Run, RunWriter, Series
from .trainer import Diverged, Trainer

__all__ = ["Branch", "Diverged", "train"]

Progress = Callable[..., Iterable[int]]


@dataclass(frozen=True)
class Branch:
    """Where a branched run begins: a kept full state of its parent, and the parent's metrics until then.

    `batches` is whether the parent's minibatch stream goes on; else `batch_seed` starts a new one.
    """

    parent: Mapping[str, Any]
    step: int
    state: bytes
    metrics: Mapping[str, Series]
    batches: bool = True


def train(
    config: RunConfig,
    path: str | Path,
    *,
    progress: Progress | None = None,
    allow_drift: bool = False,
    trust: bool = False,
    branch: Branch | None = None,
    commit_bytes: int = COMMIT_BYTES,
) -> Run:
    """The run of `config`, recorded at `path`; an unfinished run there is resumed, a finished one returned.

    θ_{s+1} follows from θ_s by one optimizer step on one minibatch; metrics and snapshots at step s
    describe θ_s. `gradient_norm` (before clipping) and `update_norm` = ‖θ_s − θ_{s−1}‖ at step s belong
    to the step that led to θ_s. A resumed run equals an undisturbed one bit for bit on the same machine
    type, torch version, device and thread count; where these differ it is refused unless `allow_drift`.
    Training stops after `config.steps` updates, or `stop_after_generalization` steps after a confirmed
    generalization, or at memorization if generalization is forecast after `stop_if_predicted_after`; the
    reason is kept. One gradient evaluation per step, and a full evaluation per `evaluate_every` steps.

    Args:
        config: what to compute.
        path: folder of the run; created if missing.
        progress: wraps the iterable of steps, for a progress bar.
        allow_drift: resume under another torch, device or thread count.
        trust: import `module:function` tasks and models; only where the user named them.
        branch: begin from a parent's state instead of a new initialization.
        commit_bytes: commit at least after so many appended bytes; no part of the run's identity.

    Raises:
        ValueError: another configuration lies at path, or the machine differs from the stored one.
        Diverged: loss or parameters became infinite or NaN; the run so far is readable.
        KeyboardInterrupt: after SIGINT or SIGTERM, once everything is committed.
    """
    path, trainer = Path(path), Trainer(config, trust=trust)
    exists = (path / "run.h5").exists()
    opened = (
        _resumed(path, trainer, branch, allow_drift, commit_bytes)
        if exists
        else _created(path, trainer, branch, commit_bytes)
    )
    with opened as writer, _stop_requested() as stop:
        if not writer.finished:
            _loop(trainer, writer, stop, progress or _plain)
    return Run.open(path)


def _loop(trainer: Trainer, writer: RunWriter, stop: threading.Event, progress: Progress) -> None:
    for _ in progress(range(trainer.step + 1, trainer.config.steps + 1)):
        if trainer.done():
            break
        try:
            trainer.update()
            _record(trainer, writer)
        except Diverged as error:
            writer.finish(f"diverged: {error}")
            raise
        if stop.is_set() or writer.due():
            writer.commit(trainer.state(), step=trainer.step)
        if stop.is_set():
            raise KeyboardInterrupt
    writer.finish(_reason(trainer), resume=trainer.state(), step=trainer.step)


def _reason(trainer: Trainer) -> str:
    """Why the loop ended; a stop for a prediction says what was predicted, and a run that went on too."""
    decision = trainer.decision
    if decision is not None and decision.stop:
        return f"predicted: {decision.reason}"
    reason = "generalized" if trainer.done() else "steps"
    return reason if decision is None else f"{reason}; not stopped before: {decision.reason}"


def _created(path: Path, trainer: Trainer, branch: Branch | None, commit_bytes: int) -> RunWriter:
    here = provenance(trainer.config.device) | trainer.totals
    if branch is not None:
        here["parent"] = dict(branch.parent)
    here |= _intervene(trainer, here)
    writer = RunWriter.create(
        path,
        trainer.config,
        trainer.table,
        dtype=trainer.config.dtype,
        provenance=here,
        commit_bytes=commit_bytes,
    )
    with _freed_on_error(writer):
        _begin(trainer, writer, branch)
    return writer


def _begin(trainer: Trainer, writer: RunWriter, branch: Branch | None) -> None:
    """Record the first step, of a branch what its parent logged before it."""
    if branch is not None:
        trainer.load(branch.state, _evaluations(branch.metrics, branch.step - 1), batches=branch.batches)
        for name, series in branch.metrics.items():
            for step, value in zip(series.step, series.value, strict=True):
                if step < branch.step:
                    writer.log(int(step), {name: value.item()})
    _record(trainer, writer)


def _record(trainer: Trainer, writer: RunWriter) -> None:
    trainer.record(writer)
    if trainer.keep_due():
        writer.keep_state(trainer.step, trainer.state())


def _resumed(
    path: Path, trainer: Trainer, branch: Branch | None, allow_drift: bool, commit_bytes: int
) -> RunWriter:
    stored = Run.open(path).provenance
    here = provenance(trainer.config.device) | trainer.totals
    changed = drift(stored, here)
    if changed and not allow_drift:
        raise ValueError(
            f"run={str(path)!r} would not continue bit for bit: {'; '.join(changed)}; "
            "restore that, or accept it with --allow-drift"
        )
    if "parent" in stored:
        here["parent"] = stored["parent"]
    here |= _intervene(trainer, here)
    if here.get("source") != stored.get("source"):
        raise ValueError(
            f"run={str(path)!r}: the source of its intervention changed; restore it, or train anew"
        )
    writer = RunWriter.resume(path, trainer.config, trainer.table, provenance=here, commit_bytes=commit_bytes)
    with _freed_on_error(writer):
        state = writer.resume_state()
        if state is None:  # interrupted before its first state was saved: the store starts it anew
            if "parent" in stored and branch is None:
                raise ValueError(f"run={str(path)!r} was stopped before its first state; branch it again")
            _begin(trainer, writer, branch)
        else:
            trainer.load(state, _evaluations(writer.metrics, writer.resume_step))
            trainer.consider(writer)
    return writer


def _intervene(trainer: Trainer, here: Mapping[str, Any]) -> dict[str, Any]:
    """Prepare the intervention of the configuration; its source goes into the provenance."""
    trainer.disturbance, source = disturbance(trainer.config, trainer.table, parent=here.get("parent"))
    return {"source": source} if source else {}


@contextmanager
def _freed_on_error(writer: RunWriter) -> Iterator[None]:
    """A run whose trainer can't begin is left as it was, and free for another one."""
    try:
        yield
    except BaseException:
        writer.discard()
        raise


def _evaluations(metrics: Mapping[str, Series], until: int | None) -> list[tuple[int, int, int]]:
    """(step, train_correct, test_correct) of every evaluation up to step `until`."""
    if not {"train_correct", "test_correct"} <= set(metrics):
        raise ValueError("the run has no train_correct and test_correct to continue its milestones from")
    train, test = metrics["train_correct"], metrics["test_correct"]
    rows = zip(train.step.tolist(), train.value.tolist(), test.value.tolist(), strict=True)
    return [row for row in rows if until is None or row[0] <= until]


def _plain(steps: Iterable[int]) -> Iterable[int]:
    return steps


@contextmanager
def _stop_requested() -> Iterator[threading.Event]:
    """An event that SIGINT or SIGTERM sets, so that a step is never torn; a second one interrupts at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
