"""The models of the ridge study: random draws of each, and when they memorize and generalize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ...geometry.ridge import RidgeDescent
from ...geometry.ridge_network import Curves, Networks, descend

Array = NDArray[np.float64]

EPS = 0.01  # of both losses
FEATURE_RIDGES = (1e-5, 1e-4, 1e-3)


@dataclass(frozen=True)
class Setting:
    """One cell of the linear model, by default the paper's."""

    samples: int = 100
    features: int = 1000
    variance: float = 1.0
    ridge: float = 1e-4

    def descent(self, seed: int) -> RidgeDescent:
        """Gaussian features N(0, 1/m), start N(0, ν²), a teacher of norm 1; more samples add rows."""
        data, start, goal = (np.random.default_rng([seed, part]) for part in range(3))
        teacher = goal.normal(size=self.features)
        return RidgeDescent(
            data.normal(0, self.features**-0.5, (self.samples, self.features)),
            start.normal(0, self.variance**0.5, self.features),
            teacher / np.linalg.norm(teacher),
            1.0,
            self.ridge,
        )


@dataclass(frozen=True)
class Network:
    """The two-layer network's sizes; steps are those at the smallest λ, fewer in proportion at others."""

    width: int
    inputs: int  # as many samples
    lr: float
    steps: int
    ridges: tuple[float, ...] = (0.05, 0.1, 0.2)

    def last(self, ridge: float) -> int:
        """The number of steps at a λ."""
        return round(self.steps * self.ridges[0] / ridge)


def one_cell(cell: Setting, seed: int) -> tuple[float, ...]:
    """(t1, t2, bound on t1, on t2, Gaussian and deterministic bound on t2, final loss, zero predictor's)."""
    run = cell.descent(seed)
    simple = np.log((cell.features - cell.samples) * cell.variance / (8 * cell.features * EPS))
    return (
        _known(run.memorization_step(EPS)),
        _known(run.generalization_step(EPS)),
        run.memorization_bound(EPS),
        run.generalization_bound(EPS, variance=cell.variance),
        simple / (2.02 * cell.ridge),
        run.deterministic_lower_bound(EPS),
        float(run.population_loss(np.inf)[0]),
        float(run.teacher @ run.teacher) / cell.features,
    )


def feature_times(seed: int, *, features: int = 10_000, fresh: int = 2000) -> Array:
    """Times (λ, 2) with φ(x) = max(0, Wx), W ~ N(0, 1/(dm)), x ~ N(0, I_d), d = n = 100.

    The population loss is over fresh samples.
    """
    weights, data, start, goal = (np.random.default_rng([seed, 10 + part]) for part in range(4))
    inner = weights.normal(0, (100 * features) ** -0.5, (features, 100))
    inputs = data.normal(size=(100 + fresh, 100))
    mapped = np.maximum(inputs @ inner.T, 0)
    teacher = goal.normal(size=features)
    run = RidgeDescent(
        mapped[:100],
        start.normal(size=features),
        teacher / np.linalg.norm(teacher),
        1.0,
        FEATURE_RIDGES[0],
        mapped[100:] / np.sqrt(fresh),
    )
    runs = [replace(run, ridge=ridge) for ridge in FEATURE_RIDGES]
    return np.array([(_known(r.memorization_step(EPS)), _known(r.generalization_step(EPS))) for r in runs])


def two_layer(
    network: Network, ridge: float, seeds: Sequence[int], *, at: Sequence[int] | None = None
) -> Curves:
    """Descent of both layers to zero from a ~ N(0, 1), w ~ N(0, 1/(dm)), one network for each seed.

    It is measured after `at` steps, by default at 600 of them evenly in their logarithm.
    """
    width, size = network.width, network.inputs
    drawn = [_drawn(width, size, seed) for seed in seeds]
    inner, outer, inputs, fresh = (torch.stack(part) for part in zip(*drawn, strict=True))
    if at is None:
        at = [0, *np.unique(np.geomspace(1, network.last(ridge), 600).round().astype(int)).tolist()]
    ridges = torch.full((len(drawn),), ridge, dtype=torch.float64)
    return descend(Networks(inner, outer), inputs, fresh, lr=network.lr, ridge=ridges, at=at)


def network_times(curves: Curves) -> Array:
    """The last measured step with train loss ≥ ε, and the first with population loss ≤ ε (seeds, 2).

    It is nan where a network did not get there.
    """
    steps = curves.steps.astype(np.float64)
    high, low = curves.train_loss >= EPS, curves.population_loss <= EPS
    last = len(steps) - 1 - high[:, ::-1].argmax(axis=1)
    memorized = np.where(high.any(axis=1) & ~high[:, -1], steps[last], np.nan)
    return np.stack([memorized, np.where(low.any(axis=1), steps[low.argmax(axis=1)], np.nan)], axis=1)


def descended(seeds: Sequence[int], *, ridge: float = 1e-3) -> Array:
    """Times (seeds, 4) of the closed form (t1, t2) and of iterating the descent, which must agree."""
    return np.array([_iterated(Setting(ridge=ridge).descent(seed)) for seed in seeds[:5]])


def _drawn(width: int, size: int, seed: int) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng([seed, 20])
    inner = rng.normal(0, (size * width) ** -0.5, (width, size))
    parts = (inner, rng.normal(size=width), rng.normal(size=(size, size)), rng.normal(size=(1000, size)))
    return tuple(map(torch.from_numpy, parts))


def _iterated(run: RidgeDescent) -> tuple[float, float, float, float]:
    exact = _known(run.memorization_step(EPS)), _known(run.generalization_step(EPS))
    theta, train, population = run.theta, [], []
    for _ in range(int(exact[1]) + 50):
        residual = run.features @ (theta - run.teacher)
        train.append(residual @ residual / (2 * len(residual)))
        population.append((theta - run.teacher) @ (theta - run.teacher) / len(theta))
        theta = theta - run.lr * (run.features.T @ residual / len(residual) + run.ridge * theta)
    memorized = np.flatnonzero(np.array(train) >= EPS)[-1]
    return (*exact, float(memorized), float(np.argmax(np.array(population) <= EPS)))


def _known(step: int | None) -> float:
    return np.nan if step is None else float(step)
