"""Many runs: a grid or a list of configurations, one folder each, on this machine or a cluster."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .cluster import connected, unordered
from .config import RunConfig, from_mapping
from .milestones import milestones
from .processes import parallel

Progress = Callable[..., Iterable[Any]]
_PARTS = ("base", "grid", "runs", "seeds", "first_seed")
_SEEDS = ("init_seed", "split_seed", "batch_seed")


class Entry(NamedTuple):
    """One run of a sweep: its folder's name and what to compute."""

    name: str
    config: RunConfig


class Outcome(NamedTuple):
    """What became of one run: computed now, found finished, or failed with a message."""

    name: str
    status: Literal["done", "skipped", "failed"]
    message: str = ""


def read_spec(path: str | Path) -> tuple[Entry, ...]:
    """The runs of a TOML file.

    `[base]` holds fields of RunConfig common to all runs; each `[[runs]]` table some that differ; `[grid]`
    lists of values, of which every combination is made for each of the runs. `seeds = n` repeats each of
    these configurations with n seeds, none of which any other configuration has: run c, repetition k
    gets `first_seed` + c n + k. Repetitions come last: all configurations once, then all again.

    Raises:
        ValueError: not readable, an unknown part or field, a wrong type, or the same run twice.
    """
    try:
        spec = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"spec={str(path)!r} can't be read: {error.strerror}; give a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"spec={str(path)!r} is not valid TOML: {error}") from None
    return entries(spec, source=str(path))


def entries(spec: Mapping[str, Any], *, source: str = "spec") -> tuple[Entry, ...]:
    """The runs of a specification; see `read_spec`."""
    _check_parts(spec, source)
    base = from_mapping(spec.get("base", {}), source=f"{source}: base")
    points = [
        {**run, **point} for run in spec.get("runs", [{}]) for point in _grid(spec.get("grid", {}), source)
    ]
    count, first = spec.get("seeds"), spec.get("first_seed", 0)
    if count is not None:
        numbers = [{"seed": first + c * count + k} for k in range(count) for c in range(len(points))]
        points = [{**point, **seed} for point, seed in zip(points * count, numbers, strict=True)]
    found = [_entry(point, base, f"{source}: run {n}") for n, point in enumerate(points, 1)]
    names = [entry.name for entry in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{source}: the run {twice} stands there twice; list every configuration once")
    return tuple(found)


def sweep(
    runs: Sequence[Entry],
    directory: str | Path,
    *,
    jobs: int = 1,
    trust: bool = False,
    progress: Progress | None = None,
) -> tuple[Outcome, ...]:
    """Train every run in `directory`/name, `jobs` at a time with one thread each, or `on_cluster`.

    Finished runs are skipped and unfinished ones resumed, so the same call continues a broken sweep. A
    run that fails is reported and stops no other. Outcomes come in the order of `runs`.
    """
    if jobs < 1:
        raise ValueError(f"jobs={jobs} must be at least 1; give the number of runs at a time")
    Path(directory).mkdir(parents=True, exist_ok=True)
    calls = [(entry, Path(directory).absolute() / entry.name, trust) for entry in runs]
    if connected():
        results = unordered(_outcome, calls)
    else:
        results = parallel(_outcome, calls, jobs=jobs, ordered=False)
    shown = progress(results, description="runs", total=len(runs)) if progress else results
    found = {outcome.name: outcome for outcome in shown}
    return tuple(found[entry.name] for entry in runs)


@dataclass(frozen=True)
class Summary:
    """One row of a table of runs; `problem` says why a run could not be read, and is empty if it could."""

    name: str
    config: RunConfig | None
    last_step: int | None
    finished: bool
    memorized: int | None
    generalized: int | None
    delay: int | None
    final: Mapping[str, float | int]
    problem: str = ""


def summarize(directory: str | Path) -> tuple[Summary, ...]:
    """A row for each run below `directory`, by name, whether it is finished or not."""
    found = sorted(path.parent for path in Path(directory).rglob("run.h5"))
    if not found:
        raise ValueError(f"directory={str(directory)!r} holds no run; give a folder with runs below it")
    return tuple(_summary(path, str(path.relative_to(directory))) for path in found)


def varying(configs: Sequence[RunConfig | None]) -> tuple[str, ...]:
    """The fields that are not the same in all configurations, without seeds that only follow `seed`."""
    known = [config for config in configs if config is not None]
    texts = {field.name: {repr(getattr(c, field.name)) for c in known} for field in fields(RunConfig)}
    followed = {name for name in _SEEDS if all(getattr(c, name) == c.seed for c in known)}
    return tuple(name for name, values in texts.items() if len(values) > 1 and name not in followed)


def _check_parts(spec: Mapping[str, Any], source: str) -> None:
    unknown = sorted(set(spec) - set(_PARTS))
    if unknown:
        raise ValueError(f"{source}: unknown part {unknown[0]!r}; the parts are {', '.join(_PARTS)}")
    for name, kind in (("seeds", int), ("first_seed", int), ("runs", list), ("grid", dict)):
        if name in spec and type(spec[name]) is not kind:
            raise ValueError(f"{source}: {name}={spec[name]!r} must be of type {kind.__name__}")
    if spec.get("seeds", 1) < 1:
        raise ValueError(f"{source}: seeds={spec['seeds']} must be at least 1")


def _grid(axes: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{source}: grid.{name}={values!r} must be a list of values")
    return [dict(zip(axes, point, strict=True)) for point in product(*axes.values())]


def _entry(point: Mapping[str, Any], base: RunConfig, source: str) -> Entry:
    """Its name: the fields that the tables of the run set, then 8 digits of a digest of all not default.

    Fields that a later version adds leave the names of finished runs as they are.
    """
    config, default = from_mapping(point, source=source, base=base), RunConfig()
    settings = {name: repr(getattr(config, name)) for name in sorted(default.differences(config))}
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    text = "_".join(f"{name}-{_plain(value)}" for name, value in point.items())[:120]
    return Entry(f"{text}_{digest}".lstrip("_"), config)


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^A-Za-z0-9.+-]+", ".", text).strip(".")


def _outcome(entry: Entry, path: Path, trust: bool) -> Outcome:
    from .store import Run
    from .train import train

    try:
        skipped = (path / "run.h5").exists() and Run.open(path).finished
        run = train(entry.config, path, trust=trust)
    except Exception as error:  # one bad run must not stop the others
        return Outcome(entry.name, "failed", f"{type(error).__name__}: {error}")
    if str(run.finish_reason).startswith("diverged"):
        return Outcome(entry.name, "failed", str(run.finish_reason))
    return Outcome(entry.name, "skipped" if skipped else "done")


def _summary(path: Path, name: str) -> Summary:
    from .store import Run

    try:
        run = Run.open(path)
        found = milestones(run)
    except (ValueError, OSError) as error:
        return Summary(name, None, None, False, None, None, None, {}, str(error))
    reached = [
        None if crossing is None else crossing.step for crossing in (found.memorized, found.generalized)
    ]
    final = {metric: series.value[-1].item() for metric, series in run.metrics.items() if len(series.value)}
    last = int(run.steps[-1]) if len(run.steps) else None
    return Summary(name, run.config, last, run.finished, reached[0], reached[1], found.delay, final)
