"""Results: frozen dataclasses of arrays, each in one HDF5 file beside its run, with what it was made from.

A result class names its question and the revision of its method:

    @dataclass(frozen=True)
    class SpectrumCurve:
        KIND: ClassVar[str] = "spectrum"
        REVISION: ClassVar[int] = 1
        steps: NDArray[np.int64]  # (S,)
        ...

Fields are arrays, numbers, texts, tuples of texts or numbers, or None. The file keeps the run's identity,
the hashes of the snapshots in `steps` (all of them if there is no such field), options and revision.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from ..runs.cluster import connected
from ..runs.seal import BLOCK, check, seal
from .encoding import decode, encode, own_datasets, plain
from .rows import Arrays, Measure, Progress, identity, kept, measured, stacked

if TYPE_CHECKING:
    from ..runs.store import Run

FORMAT, FORMAT_VERSION, SEAL = "grokscope-result", 1, "grokscope result"
_PAUSE = 10.0  # seconds between two savings of a walk
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")


class ResultLike(Protocol):
    """What `save` and `load` ask of a result class."""

    KIND: ClassVar[str]
    REVISION: ClassVar[int]
    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=ResultLike)


class StaleResult(ValueError):
    """A saved result no longer answers for its run; `command` renews it."""

    def __init__(self, path: Path, reason: str, command: str) -> None:
        super().__init__(f"{path} is stale: {reason}; renew it with `{command}`")
        self.path, self.reason, self.command = path, reason, command


def save(
    result: ResultLike,
    run: Run,
    *,
    name: str | None = None,
    directory: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Write a result as `<kind>.h5` (`<kind>-<name>.h5`) into the run's folder or `directory`; its path.

    The file appears whole or not at all, and replaces an earlier one of the same kind and name.

    Raises:
        ValueError: a field of a kind that can't be stored, a step that the run doesn't have, a bad name.
    """
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    header = fingerprint(run, kind=result.KIND, revision=result.REVISION, options=options or {})
    header |= {"total": len(run.steps), "hashes": _hashes(run, values.get("steps")), "versions": _versions()}
    path = result_path(result.KIND, run, name=name, directory=directory)
    write(path, header, values)
    return path


def load(cls: type[R], run: Run, *, name: str | None = None, directory: str | Path | None = None) -> R:
    """The saved result of class `cls`; snapshots that came later leave it valid (see `status`).

    Raises:
        StaleResult: run, snapshots, fields or method are others than those it was made from.
        FileNotFoundError: there is none; the message names the command that makes it.
    """
    path = result_path(cls.KIND, run, name=name, directory=directory)
    command = renewal(cls.KIND, run, name=name, directory=directory)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; make it with `{command}`")
    header, values = read(path)
    reason = _difference(cls, run, header, values)
    if reason:
        raise StaleResult(path, reason, command)
    return cls(**values)


def status(
    cls: type[ResultLike], run: Run, *, name: str | None = None, directory: str | Path | None = None
) -> Literal["missing", "stale", "partial", "complete"]:
    """Whether a result is there and answers for the run: `partial` when snapshots were appended since."""
    path = result_path(cls.KIND, run, name=name, directory=directory)
    if not path.exists():
        return "missing"
    header, values = read(path)
    if _difference(cls, run, header, values):
        return "stale"
    return "partial" if header["total"] < len(run.steps) else "complete"


