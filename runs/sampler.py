"""Which training samples make the next minibatch, from a random stream of its own."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from .streams import generator


class Sampler:
    """Minibatches of positions 0 .. num_samples - 1, continuing exactly from a saved state.

    With replacement each batch is drawn independently; without, every epoch is a fresh permutation cut
    into batches, its last one ragged when batch_size does not divide num_samples. `"full"` is all
    samples in order.
    """

    def __init__(
        self, num_samples: int, batch_size: int | Literal["full"], *, replacement: bool, seed: int | None
    ) -> None:
        self.num_samples = num_samples
        self.batch_size = num_samples if batch_size == "full" else batch_size
        self.full = batch_size == "full"
        self.replacement = replacement
        self.generator = generator(seed, "batches")
        self.everything = torch.arange(num_samples)
        self.order = torch.empty(0, dtype=torch.int64)  # what is left of this epoch

    def next(self) -> Tensor:
        """Positions (n,) of the next minibatch."""
        if self.full:
            return self.everything
        if self.replacement:
            return torch.randint(self.num_samples, (self.batch_size,), generator=self.generator)
        if len(self.order) == 0:
            self.order = torch.randperm(self.num_samples, generator=self.generator)
        batch, self.order = self.order[: self.batch_size], self.order[self.batch_size :]
        return batch

    def state(self) -> dict[str, Any]:
        """Everything that `load` needs to continue with the same batches."""
        return {"generator": self.generator.get_state(), "order": self.order.clone()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.generator.set_state(state["generator"])
        self.order = state["order"]
