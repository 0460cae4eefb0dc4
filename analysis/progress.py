"""How far has a modular circuit grown? Progress measures of the logits on all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..geometry.fourier import (
    answer_power,
    inverse_participation,
    key_frequencies,
    waves_of_answer,
)
from ..geometry.objective import Objective, exact_attention
from .brief import brief
from .pairs import Pairs, all_pairs
from .result import walk
from .rows import Progress, identity
from .snapshots import at_most

if TYPE_CHECKING:
    from ..runs.store import Run

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ProgressCurve:
    """Progress measures at the snapshots `steps`; nan where a task has no group or is not commutative.

    The key frequencies are those of the last snapshot, so the curve is a post-mortem and no forecast.
    Logits are centered over classes before their power is taken: softmax doesn't see the rest.
    """

    KIND: ClassVar[str] = "progress"
    REVISION: ClassVar[int] = 1

    __repr__ = brief

    steps: NDArray[np.int64]  # (S,)
    train_loss: Array  # (S,) with the labels that were trained on
    test_loss: Array  # (S,)
    restricted_loss: Array  # (S,) on test pairs, only constant and key frequencies of the answer kept
    excluded_loss: Array  # (S,) on training pairs, key frequencies taken out
    key_frequencies: NDArray[np.int64]  # (F,)
    key_share: Array  # (S,) of the logits' power over pairs in waves of the answer at key frequencies
    random_share: float  # what key_share is for random logits: 2F/(N - 1)
    wave_share: Array  # (S,) the same for all frequencies
    shares: Array  # (S, K) the same for each frequency 1 to K
    participation: Array  # (S,) inverse participation ratio over frequencies: 1/K if flat, 1 if one
    commutativity: Array  # (S,) symmetric KL between a pair trained on and its transpose that isn't
    commutativity_unseen: Array  # (S,) the same where neither is trained on
    commutativity_all: Array  # (S,) the same over all pairs, as published
    test_accuracy: Array  # (S,)
    unseen_accuracy: Array  # (S,) on test pairs whose transpose isn't trained on
    task: str
    order: int  # of the group, 0 without one


def progress_along(
    run: Run,
    *,
    objective: Objective | None = None,
    snapshots: Sequence[int] | NDArray[np.int64] | None = None,
    factor: float = 2.0,
    jobs: int = 1,
    name: str | None = None,
    directory: str | Path | None = None,
    progress: Progress = identity,
) -> ProgressCurve:
    """Restricted and excluded loss, power in key frequencies, and commutativity along a run.

    Restricted and excluded loss are by Nanda et al. 2023 (arXiv 2301.05217): with t the answer (a + b for
    addition), logits are projected on 1, cos(2πkt/m) and sin(2πkt/m) over all pairs. Theirs has the five
    strongest frequencies; ours are the k whose power at the last snapshot is at least `factor` times the
    mean of all, and multiplication uses discrete logarithms. The commutativity violation is the mean of
    ½ Σ_c (p_c − q_c)(ln p_c − ln q_c), p and q the model's answers to (a, b) and (b, a), by Hwang and Park
    2026 (arXiv 2603.01968); on pairs whose transpose was trained on it says nothing, so they are apart.
    A model that adds its operands' embeddings has none by construction. `objective`, over all pairs in
    the order of the task, replaces the run's own; `snapshots` are 40 spread ones by default. Costs a
    forward pass over all pairs for each, no gradients.

    Raises:
        ValueError: the run has no configuration, or one of another task (see `all_pairs`), or `objective`
            is not over all pairs.
    """
    if run.config is None:
        raise ValueError(f"run={str(run.path)!r} has no configuration; progress needs a known modular task")
    pairs = all_pairs(run.config)
    objective = _objective(run) if objective is None else objective
    if objective.num_samples != len(pairs.answers):
        raise ValueError(
            f"objective has {objective.num_samples} samples; all {len(pairs.answers)} pairs of the task are "
            "needed, in its order"
        )
    indices = at_most(run, 40) if snapshots is None else np.unique(snapshots)
    keys = _keys(objective, pairs, run.theta(int(indices[-1])), factor)
    question = Question(objective, pairs, keys)
    options = {"factor": factor, "keys": keys.tolist()}
    found = walk(
        run, indices, question, kind=ProgressCurve.KIND, options=options, revision=ProgressCurve.REVISION,
        name=name, directory=directory, progress=progress, jobs=jobs,
    )  # fmt: skip
    count = int((pairs.answers >= 0).sum())
    return ProgressCurve(
        steps=run.steps[indices],
        **found,
        key_frequencies=keys,
        random_share=2 * len(keys) / (count - 1) if count else np.nan,
        task=run.config.task,
        order=pairs.order,
    )


@dataclass(frozen=True)
class Question:
    """What is measured at one snapshot; see `ProgressCurve`."""

    objective: Objective
    pairs: Pairs
    keys: NDArray[np.int64]

    def __call__(self, index: int, theta: NDArray[Any], previous: Any) -> dict[str, Any]:
        """The row of a snapshot."""
        outputs = all_outputs(self.objective, theta)
        return {**self._losses(outputs), **self._waves(outputs), **self._symmetry(outputs)}

    def _losses(self, outputs: torch.Tensor) -> dict[str, float]:
        pairs, right = self.pairs, self._right(outputs)
        found = {
            "train_loss": self._loss(outputs, pairs.train),
            "test_loss": self._loss(outputs, pairs.test),
            "restricted_loss": np.nan,
            "excluded_loss": np.nan,
            "test_accuracy": float(right[pairs.test].mean()),
            "unseen_accuracy": float(right[pairs.unseen].mean()) if pairs.unseen.size else np.nan,
        }
        if pairs.order:
            inside = pairs.answers >= 0
            part = np.zeros(outputs.shape)
            part[inside] = waves_of_answer(
                self._inside(outputs), pairs.answers[inside], pairs.order, self.keys
            )
            constant = np.zeros(outputs.shape)
            constant[inside] = self._inside(outputs).mean(axis=0)
            kept = torch.from_numpy(part + constant)
            left = outputs - torch.from_numpy(part)
            found["restricted_loss"] = self._loss(kept, pairs.test & inside)
            found["excluded_loss"] = self._loss(left, pairs.train & inside)
        return found

    def _waves(self, outputs: torch.Tensor) -> dict[str, Any]:
        pairs = self.pairs
        if not pairs.order:
            return {"key_share": np.nan, "wave_share": np.nan, "shares": np.empty(0), "participation": np.nan}
        power, total = wave_power(self._inside(outputs), pairs)
        shares = power / total if total else np.full(len(power), np.nan)
        return {
            "key_share": float(shares[self.keys - 1].sum()),
            "wave_share": float(shares.sum()),
            "shares": shares,
            "participation": float(inverse_participation(power)),
        }

    def _symmetry(self, outputs: torch.Tensor) -> dict[str, float]:
        pairs, names = self.pairs, ("commutativity", "commutativity_unseen", "commutativity_all")
        if not pairs.commutative:
            return dict.fromkeys(names, np.nan)
        log = torch.log_softmax(outputs, dim=1).numpy()
        everything = np.flatnonzero(pairs.mirror >= 0)
        neither = everything[~pairs.train[everything] & ~pairs.train[pairs.mirror[everything]]]
        neither = neither[neither != pairs.mirror[neither]]
        chosen = (pairs.transposed, (neither, pairs.mirror[neither]), (everything, pairs.mirror[everything]))
        return {name: violation(log[a], log[b]) for name, (a, b) in zip(names, chosen, strict=True)}

    def _loss(self, outputs: torch.Tensor, chosen: NDArray[np.bool_]) -> float:
        indices = torch.from_numpy(np.flatnonzero(chosen))
        if not len(indices) or self.objective.criterion is None:
            return np.nan
        return float(self.objective.criterion(outputs[indices], indices))

    def _right(self, outputs: torch.Tensor) -> NDArray[np.bool_]:
        return np.asarray(outputs.argmax(1).numpy() == self.pairs.targets)

    def _inside(self, outputs: torch.Tensor) -> Array:
        return np.asarray(outputs.numpy()[self.pairs.answers >= 0])


def all_outputs(objective: Objective, theta: NDArray[Any]) -> torch.Tensor:
    """Outputs (N, C) in float64 of all samples at theta (P,), without a graph.

    Raises:
        ValueError: the objective knows no outputs.
    """
    if objective.outputs is None:
        raise ValueError("objective has no outputs; build it with `from_module`")
    point = torch.from_numpy(theta).to(objective.device)
    everything = torch.arange(objective.num_samples, device=objective.device)
    with torch.no_grad(), exact_attention():
        parts = [objective.outputs(point, chunk) for chunk in torch.split(everything, objective.chunk_size)]
    return torch.cat(parts).double().cpu()


def wave_power(logits: Array, pairs: Pairs) -> tuple[Array, float]:
    """Power (K,) in waves of the answer at frequencies 1 to K, and over pairs in all, of centered logits."""
    centered = logits - logits.mean(axis=1, keepdims=True)
    centered -= centered.mean(axis=0)
    answers = pairs.answers[pairs.answers >= 0]
    return answer_power(centered, answers, pairs.order)[1:], float((centered**2).sum())


def violation(log_p: Array, log_q: Array) -> float:
    """Mean of ½ Σ_c (p_c − q_c)(ln p_c − ln q_c) over rows of log probabilities (n, C); nan without rows."""
    if not len(log_p):
        return np.nan
    return float((((np.exp(log_p) - np.exp(log_q)) * (log_p - log_q)).sum(axis=1) / 2).mean())


def _keys(objective: Objective, pairs: Pairs, theta: NDArray[Any], factor: float) -> NDArray[np.int64]:
    if not pairs.order:
        return np.empty(0, dtype=np.int64)
    power, _ = wave_power(all_outputs(objective, theta).numpy()[pairs.answers >= 0], pairs)
    return key_frequencies(np.concatenate([[0.0], power]), factor=factor)


def _objective(run: Run) -> Objective:
    from ..runs.rebuild import rebuild

    return rebuild(run, "all")
