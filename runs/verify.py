"""What a run is, and whether every byte of it is still what was committed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .decode import load_state
from .durable import byte_view
from .segments import DamageError, Piece, Rows, opened, read_into
from .store import Run


class Problem(NamedTuple):
    """A damaged file: missing, truncated, swapped (with another segment), altered or unreadable."""

    file: str
    kind: str
    detail: str


@dataclass(frozen=True)
class Report:
    """What `verify` found: `ok` if nothing is damaged, over `rows` rows of theta and second moments.

    `duplicates` are the steps whose snapshot equals the one before, byte for byte: no damage, but a
    fault of whatever wrote them.
    """

    ok: bool
    rows: int
    problems: tuple[Problem, ...]
    duplicates: tuple[int, ...]


def verify(run: Run, *, progress: Callable[..., Iterable[Any]] = lambda iterable, **_: iterable) -> Report:
    """Read and hash every byte that run.h5 lists, and name the files that are not as committed.

    run.h5 itself was checked by `Run.open`. Reads the whole run once.
    """
    both = [run.index.theta, run.index.second_moment]
    tasks = [(rows, piece) for rows in both for piece in rows.pieces]
    problems: list[Problem] = []
    for rows, piece in progress(tasks, description="verify", total=len(tasks)):
        problems += _segment_problems(run, rows, piece)
    problems += _state_problems(run)
    same = [a == b for a, b in zip(run.hashes, run.hashes[1:], strict=False)]
    duplicates = tuple(int(step) for step in run.steps[1:][same])
    return Report(not problems, sum(len(rows.hashes) for rows in both), tuple(problems), duplicates)


def info(run: Run) -> dict[str, Any]:
    """The facts about a run that its index knows, as plain values; first_step is None without snapshots."""
    steps, index = run.steps.tolist(), run.index
    pieces = [*index.theta.pieces, *index.second_moment.pieces]
    return {
        "path": str(run.path),
        "snapshots": len(run),
        "parameters": run.table.size,
        "dtype": run.dtype,
        "first_step": steps[0] if steps else None,
        "last_step": steps[-1] if steps else None,
        "finished": run.finished,
        "finish_reason": run.finish_reason,
        "hash": run.hash,
        "identity": hashlib.sha256(run.identity.encode()).hexdigest(),
        "metrics": sorted(run.metrics),
        "second_moments": len(run.second_moment_steps),
        "states": list(run.states),
        "segments": len(pieces),
        "bytes": sum(piece.length for piece in pieces),
        "config": None if index.config is None else json.loads(index.config),
        "provenance": dict(run.provenance),
    }


def _segment_problems(run: Run, rows: Rows, piece: Piece) -> Iterator[Problem]:
    expected = rows.hashes[piece.first_row : piece.first_row + piece.rows]
    try:
        with opened(run.path, piece, whole=False) as descriptor:
            size = os.fstat(descriptor).st_size
            header = hashlib.sha256(os.pread(descriptor, piece.offset, 0)).hexdigest()
            found = list(_row_hashes(run, piece, descriptor, size))
    except DamageError as error:
        yield Problem(piece.file, error.kind, error.detail)
        return
    except OSError as error:
        yield Problem(piece.file, "unreadable", str(error))
        return
    wrong = [i for i, digest in enumerate(found) if digest != expected[i]]
    owner = _owner(rows, {found[i] for i in wrong}, piece)
    end = piece.offset + piece.length
    if owner:
        yield Problem(piece.file, "swapped", f"it holds rows of {owner}")
    elif size < end:
        yield Problem(piece.file, "truncated", f"{size:,} of {end:,} bytes are there")
    elif wrong:
        steps = ", ".join(str(rows.steps[piece.first_row + i]) for i in wrong[:5])
        yield Problem(piece.file, "altered", f"{len(wrong)} rows differ from their SHA-256, at step {steps}")
    elif header != piece.header_hash:
        yield Problem(piece.file, "altered", "its HDF5 header differs, the rows are whole")


def _row_hashes(run: Run, piece: Piece, descriptor: int, size: int) -> Iterator[str]:
    """Hashes of the rows that are there in full."""
    whole = min(piece.rows, max(0, size - piece.offset) * piece.rows // piece.length)
    row = np.empty(run.table.size if whole else 0, run.dtype)
    for k in range(whole):
        read_into(descriptor, row, piece.offset + k * row.nbytes)
        yield hashlib.sha256(byte_view(row)).hexdigest()


def _owner(rows: Rows, digests: set[str], piece: Piece) -> str | None:
    """Another segment that ought to hold one of these rows."""
    for other in rows.pieces:
        if other != piece and digests.intersection(
            rows.hashes[other.first_row : other.first_row + other.rows]
        ):
            return other.file
    return None


def _state_problems(run: Run) -> Iterator[Problem]:
    states = (*run.index.states, *([run.index.resume] if run.index.resume else []))
    for state in states:
        try:
            load_state(run.path, state)
        except DamageError as error:
            yield Problem(state.file, error.kind, error.detail)
