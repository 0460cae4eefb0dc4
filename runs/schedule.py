"""Which steps are recorded: dense early, where everything changes, and regular later."""

from __future__ import annotations

from math import log2


def is_due(step: int, every: int) -> bool:
    """Whether something with cadence `every` happens after `step` updates.

    Always at step 0 and at multiples of `every`; before the first multiple also at the steps
    round(2^(k/2)), k = 0, 1, 2, ...: 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, ... An `every` of 0 means never.

    Raises:
        ValueError: step or every is negative.
    """
    if step < 0:
        raise ValueError(f"step={step} must be at least 0; steps count updates")
    if every < 0:
        raise ValueError(f"every={every} must be at least 0; 0 means never")
    if every == 0:
        return False
    return step % every == 0 or (step < every and _is_geometric(step))


def due_steps(last: int, every: int) -> tuple[int, ...]:
    """All steps from 0 to `last`, inclusive, at which `is_due`."""
    return tuple(step for step in range(last + 1) if is_due(step, every))


def _is_geometric(step: int) -> bool:
    """Whether step is round(2^(k/2)) for a whole k; step is at least 1."""
    return bool(step == round(2 ** (round(2 * log2(step)) / 2)))
