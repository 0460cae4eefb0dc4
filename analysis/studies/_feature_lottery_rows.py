"""What the feature-lottery study reads from one descent of a small network and from one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...geometry.addition_network import descend, ghost_ratio, logits
from ...geometry.feature_lottery import Modes, blow_up_time, flow, modes
from ...geometry.fourier import inverse_participation
from ...runs.milestones import milestones
from ...runs.store import Run
from ..feature_learning import Features, Guesses, features, guesses, mirrored_accuracy, weights

FloatArray = NDArray[np.float64]


class Descent(NamedTuple):
    """Gradient descent from small weights: what it has to do with the reduced flow and the lottery."""

    deviation: float
    drift: float
    guesses: Guesses
    all_units: Guesses
    times: FloatArray  # in units of the earliest blow-up
    amplitudes: FloatArray  # (T, K) of the first unit to blow up
    predicted: FloatArray  # (T, K) by the reduced flow, NaN after it


def descent(seed: int, *, modulus: int = 23, units: int = 128, steps: int = 1000) -> Descent:
    """128 quadratic units from N(0, 0.01/p) to 1.5 times the earliest blow-up, where the loss is near 0."""
    drawn = np.random.default_rng(seed).standard_normal((2, units, modulus)) * 0.1 / np.sqrt(modulus)
    start = modes(drawn[0], drawn[1])
    times = blow_up_time(start, modulus=modulus)
    first = int(times.min(1).argmin())
    at = np.arange(steps // 20, 3 * steps // 2 + 1, steps // 20)
    path = descend(drawn[0], drawn[1], step_size=float(times.min()) / steps, steps=at.tolist())
    found = [modes(inputs, outputs) for _, inputs, outputs in path]
    early = at <= 0.8 * steps
    wanted = flow(start, at[early] / steps * times.min(), modulus=modulus)
    last = found[early.sum() - 1]
    balance, kept = start.invariants[0], last.invariants[0]
    pure = inverse_participation(found[-1].alpha ** 2) > 0.5
    predicted = np.full((len(at), start.alpha.shape[1]), np.nan)
    predicted[early] = wanted.alpha[:, first]
    ends, u, u0 = (m.alpha * np.exp(1j * m.phi) for m in (_last(wanted), last, start))
    return Descent(
        deviation=float(np.linalg.norm(u - ends) / np.linalg.norm(ends - u0)),
        drift=float(np.abs(kept - balance).max() / (last.alpha**2 + 2 * last.beta**2).max()),
        guesses=guesses(start, found[-1], modulus=modulus, among=pure),
        all_units=guesses(start, found[-1], modulus=modulus),
        times=at / steps,
        amplitudes=np.array([m.alpha[first] for m in found]),
        predicted=predicted,
    )


def _last(path: Modes) -> Modes:
    return Modes(*(part[-1] for part in path))


class Row(NamedTuple):
    """One run under AdamW."""

    modulus: int
    decay: float
    seed: int
    steps: NDArray[np.int64]
    features: tuple[Features, ...]  # of every snapshot
    guesses: Guesses
    ghosts: float
    test: FloatArray  # test accuracy at the snapshots
    evaluated: NDArray[np.int64]
    accuracy: FloatArray  # test accuracy at every evaluation
    train: FloatArray
    memorized: int | None  # evaluation with 99 % of the training labels right
    mirrored: tuple[float, float, float]


def row(run: Run) -> Row | None:
    """What the study needs of one run; None for a run without a configuration or snapshots."""
    config = run.config
    if config is None or not len(run):
        return None
    found = [modes(*weights(run, index)) for index in range(len(run))]
    right = run.metrics["test_correct"]
    totals = {split: run.provenance[f"{split}_total"] for split in ("train", "test")}
    accuracy = right.value / totals["test"]
    reached = milestones(run).first_memorized
    at = len(run) - 1 if reached is None else int(np.searchsorted(run.steps, reached.step))
    return Row(
        modulus=config.modulus,
        decay=config.weight_decay,
        seed=config.seed,
        steps=run.steps,
        features=tuple(features(each) for each in found),
        guesses=guesses(found[0], found[-1], modulus=config.modulus),
        ghosts=ghost_ratio(logits(*weights(run, len(run) - 1), activation=_activation(config.model_options))),
        test=np.interp(run.steps, right.step, accuracy),
        evaluated=right.step,
        accuracy=accuracy,
        train=run.metrics["train_correct"].value / totals["train"],
        memorized=None if reached is None else reached.step,
        mirrored=mirrored_accuracy(run, at) if config.weight_decay else (np.nan, np.nan, np.nan),
    )


def _activation(options: Mapping[str, Any]) -> str:
    return str(options.get("activation", "quadratic"))
