"""The ranking of early-warning signals as one page of markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .signals import BASELINES, Outcome, SignalScores

_SWEEPS = "docs/configs/sweeps/early_warning.toml", "docs/configs/sweeps/early_warning_control.toml"


def page(
    scores: SignalScores, outcomes: Sequence[Outcome], control: NDArray[np.float64], *, words: str = ""
) -> str:
    """The page; `control` (N, L) are AUCs against random labels, `words` further options of the command."""
    return (
        "\n".join([*_head(scores, outcomes, words), *_table(scores, control), "", *_reading(scores)]) + "\n"
    )


def _head(scores: SignalScores, outcomes: Sequence[Outcome], words: str) -> list[str]:
    cells = list(dict.fromkeys(one.cell for one in outcomes))
    lines = [
        "# Early warning: which signals tell before generalization that it will come?",
        "",
        "Written by these commands; don't edit it by hand.",
        "",
        f"    grokscope sweep {_SWEEPS[0]} --out out/early_warning",
        f"    grokscope sweep {_SWEEPS[1]} --out out/early_warning_control",
        "    grokscope rank out/early_warning --controls out/early_warning_control "
        f"--out docs/early_warning.md{words}",
        "",
        f"{len(outcomes)} runs in {len(cells)} cells; within a cell only seeds differ, and the train "
        "fraction is near the threshold, so that some runs generalize within the budget and others do not:",
        "",
    ]
    for cell in cells:
        mine = [one for one in outcomes if one.cell == cell]
        memorized = [one.memorized for one in mine if one.memorized is not None]
        generalized = [one.generalized for one in mine if one.generalized is not None]
        when = f" at steps {min(generalized)}–{max(generalized)}" if generalized else ""
        known = f"memorized at {min(memorized)}–{max(memorized)}, " if memorized else ""
        lines.append(f"- {_setting(cell)}: {known}{len(generalized)} of {len(mine)} generalize{when}")
    baselines = ", ".join(name.replace("_", " ") for name in BASELINES)
    return [
        *lines,
        "",
        "A signal is read at landmarks, multiples of the memorization time (not before it is known), among "
        "runs that have not generalized. **AUC**: share of pairs (a run that generalizes, one of the same "
        "cell that does not) in which the former has the larger value, with a 95 % interval (bootstrap over "
        f"{scores.resampled}). **Increment**: what the signal adds to the AUC of {baselines} together, each "
        "pair left out of its fit. Stars: p < .05 by permutation within cells, after Holm's correction over "
        f"all {int(np.isfinite(scores.p).sum())} tests of a kind. **Labels**: AUC at the first landmark "
        "between runs that generalize and runs on random labels, which may just tell the tasks apart.",
        "",
    ]


def _table(scores: SignalScores, control: NDArray[np.float64]) -> list[str]:
    marks = [f"{multiple:g}×" for multiple in scores.landmarks]
    names = ["signal", *(f"AUC {m}" for m in marks), *(f"increment {m}" for m in marks), "labels"]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    strength = np.nan_to_num(np.abs(scores.auc - 0.5)).max(axis=1)
    for i in np.argsort(-strength):
        auc = [
            _cell(scores.auc[i, k], scores.auc_low[i, k], scores.auc_high[i, k], scores.p[i, k])
            for k in range(len(marks))
        ]
        gain = [
            _cell(
                scores.increment[i, k],
                scores.increment_low[i, k],
                scores.increment_high[i, k],
                scores.increment_p[i, k],
                sign="+",
            )
            for k in range(len(marks))
        ]
        beside = "–" if np.isnan(control[i, 0]) else f"{control[i, 0]:.2f}"
        lines.append(f"| {' | '.join([scores.names[i].replace('_', ' '), *auc, *gain, beside])} |")
    return lines


def _reading(scores: SignalScores) -> list[str]:
    """What follows from the numbers, in words that they decide."""
    own = int((np.nan_to_num(scores.p, nan=1) < 0.05).any(axis=1).sum())
    base = [name for name in BASELINES if name in scores.names]
    adds = [
        name
        for name, p in zip(scores.names, scores.increment_p, strict=True)
        if (np.nan_to_num(p, nan=1) < 0.05).any() and name not in base
    ]
    best = float(np.nanmax(scores.baseline_auc)) if np.isfinite(scores.baseline_auc).any() else np.nan
    low = int(scores.usable.min()) if scores.usable.size else 0
    widths = (scores.auc_high - scores.auc_low)[np.isfinite(scores.auc)]
    half = float(widths.mean()) / 2 if widths.size else np.nan
    text = f"{own} of {len(scores.names)} signals order the runs better than chance at some landmark. "
    text += f"Train loss, gradient norm and squared norm together reach at most {best:.2f}; "
    text += f"{', '.join(adds)} add to them." if adds else "no signal adds to them significantly."
    text += f" At least {low} runs have a value at every landmark; an AUC is known to about ±{half:.2f}, so "
    return [text + "weaker signals than that are not excluded."]


def _cell(value: float, low: float, high: float, p: float, *, sign: str = "") -> str:
    if np.isnan(value):
        return "–"
    return f"{value:{sign}.2f}{'*' if p < 0.05 else ''} [{low:.2f}, {high:.2f}]"


def _setting(cell: str) -> str:
    fields: dict[str, Any] = json.loads(cell)
    shown = ("task", "modulus", "train_fraction", "lr", "weight_decay", "width", "steps")
    return ", ".join(f"{name.replace('_', ' ')} {fields[name]}" for name in shown if name in fields)
