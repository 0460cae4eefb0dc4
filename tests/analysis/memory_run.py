"""A run in memory with what analyses ask of a stored one."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from grokscope.geometry.parameters import ParameterTable


@dataclass
class MemoryRun:
    path: Path
    thetas: np.ndarray  # (T, P)
    steps: np.ndarray  # (T,)
    table: ParameterTable | None = None
    metrics: dict = field(default_factory=dict)
    config: object = None
    dtype: str = "float32"
    finished: bool = True
    provenance: dict = field(default_factory=dict)

    def __post_init__(self):
        self.steps = np.asarray(self.steps, dtype=np.int64)
        self.table = self.table or ParameterTable(("w",), ((self.thetas.shape[1],),), {})

    def __len__(self):
        return len(self.steps)

    @property
    def hashes(self):
        return tuple(hashlib.sha256(row.tobytes()).hexdigest() for row in self.thetas)

    @property
    def identity(self):
        return f"memory {self.hashes[0]}"

    def theta(self, i):
        return self.thetas[i].copy()

    def rows(self, indices):
        return (self.theta(i) for i in indices)

    def columns(self, width, *, indices=None):
        rows = slice(None) if indices is None else indices
        for start in range(0, self.thetas.shape[1], width):
            where = slice(start, min(start + width, self.thetas.shape[1]))
            yield where, self.thetas[rows, where].copy()


def random_run(path, *, snapshots=7, size=11, seed=0, spacing=10):
    rng = np.random.default_rng(seed)
    thetas = rng.standard_normal((snapshots, size)).cumsum(0).astype(np.float32)
    return MemoryRun(Path(path), thetas, np.arange(snapshots) * spacing)


def series(step, value):
    return SimpleNamespace(step=np.asarray(step), value=np.asarray(value))
