"""How long runs will take, from a few steps of each kind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ..runs.processes import one_thread
from ..runs.store import Run
from ..runs.sweep import Entry

_SHORT, _LONG = 20, 120  # steps of two pilots
_ENOUGH = 1.0  # seconds that the longer one must take
_FREE = {"seed", "init_seed", "split_seed", "batch_seed", "steps"}  # change no step's cost


def expected_seconds(runs: Sequence[Entry], folder: str | Path, *, jobs: int = 1) -> float:
    """At most how long it takes to train what is unfinished of `runs` in `folder`, `jobs` at a time.

    Σ steps × seconds a step, the latter measured once for all runs that differ only in seeds, steps and
    fractional numbers. Runs that stop by themselves take less. Costs a few seconds for each kind.
    """
    kinds: dict[str, list[Entry]] = {}
    waiting = [run for run in runs if not _finished(Path(folder) / run.name)]
    for run in waiting:
        kinds.setdefault(_kind(run), []).append(run)
    total = sum(step_seconds(kind[0]) * sum(run.config.steps for run in kind) for kind in kinds.values())
    return total / min(jobs, max(len(waiting), 1))


def step_seconds(run: Entry) -> float:
    """Seconds of one training step with all that comes along with it, on one thread.

    From the difference of two pilots, which leaves the start out; the longer one takes a second at least.
    """
    _pilot(run, _SHORT)  # imports and warms up
    start, steps = _pilot(run, _SHORT), _LONG
    while (spent := _pilot(run, steps) - start) < _ENOUGH and 4 * steps <= run.config.steps:
        steps *= 4
    return max(0.0, spent) / (steps - _SHORT)


def _pilot(run: Entry, steps: int) -> float:
    from ..runs.train import train

    with one_thread(), TemporaryDirectory() as folder:
        started = time.monotonic()
        train(replace(run.config, steps=steps), Path(folder) / "pilot", trust=True)
        return time.monotonic() - started


def _finished(path: Path) -> bool:
    return (path / "run.h5").exists() and Run.open(path).finished


def _kind(run: Entry) -> str:
    settings = asdict(run.config).items()
    fixed = {k: v for k, v in settings if k not in _FREE and not isinstance(v, float)}
    return repr((fixed, run.config.train_fraction))
