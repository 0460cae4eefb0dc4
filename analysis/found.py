"""The saved results of a run, whatever analyses there are."""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .result import StaleResult, load, names, read, result_path

if TYPE_CHECKING:
    from ..runs.store import Run

NOUNS = ("trajectory", "commutator", "spectrum", "llc", "delay", "progress", "weights", "surface")


class Found(NamedTuple):
    """Results of a run by (kind, name), their files, and what is wrong with those left out."""

    results: dict[tuple[str, str | None], Any]
    paths: dict[tuple[str, str | None], Path]
    stale: tuple[str, ...]

    @property
    def by_kind(self) -> dict[str, Any]:
        """One result per kind: the unnamed one, or the first of the named."""
        kinds: dict[str, Any] = {}
        for (kind, _), result in self.results.items():
            kinds.setdefault(kind, result)
        return kinds


def found(run: Run, *, directory: str | Path | None = None) -> Found:
    """Every saved result of a run, in its folder or `directory`; stale and damaged ones are named apart."""
    results, paths, stale = {}, {}, []
    for kind in NOUNS:
        if find_spec(f".{kind}", __package__) is None:
            continue
        for name in names(kind, run, directory=directory):
            try:
                results[kind, name] = load(result_class(kind), run, name=name, directory=directory)
            except (StaleResult, OSError) as error:
                stale.append(str(error))
                continue
            paths[kind, name] = result_path(kind, run, name=name, directory=directory)
    return Found(results, paths, tuple(stale))


def result_class(kind: str) -> Any:
    """The class of an analysis' results: the one in its file that has its KIND."""
    module = import_module(f".{kind}", __package__)
    return next(item for item in vars(module).values() if getattr(item, "KIND", None) == kind)


def inputs(run: Run, found: Found) -> dict[str, Any]:
    """What a picture of a run was made from: digests of the run and of each result, with its options."""
    path = Path(run.path)
    results = []
    for (kind, name), file in found.paths.items():
        header = read(file)[0]
        row = {"kind": kind, "name": name, "file": file.name, "sha256": digest(file)}
        row |= {"options": json.loads(header["options"]), "versions": json.loads(header["versions"])}
        results.append(row | {"revision": header["revision"]})
    return {
        "run": str(path),
        "hash": run.hash,
        "sha256": digest(path if path.is_file() else path / "run.h5"),
        "snapshots": len(run.steps),
        "finished": run.finished,
        "results": results,
        "left_out": list(found.stale),
    }


def digest(path: Path) -> str:
    """SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
