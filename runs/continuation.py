"""Where a resumed writer begins: same configuration, nothing after the resume state, no litter."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from ..geometry.parameters import ParameterTable
from .buffer import until
from .config import RunConfig
from .index import Index
from .segments import FOLDER

_OURS = re.compile(
    r"run\.h5\.tmp|segments/\d{8}\.h5(\.tmp)?|(resume|state)-\d+(\.\d+)?\.pt(\.tmp)?", re.ASCII
)


def continued(stored: Index, config: RunConfig | None, table: ParameterTable, path: Path) -> Index:
    """The stored index under the given configuration, which may differ in more `steps` only."""
    if stored.table != table:
        raise ValueError(f"{path} holds a run of other parameters (names or shapes); give another folder")
    if (stored.config is None) != (config is None):
        raise ValueError(
            f"{path} holds a run of {'your own loop' if config else 'a configuration'}; give another folder"
        )
    if stored.config is None or config is None:
        return replace(stored, finish_reason=None)  # only the loop itself can say that it is done
    old = RunConfig.from_json(stored.config)
    names = [n for n in old.differences(config) if n != "steps" or config.steps < old.steps]
    if names:
        changes = ", ".join(
            f"{name} ({getattr(old, name)!r} there, {getattr(config, name)!r} here)" for name in names
        )
        raise ValueError(
            f"{path} holds a run with another {changes}; give another folder (only more steps are allowed)"
        )
    text = json.dumps(
        json.loads(stored.config) | {"steps": config.steps}, sort_keys=True, separators=(",", ":")
    )
    more = config.steps > old.steps
    return replace(stored, config=text, finish_reason=None if more else stored.finish_reason)


def dropped(index: Index, step: float) -> Index:
    """The index without everything that comes after `step`."""
    return replace(
        index,
        theta=index.theta.until(step),
        second_moment=index.second_moment.until(step),
        metrics=until(index.metrics, step),
        resume=index.resume if index.resume and index.resume.step <= step else None,
        states=tuple(state for state in index.states if state.step <= step),
    )


def last_kept(index: Index) -> float:
    """The step after which all is dropped on a resume: that of the resume state.

    Without one, a run of a configuration begins anew (-inf), and a run of another loop keeps all (inf).
    """
    if index.resume is not None:
        return index.resume.step
    return inf if index.config is None else -inf


def plain_sessions(
    sessions: tuple[Mapping[str, Any], ...], provenance: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any], ...]:
    """The provenances of a run's sessions, and one more as plain JSON values if it differs from the last.

    Raises:
        ValueError: the new one can't be written as JSON.
    """
    try:
        plain = json.loads(json.dumps(provenance))
    except TypeError as error:
        raise ValueError(f"provenance: {error}; give numbers, texts, lists and mappings only") from None
    return sessions if plain is None or sessions[-1:] == (plain,) else (*sessions, plain)


def listed_names(index: Index) -> set[str]:
    """Every file that an index lists."""
    pieces = {piece.file for rows in (index.theta, index.second_moment) for piece in rows.pieces}
    states = [index.resume] * (index.resume is not None) + list(index.states)
    return pieces | {state.file for state in states if state is not None}


def sweep(path: Path, listed: set[str]) -> None:
    """Delete our own files that no run.h5 lists: what a killed writer left."""
    for file in (*path.iterdir(), *(path / FOLDER).iterdir()):
        name = file.relative_to(path).as_posix()
        if _OURS.fullmatch(name) and name not in listed:
            file.unlink()
