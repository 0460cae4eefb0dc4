"""What the hidden units of a two-layer addition network have learned: frequencies, phases, their purity."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..geometry.addition_network import logits
from ..geometry.feature_lottery import Modes, lottery
from ..geometry.fourier import inverse_participation

if TYPE_CHECKING:
    from ..runs.store import Run
    from ..runs.tasks.task import Task

FloatArray = NDArray[np.float64]


class Features(NamedTuple):
    """One snapshot's units, by the diagnostics of He et al. 2026 (arXiv 2602.16849).

    participation: mean over units and both layers of Σ_k A_k⁴/(Σ_k A_k²)², 1 for single-frequency units.
    misalignment: mean over units of |sin D|, D = 2φ − ψ at the unit's frequency; 2/π if phases are random.
    unevenness: χ²/(K−1) of the numbers of units per frequency, 1 on average for independent uniform ones.
    asymmetry: mean over frequencies and q = 1 … 4 of |mean exp(iqφ)| over the frequency's units; about
        √(π/4n) for n random phases, 0 for evenly spaced ones.
    """

    participation: float
    misalignment: float
    unevenness: float
    asymmetry: float


def features(found: Modes) -> Features:
    """The diagnostics of modes (M, K); a unit's frequency is the one with its largest input amplitude."""
    rows, winner = np.arange(len(found.alpha)), found.alpha.argmax(1)
    kinds = found.alpha.shape[1]
    purity = [inverse_participation(part**2).mean() for part in (found.alpha, found.beta)]
    counts = np.bincount(winner, minlength=kinds)
    even = len(winner) / kinds
    phases = found.phi[rows, winner]
    groups = [phases[winner == k] for k in range(kinds) if counts[k]]
    means = [abs(np.exp(1j * q * group).mean()) for group in groups for q in (1, 2, 3, 4)]
    return Features(
        participation=float(np.mean(purity)),
        misalignment=float(np.abs(np.sin(found.misalignment[rows, winner])).mean()),
        unevenness=float(((counts - even) ** 2).sum() / even / (kinds - 1)),
        asymmetry=float(np.mean(means)),
    )


class Guesses(NamedTuple):
    """Shares of units whose frequency at the end is the one guessed from the start.

    lottery: by the earliest blow-up of the reduced flow; magnitude: by the largest input amplitude;
    alignment: by the smallest |D|; shuffled: by the lottery of another unit, which is
    chance; units: how many there are.
    """

    lottery: float
    magnitude: float
    alignment: float
    shuffled: float
    units: int


def guesses(start: Modes, end: Modes, *, modulus: int, among: NDArray[np.bool_] | None = None) -> Guesses:
    """How often each rule names the winners of end (M, K) from start (M, K), `among` the units (M,).

    Raises:
        ValueError: `among` holds no unit.
    """
    if among is not None and not among.any():
        raise ValueError("among names no unit; nothing can be scored")
    kept = np.ones(len(start.alpha), dtype=bool) if among is None else among
    winner = 1 + end.alpha.argmax(1)
    drawn = lottery(start, modulus=modulus)
    rules = (drawn, 1 + start.alpha.argmax(1), 1 + np.cos(start.misalignment).argmax(1), np.roll(drawn, 1))
    lot, size, straight, chance = (float((rule == winner)[kept].mean()) for rule in rules)
    return Guesses(lot, size, straight, chance, int(kept.sum()))


def weights(run: Run, index: int) -> tuple[FloatArray, FloatArray]:
    """Input and output weights (M, p) of snapshot `index`, in float64.

    Raises:
        ValueError: the run is no addition by a two_layer network with shared input weights.
    """
    config = run.config
    if config is None or config.task != "add" or config.model_options.get("shared") is not True:
        raise ValueError(
            f"run={str(run.path)!r} is no addition by a two_layer network with shared=true; train one"
        )
    named = run.table.unflatten(run.theta(index).astype(np.float64))
    return named["feedforward.weight"], named["head.weight"].T


def mirrored_accuracy(run: Run, index: int) -> tuple[float, float, float]:
    """Test accuracy at snapshot `index` on pairs whose mirror image (b, a) was trained on, on others, share.

    With shared input weights (a, b) and (b, a) give one and the same answer, so the former are known
    without generalization. The third number is the share of the former among the test pairs.
    """
    from ..runs.tasks.task import make_task

    if run.config is None:
        raise ValueError(f"run={str(run.path)!r} has no configuration to make its test pairs from")
    task = make_task(run.config)
    activation = str(run.config.model_options.get("activation", "quadratic"))
    scores = logits(*weights(run, index), activation=activation)
    pairs = task.inputs[task.test].numpy()
    right = scores[tuple(pairs.T)].argmax(1) == task.targets[task.test].numpy()
    seen = _mirrored(task, pairs)
    return float(right[seen].mean()), float(right[~seen].mean()), float(seen.mean())


def _mirrored(task: Task, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
    trained = np.zeros((task.num_tokens, task.num_tokens), dtype=bool)
    trained[tuple(task.inputs[task.train].numpy().T)] = True
    return trained[pairs[:, 1], pairs[:, 0]]
