"""Run: the reader of a run's folder. `RunWriter` and `Series` are at home here too."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..geometry.parameters import ParameterTable
from .config import RunConfig
from .decode import load_index, load_state
from .durable import byte_view
from .index import Index, Series, chain
from .segments import DamageError, Piece, Rows, opened, read_into
from .writer import RunWriter

__all__ = ["Run", "RunWriter", "Series"]
Block = tuple[slice, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Run:
    """A run as it was committed when opened; open it again to see later commits.

    P parameters, T snapshots. Nothing is held open, so a Run may be pickled and forked. The SHA-256 of a
    row is checked when it is read for the first time. HDF5 sees run.h5 only; rows are read by offset.
    """

    path: Path
    index: Index
    _checked: set[tuple[str, int]] = field(default_factory=set, repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in folder `path`, whether or not a trainer is writing it.

        Raises:
            ValueError: there is no run, or its run.h5 is damaged, newer, or points outside the folder.
            OSError: run.h5 can't be read.
        """
        return cls(Path(path), load_index(Path(path)))

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        last = f" to step {self.steps[-1]}" if len(self) else ""
        state = self.finish_reason or "unfinished"
        return f"Run({str(self.path)!r}: {len(self)} snapshots{last}, {self.table.size} parameters, {state})"

    @cached_property
    def config(self) -> RunConfig | None:
        """The configuration; None for a run of a loop that is not ours."""
        return None if self.index.config is None else RunConfig.from_json(self.index.config)

    @property
    def table(self) -> ParameterTable:
        """The tensors that theta concatenates."""
        return self.index.table

    @property
    def dtype(self) -> str:
        """'float32' or 'float64', of theta and second moments."""
        return self.index.dtype

    @property
    def steps(self) -> NDArray[np.int64]:
        """Step (T,) of each snapshot: theta after so many updates, rising."""
        return self.index.theta.steps

    @property
    def metrics(self) -> Mapping[str, Series]:
        """Metrics by name, each with its own steps."""
        return self.index.metrics

    @property
    def hashes(self) -> tuple[str, ...]:
        """SHA-256 of each snapshot's bytes, in hex."""
        return self.index.theta.hashes

    @cached_property
    def hash(self) -> str:
        """The run's hash: a chain over steps and theta bytes, whatever the commits (see index.chain)."""
        return chain(self.steps, self.hashes)

    @cached_property
    def identity(self) -> str:
        """The configuration without `steps` as JSON, a newline, and the hash of the first snapshot.

        `steps` only says where training ends: it grows when a run is extended, and what was measured on
        the snapshots so far stays right.
        """
        config = {k: v for k, v in json.loads(self.index.config or "{}").items() if k != "steps"}
        text = json.dumps(config, sort_keys=True, separators=(",", ":"))
        return f"{text}\n{self.hashes[0] if self.hashes else ''}"

    @property
    def finished(self) -> bool:
        """Whether the trainer said that it is done (or has diverged)."""
        return self.index.finish_reason is not None

    @property
    def finish_reason(self) -> str | None:
        """Why it finished, in words."""
        return self.index.finish_reason

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Versions, threads, device, revision of the latest session that wrote the run."""
        return self.index.provenance[-1] if self.index.provenance else {}

    @property
    def states(self) -> tuple[int, ...]:
        """Steps at which the full training state was kept."""
        return tuple(state.step for state in self.index.states)

    def state(self, step: int) -> bytes:
        """The full training state kept at `step`, its hash checked.

        Raises:
            ValueError: none was kept at that step, or its file is missing or damaged.
        """
        for state in self.index.states:
            if state.step == step:
                return load_state(self.path, state)
        raise ValueError(
            f"step={step}: no full state was kept there; there are states at {list(self.states)}"
        )

    def theta(self, i: int) -> NDArray[Any]:
        """Snapshot i as a fresh array (P,); negative i counts from the end.

        Raises:
            ValueError: there is no such snapshot, or (as DamageError) its segment is damaged.
        """
        return self._row(self.index.theta, i)

    def rows(self, indices: Iterable[int] | None = None) -> Iterator[NDArray[Any]]:
        """The snapshots at `indices` (all if None), one fresh array (P,) after the other.

        Raises:
            ValueError: as for `theta`.
        """
        return (self.theta(i) for i in (range(len(self)) if indices is None else indices))

    def columns(self, width: int, *, indices: Sequence[int] | None = None) -> Iterator[Block]:
        """Coordinates of all snapshots, `width` at a time: pairs of slice and fresh array (T, width).

        Memory for four blocks: one is used while a thread hashes the next and another reads the one after.
        With `indices`, only these snapshots, in that order. Rows read before are not hashed again; a
        damaged one is reported after the last block.

        Raises:
            ValueError: a width below 1, no such snapshot, or (as DamageError) a damaged segment.
        """
        if width < 1:
            raise ValueError(f"width={width} must be at least 1 column")
        chosen = [
            self._locate(self.index.theta, i) for i in (range(len(self)) if indices is None else indices)
        ]
        for piece in {piece for piece, _ in chosen}:  # damage is reported before anything is allocated
            with opened(self.path, piece):
                pass
        read = _one_ahead(self._blocks(chosen, width))
        yield from _one_ahead(self._hashed(chosen, read))

    @property
    def second_moment_steps(self) -> NDArray[np.int64]:
        """Step (T',) of each stored second moment."""
        return self.index.second_moment.steps

    def second_moment(self, j: int) -> NDArray[Any]:
        """The optimizer's second moment number j as a fresh array (P,).

        Raises:
            ValueError: as for `theta`.
        """
        return self._row(self.index.second_moment, j)

    def _row(self, rows: Rows, i: int) -> NDArray[Any]:
        piece, k = self._locate(rows, i)
        with opened(self.path, piece) as descriptor:  # the size asked for is there: only now allocate
            out = np.empty(self.table.size, self.dtype)
            read_into(descriptor, out, piece.offset + k * out.nbytes)
        if (piece.file, k) not in self._checked:
            self._confirm(rows, piece, k, hashlib.sha256(byte_view(out)).hexdigest())
        return out

    def _blocks(self, chosen: Sequence[tuple[Piece, int]], width: int) -> Iterator[Block]:
        for start in range(0, self.table.size, width):
            where = slice(start, min(start + width, self.table.size))
            yield where, self._block(chosen, where)

    def _hashed(self, chosen: Sequence[tuple[Piece, int]], blocks: Iterator[Block]) -> Iterator[Block]:
        hashers = [None if (p.file, k) in self._checked else hashlib.sha256() for p, k in chosen]
        for where, block in blocks:
            for row, hasher in zip(block, hashers, strict=True):
                if hasher is not None:
                    hasher.update(byte_view(row))
            yield where, block
        for (piece, k), hasher in zip(chosen, hashers, strict=True):
            if hasher is not None:
                self._confirm(self.index.theta, piece, k, hasher.hexdigest())

    def _block(self, chosen: Sequence[tuple[Piece, int]], where: slice) -> NDArray[Any]:
        block = np.empty((len(chosen), where.stop - where.start), self.dtype)
        places: dict[Piece, list[tuple[int, int]]] = {}
        for row, (piece, k) in enumerate(chosen):
            places.setdefault(piece, []).append((row, k))
        for piece, pairs in places.items():
            with opened(self.path, piece) as descriptor:
                for row, k in pairs:
                    position = (k * self.table.size + where.start) * block.itemsize
                    read_into(descriptor, block[row], piece.offset + position)
        return block

    def _locate(self, rows: Rows, i: int) -> tuple[Piece, int]:
        """The piece in which row i lies, and its number there."""
        count = len(rows.hashes)
        if not -count <= i < count:
            raise ValueError(f"snapshot {i} does not exist; the run has {count}, counted from 0")
        i = int(i) % count
        piece = rows.pieces[bisect_right(rows.pieces, i, key=lambda piece: piece.first_row) - 1]
        return piece, i - piece.first_row

    def _confirm(self, rows: Rows, piece: Piece, k: int, digest: str) -> None:
        i = piece.first_row + k
        if digest != rows.hashes[i]:
            detail = f"snapshot {i} (step {rows.steps[i]}) does not have its SHA-256"
            raise DamageError(self.path, piece.file, "altered", detail)
        self._checked.add((piece.file, k))


def _one_ahead(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same, the next one made by a thread while this one is used."""
    with ThreadPoolExecutor(1, "grokscope-read") as thread:
        coming = thread.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = thread.submit(next, blocks, None)
            yield block