def walk(
    run: Run,
    indices: Sequence[int] | NDArray[np.int64],
    measure: Measure,
    *,
    kind: str,
    options: Mapping[str, Any],
    revision: int = 0,
    name: str | None = None,
    directory: str | Path | None = None,
    progress: Progress = identity,
    jobs: int = 1,
) -> Arrays:
    """What `measure(index, theta (P,), previous)` finds at each snapshot, stacked to arrays (S, ...).

    `measure` returns one row: numbers, texts or arrays by name, of the same shapes at every snapshot.
    `previous` is the row before (None for the first), for warm starts; entries whose name begins with an
    underscore are handed on to the next snapshot but neither stacked nor returned, so that large vectors
    can be passed along. In `jobs` > 1 processes, or `on_cluster`, each snapshot is measured on its own and
    `previous` is always None. What is done is kept in `<kind>.partial.h5`, also when interrupted, and the
    same call goes on from there if run, snapshots, options and revision are the same.

    Raises:
        ValueError: rows differ in names or shapes, `indices` is empty, or `jobs` < 1.
    """
    indices = [int(i) for i in indices]
    if not indices or jobs < 1:
        raise ValueError(f"indices={indices}, jobs={jobs}: at least one snapshot and one job are needed")
    target = result_path(kind, run, name=name, directory=directory)
    partial = target.with_name(target.name.removesuffix(".h5") + ".partial.h5")
    chained = jobs == 1 and not connected()
    header = fingerprint(run, kind=kind, revision=revision, options=dict(options) | {"chained": chained})
    hashes = snapshot_hashes(run, indices)
    rows = _restored(partial, header, hashes)
    last, pause = time.monotonic(), _PAUSE
    try:
        todo = measured(run, indices[len(rows) :], measure, before=rows[-1] if rows else None, jobs=jobs)
        for row in progress(todo, description=kind, total=len(indices) - len(rows)):
            rows[-1:] = [*map(kept, rows[-1:]), row]
            if time.monotonic() - last > pause:
                last = time.monotonic()
                _keep(partial, header, hashes, rows)
                pause = max(_PAUSE, 20 * (time.monotonic() - last))
    except BaseException:
        _keep(partial, header, hashes, rows)
        raise
    partial.unlink(missing_ok=True)
    return stacked(rows)


def result_path(kind: str, run: Run, *, name: str | None = None, directory: str | Path | None = None) -> Path:
    """Where the result of that kind and name lies.

    Raises:
        ValueError: a name that makes no plain file name.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise ValueError(
            f"name={name!r} must be letters, digits and _ . + = - (it becomes part of a file name)"
        )
    home = Path(directory) if directory is not None else folder(run)
    return home / (f"{kind}.h5" if name is None else f"{kind}-{name}.h5")


def folder(run: Run) -> Path:
    """The folder that a run lies in, also for a run packed into a single file."""
    path = Path(run.path)
    return path.parent if path.is_file() else path


def renewal(kind: str, run: Run, *, name: str | None = None, directory: str | Path | None = None) -> str:
    """The command that computes a result anew."""
    extra = ("" if name is None else f" --name {name}") + ("" if directory is None else f" --out {directory}")
    return f"grokscope analyze {kind} {run.path}{extra}"


def names(kind: str, run: Run, *, directory: str | Path | None = None) -> tuple[str | None, ...]:
    """Names of the saved results of a kind; None stands for the unnamed one, which comes first."""
    home = Path(directory) if directory is not None else folder(run)
    stems = sorted(path.name.removesuffix(".h5") for path in home.glob(f"{kind}*.h5"))
    named = (stem.removeprefix(f"{kind}-") for stem in stems if stem.startswith(f"{kind}-"))
    unnamed: tuple[str | None, ...] = (None,) if kind in stems else ()
    return unnamed + tuple(stem for stem in named if not stem.endswith(".partial"))


def fingerprint(run: Run, *, kind: str, revision: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """What two computations must share to have equal results, snapshots apart."""
    text = json.dumps(dict(options), sort_keys=True, default=plain)
    return {"kind": kind, "revision": revision, "identity": str(run.identity), "options": text}


def snapshot_hashes(run: Run, indices: Iterable[int]) -> NDArray[Any]:
    """The hashes of the given snapshots (S,), as bytes."""
    return np.array([run.hashes[i].encode() for i in indices], dtype="S64")


def write(path: Path, header: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Write header and values to an HDF5 file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = {name: encode(name, value) for name, value in values.items()}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with h5py.File(draft, "w", libver=("v110", "v110"), userblock_size=BLOCK) as file:
            file.attrs.update({"format": FORMAT, "format_version": FORMAT_VERSION})
            for name, value in header.items():
                file.create_dataset(f"header/{name}", data=value)
            for name, (form, data, dtype) in encoded.items():
                file.create_dataset(f"values/{name}", data=data, dtype=dtype).attrs["form"] = form
        seal(draft, SEAL)
        _settle(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and values of a file that `write` made; HDF5 sees it only if it is as it was written.

    Raises:
        OSError: the file is damaged or no result, or from a newer grokscope.
    """
    try:
        check(path, SEAL)
        with h5py.File(path, "r") as file:
            if file.attrs.get("format") != FORMAT or file.attrs["format_version"] > FORMAT_VERSION:
                raise OSError("it is no grokscope result, or one of a newer version")
            header = {name: plain(item[()]) for name, item in own_datasets(file, "header")}
            values = {name: decode(item) for name, item in own_datasets(file, "values")}
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise OSError(
            f"{path} can't be read as a result: {error}; remove it and run its analysis again"
        ) from None
    return header, values


