"""Random streams: one independent stream per purpose, so that measuring never moves the training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy.random import SeedSequence

if TYPE_CHECKING:
    import torch

# The numbers are part of every run's identity: never renumber, only append.
STREAMS = {
    "init": 0, "split": 1, "batches": 2, "probes": 3, "chains": 4, "labels": 5, "task": 6, "interventions": 7,
}  # fmt: skip


def stream_seed(seed: int | None, name: str, index: int = 0) -> int:
    """A 32-bit seed for stream `name` number `index` (CPU generators use the low 32 bits only)."""
    if seed is None:
        raise ValueError(f"seed=None gives stream {name!r} no numbers; give a whole number")
    sequence = SeedSequence(seed, spawn_key=(STREAMS[name], index))
    return int(sequence.generate_state(1)[0])


def generator(seed: int | None, name: str, index: int = 0, *, device: str = "cpu") -> torch.Generator:
    """A torch generator on its own stream."""
    import torch

    return torch.Generator(device).manual_seed(stream_seed(seed, name, index))
