"""What a network for modular addition would answer if its weights were the pure waves nearest to them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..geometry.fourier import periodicity
from ..geometry.square_wave import (
    Layers,
    Shape,
    Waves,
    circular_correlation,
    extract,
    ideal,
    right,
    wave_distances,
)

if TYPE_CHECKING:
    from ..runs.store import Run

FloatArray = NDArray[np.float64]

KINDS: tuple[tuple[Shape, Shape], ...] = (("cosine", "cosine"), ("square", "cosine"), ("square", "square"))
"""Shapes of input and output waves, in the order in which accuracies are kept."""
STRUCTURED = 12.0
"""The periodicity above which the paper calls a hidden unit structured."""


class Idealization:
    """The hidden units of a run's one-hot network, and its clean test pairs.

    `test_pairs` (n, 2) are the operands of the test samples, whose labels are never noisy.

    Raises:
        ValueError: the run is no addition of two operands by a one-hot network with one hidden layer.
    """

    def __init__(self, run: Run) -> None:
        config = run.config
        fits = config is not None and (config.task, config.model, config.layers) == ("add", "onehot_mlp", 1)
        if not fits or config is None or len(run.table.names) != 4:
            raise ValueError(
                f"run={str(run.path)!r} is no addition by an onehot_mlp of one layer; train one with "
                "--task add --model onehot_mlp"
            )
        self.run, self.config = run, config

    def layers(self, index: int) -> Layers:
        """The weights of snapshot `index`, without the biases, in float64."""
        named = self.run.table.unflatten(self.run.theta(index).astype(np.float64))
        both = named["feedforward.0.weight"]
        p = both.shape[1] // 2
        return Layers(both[:, :p], both[:, p:], named["head.weight"].T)

    def waves(self, index: int) -> Waves:
        """Frequency and phases of every hidden unit at snapshot `index`."""
        return extract(self.layers(index))

    def accuracy(self, index: int, *, inputs: Shape, output: Shape) -> float:
        """Share of test pairs that the ideal network with those waves answers, first of equal logits.

        Every unit has amplitude one: the formulas of Swaroop 2026 (arXiv 2603.23784, section 4.1) have
        no amplitude, though the abstract names amplitudes too.
        """
        made = ideal(self.waves(index), modulus=self.config.modulus, inputs=inputs, output=output)
        return float(right(made, self.test_pairs).mean())

    def saturation(self) -> int:
        """The first snapshot at or after the first evaluation with 99 % of the training labels right.

        Raises:
            ValueError: the run never got there.
        """
        from ..runs.milestones import milestones

        reached = milestones(self.run).first_memorized
        later = np.array([], int) if reached is None else np.flatnonzero(self.run.steps >= reached.step)
        if not len(later):
            raise ValueError(
                f"run={str(self.run.path)!r} never had 99 % of its training labels; train longer"
            )
        return int(later[0])

    def real(self, index: int) -> float:
        """The network's own test accuracy at the last evaluation up to snapshot `index`."""
        series = self.run.metrics["test_correct"]
        at = int(np.searchsorted(series.step, self.run.steps[index], side="right")) - 1
        return float(series.value[at]) / len(self.test_pairs)

    @cached_property
    def test_pairs(self) -> NDArray[np.int64]:
        """Operands (n, 2) of the test samples."""
        from ..runs.tasks.task import make_task

        task = make_task(self.config)
        return np.asarray(task.inputs[task.test].numpy())


@dataclass(frozen=True)
class Extraction:
    """The waves of one run at three points (its start, its saturation, its end) and along training.

    accuracy (3, 4): of the ideal networks of `KINDS`, then of the network itself, on clean test pairs.
    correlation (3,): circular, of φ_out with φ_a + φ_b over all units. agreement (3,): mean of
    cos(φ_out − φ_a − φ_b), which needs no mean phase: uniform phases, as ours are, have none. The last three
    describe the units whose periodicity exceeds `STRUCTURED` at the end: how many, their circular
    correlation, and the mean of d_square/d_cosine − 1 (see `wave_distances`); NaN where there are none.
    """

    noise: float
    length: int
    accuracy: FloatArray
    correlation: FloatArray
    agreement: FloatArray
    steps: NDArray[np.int64]
    ideal: FloatArray
    real: FloatArray
    structured: int
    structured_correlation: float
    nearer: float


def extraction(run: Run) -> Extraction:
    """All that the waves of a run tell; see `Extraction`. Some twenty ideal networks are evaluated.

    Raises:
        ValueError: the run is of another kind, or never had 99 % of its training labels right.
    """
    made = Idealization(run)
    points = (0, made.saturation(), len(run) - 1)
    accuracy = [[*(made.accuracy(i, inputs=a, output=b) for a, b in KINDS), made.real(i)] for i in points]
    shown = _along(run.steps)
    return Extraction(
        noise=made.config.label_noise,
        length=made.config.steps,
        accuracy=np.array(accuracy),
        correlation=np.array([_correlation(made.waves(i)) for i in points]),
        agreement=np.array([float(np.cos(made.waves(i).phase_sum_error).mean()) for i in points]),
        steps=run.steps[shown],
        ideal=np.array([made.accuracy(i, inputs="square", output="cosine") for i in shown]),
        real=np.array([made.real(i) for i in shown]),
        **_structured(made.layers(points[-1])),
    )


def _structured(layers: Layers) -> dict[str, Any]:
    waves, keep = extract(layers), periodicity(layers.first) > STRUCTURED
    kept = Waves(waves.frequency[keep], waves.first[keep], waves.second[keep], waves.output[keep])
    apart = wave_distances(layers.first[keep], frequency=kept.frequency, phases=kept.first)
    return {
        "structured": len(kept.frequency),
        "structured_correlation": _correlation(kept),
        "nearer": float(np.mean(apart[:, 0] / apart[:, 1]) - 1) if len(apart) else float("nan"),
    }


def _correlation(waves: Waves) -> float:
    return circular_correlation(waves.output, waves.first + waves.second)


def _along(steps: NDArray[np.int64]) -> list[int]:
    """At most fourteen snapshots, about evenly in log step, the first and last among them."""
    wanted = np.concatenate([[0], np.geomspace(1, max(steps[-1], 2), 13)])
    return sorted({int(np.abs(steps - step).argmin()) for step in wanted})