def _keep(path: Path, header: Mapping[str, Any], hashes: NDArray[Any], rows: Sequence[Arrays]) -> None:
    """Write the rows done so far, and what the last one hands on."""
    if rows:
        handed_on = {name: value for name, value in rows[-1].items() if name.startswith("_")}
        write(path, {**header, "hashes": hashes[: len(rows)]}, stacked(rows) | handed_on)


def _restored(path: Path, header: Mapping[str, Any], hashes: NDArray[Any]) -> list[Arrays]:
    """The rows of an interrupted walk if it asked the same of the same snapshots; else none."""
    if not path.exists():
        return []
    found, values = read(path)
    done = found.pop("hashes")
    if found != header or not np.array_equal(done, hashes[: len(done)]):
        return []
    rows = [{name: value[i] for name, value in values.items() if name[0] != "_"} for i in range(len(done))]
    rows[-1] |= {name: value for name, value in values.items() if name[0] == "_"}
    return [{name: np.asarray(value) for name, value in row.items()} for row in rows]


def _settle(draft: Path, path: Path) -> None:
    """Rename once the bytes are on the disk, so that a crash leaves the old file or the new one."""
    for step, flags in ((draft, os.O_RDWR), (path.parent, os.O_RDONLY)):
        descriptor = os.open(step, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if step is draft:
            os.replace(draft, path)


def _difference(cls: type[ResultLike], run: Run, header: dict[str, Any], values: dict[str, Any]) -> str:
    """Why the stored result is stale; empty if it is not."""
    if header["kind"] != cls.KIND or header["revision"] != cls.REVISION:
        return (
            f"made by {header['kind']} revision {header['revision']}, now {cls.KIND} revision {cls.REVISION}"
        )
    if header["identity"] != str(run.identity):
        return "made from another run"
    if set(values) != {field.name for field in fields(cls)}:
        return "its fields are not those of this version"
    try:
        hashes = _hashes(run, values.get("steps"), total=header["total"])
    except (ValueError, IndexError):
        return "some of its snapshots are no longer in the run"
    return "" if np.array_equal(hashes, header["hashes"]) else "the run's snapshots changed"


def _hashes(run: Run, steps: Any, *, total: int | None = None) -> NDArray[Any]:
    if steps is None:
        return snapshot_hashes(run, range(len(run.steps) if total is None else total))
    steps = np.atleast_1d(steps)
    at = np.searchsorted(run.steps, steps).clip(max=len(run.steps) - 1)
    missing = steps[run.steps[at] != steps]
    if missing.size:
        raise ValueError(
            f"steps={missing[0]} is no snapshot of {run.path}; a result's steps must be snapshots"
        )
    return snapshot_hashes(run, at)


def _versions() -> str:
    found = {}
    for package in ("grokscope", "numpy", "scipy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return json.dumps(found)
