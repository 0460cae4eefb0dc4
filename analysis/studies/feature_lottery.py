"""How two-layer networks learn modular addition: He, Wang, Chen and Yang 2026, arXiv 2602.16849."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ...runs.store import Run
from ...runs.sweep import entries
from ..claim import Claim, Finding, Interpretation, Scale
from ..feature_learning import Guesses
from ..parallel import each
from ..rows import Progress
from ..study import Measured
from ._feature_lottery_rows import Descent, Row, descent, row

TITLE = "On the mechanism and dynamics of modular addition"
SOURCE = "He, Wang, Chen and Yang 2026, arXiv 2602.16849"

FloatArray = NDArray[np.float64]

SEEDS = 5
CLAIMS = (
    Claim(
        "small networks follow the reduced flow",
        "from small weights, gradient flow moves each frequency of each unit by an equation of its own",
        "four equations for α, β, φ, ψ",
        "gradient-flow analysis",
        "identity",
        "‖modes − ODE‖/‖ODE − start‖ of the complex input modes at 0.8 of the earliest blow-up, p = 23",
        0.0,
        0.03,
    ),
    Claim(
        "layers stay balanced",
        "α² − 2β² of every frequency of every unit does not change while features grow",
        "conserved",
        "gradient-flow analysis (derived from the four equations)",
        "identity",
        "largest |change of α² − 2β²| over the largest α² + 2β² at 0.8 of the earliest blow-up",
        0.0,
        0.03,
    ),
    Claim(
        "a lottery decides the frequency",
        "the winner within a unit is determined by initial magnitudes and phase alignment",
        "determined",
        "abstract; lottery theorem",
        "order",
        "share of units with input participation above .5 whose frequency is the one of earliest blow-up",
        0.9,
        1.0,
    ),
    Claim(
        "the lottery holds in the published training",
        "the same under AdamW, where all units learn",
        "determined",
        "abstract; experiments",
        "order",
        "the same share of all units after 5,000 AdamW steps",
        0.9,
        1.0,
    ),
    Claim(
        "phases align",
        "the output phase becomes twice the input phase",
        "D = 2φ − ψ goes to 0",
        "phase-alignment section",
        "order",
        "mean |sin D| over units after 5,000 AdamW steps (random phases: 0.64)",
        0.0,
        0.1,
    ),
    Claim(
        "units have a single frequency",
        "each unit's weights are one wave",
        "single-frequency",
        "feature section",
        "order",
        "inverse participation ratio over frequencies, mean of units and layers, after 5,000 AdamW steps",
        0.7,
        1.0,
    ),
    Claim(
        "frequencies diversify",
        "all frequencies are held by about equally many units",
        "flat histogram",
        "diversification condition",
        "order",
        "χ²/(K−1) of the numbers of units per frequency after 5,000 AdamW steps (independent uniform: 1)",
        0.0,
        2.0,
    ),
    Claim(
        "phases are symmetric",
        "within a frequency the phases spread evenly over the circle",
        "mean exp(iqφ) is 0, q = 1 … 4",
        "diversification condition",
        "order",
        "mean over frequencies and q of |mean exp(iqφ)| after 5,000 AdamW steps (1/√n for n units: 0.15)",
        0.0,
        0.2,
    ),
    Claim(
        "the sum is a flawed indicator",
        "logits are p/2 at a + b, p/4 at 2a and at 2b",
        "1/2 above the other classes",
        "flawed-indicator proposition",
        "number",
        "mean logit at 2a and 2b over that at a + b, above the mean of the others, after 5,000 AdamW steps",
        0.4,
        0.6,
    ),
    Claim(
        "memorization has a plateau",
        "the first stage ends with the test accuracy that symmetry gives",
        "test accuracy 0.7635 (p = 31)",
        "grokking, stage I",
        "number",
        "test accuracy at the first evaluation with 99 % of the training labels right",
        0.7135,
        0.8135,
    ),
    Claim(
        "generalization comes late",
        "test accuracy jumps long after memorization",
        "0.95 at 5,200 steps (p = 31)",
        "grokking, stage II",
        "number",
        "first evaluated step with test accuracy of at least .95",
        4160.0,
        6240.0,
    ),
    Claim(
        "units sparsify while test accuracy jumps",
        "the second stage turns memorizing units into single-frequency ones",
        "participation rises with test accuracy",
        "grokking, stage II",
        "order",
        "Spearman correlation of test accuracy and inverse participation over snapshots from memorization on",
        0.9,
        1.0,
    ),
    Claim(
        "weight decay drives the later stages",
        "after memorization, decay against the loss makes the network generalize",
        "driven by the competition between loss and weight decay",
        "abstract",
        "order",
        "test accuracy with weight decay 2 minus that without, same step and seed, when the latter ends",
        0.05,
        0.3,
    ),
)


def spec(scale: Scale) -> Mapping[str, Any]:
    """The paper's runs: quadratic units on all pairs (p = 23), and ReLU units that grok (p = 31).

    All pairs but one, since a run needs a test sample. The paper warms up over 10 steps; we don't. quick:
    6,000 steps of the network that groks, 4,000 without decay. paper: all 50,000.
    """
    base: dict[str, Any] = {
        "model": "two_layer",
        "batch_size": "full",
        "betas": [0.9, 0.98],
        "init_scale": 0.1,
        "second_moment_every": 0,
        "stop_after_generalization": None,
        "log_every": 50,
        "evaluate_every": 50,
        "snapshot_every": 250,
    }
    full: dict[str, Any] = {
        "modulus": 23,
        "train_fraction": 0.999,
        "feedforward": 512,
        "lr": 5e-5,
        "weight_decay": 0.0,
    }
    full |= {"model_options": {"shared": True}, "steps": 5000}
    grok: dict[str, Any] = {
        "modulus": 31,
        "train_fraction": 0.75,
        "feedforward": 931,
        "lr": 1e-4,
        "weight_decay": 2.0,
    }
    grok |= {"model_options": {"shared": True, "activation": "relu"}, "steps": 6000}
    arms = [grok, grok | {"weight_decay": 0.0, "steps": 4000}, full]
    if scale == "paper":
        long = grok | {"steps": 50_000, "evaluate_every": 100, "snapshot_every": 1000}
        arms = [long, long | {"weight_decay": 0.0}, full]
    # The longest first, so that all processes end together; arms share their seeds.
    return {"base": base, "runs": [arm | {"seed": seed} for arm in arms for seed in range(SEEDS)]}


def measure(
    folder: Path, *, scale: Scale, released_data: Path | None, jobs: int, progress: Progress
) -> Measured:
    """Gradient descent of small networks against the reduced flow, then the runs under AdamW."""
    homes = [
        home for entry in entries(spec(scale)) if (home := folder / entry.name).joinpath("run.h5").exists()
    ]
    read = progress(each(_row, ((h,) for h in homes), jobs=jobs), description="runs", total=len(homes))
    rows = [one for one in read if one is not None]
    small = list(each(descent, ((seed,) for seed in range(SEEDS)), jobs=jobs))
    full = [row for row in rows if row.modulus == 23 and row.decay == 0]
    grok = [row for row in rows if row.modulus == 31 and row.decay > 0]
    still = [row for row in rows if row.modulus == 31 and row.decay == 0]
    found = _small_findings(small) + _full_findings(full) + _grokking_findings(grok, still)
    return Measured(found, _arrays(small, full, grok, still))


def _row(home: Path) -> Row | None:
    return row(Run.open(home))


def _small_findings(small: Sequence[Descent]) -> tuple[Finding, ...]:
    """The reduced flow and the lottery in the regime they are derived for."""
    pure, everyone = (_said([getattr(d, n) for d in small]) for n in ("guesses", "all_units"))
    setting = "128 quadratic units, p = 23, weights N(0, 0.01/p), explicit Euler, all pairs"
    wins = all(d.guesses.lottery > max(d.guesses.magnitude, d.guesses.alignment) for d in small)
    return (
        Finding(CLAIMS[0].name, _values(d.deviation for d in small), "supported", setting),
        Finding(CLAIMS[1].name, _values(d.drift for d in small), "supported", setting),
        Finding(
            CLAIMS[2].name,
            _values(d.guesses.lottery for d in small),
            "supported" if wins else "qualified",
            f"{pure}; {everyone}",
        ),
    )


def _said(found: Sequence[Guesses]) -> str:
    means = np.mean([list(each) for each in found], axis=0)
    return (
        f"of {means[4]:.0f} units lottery {means[0]:.2f}, largest magnitude {means[1]:.2f}, smallest "
        f"misalignment {means[2]:.2f}, shuffled {means[3]:.2f}"
    )


def _full_findings(full: Sequence[Row]) -> tuple[Finding, ...]:
    """Lottery, alignment, purity, diversification and the indicator after AdamW on all pairs."""
    start, end = (np.array([row.features[at] for row in full]) for at in (0, -1))
    before = np.mean(start, axis=0)
    drawn = float(np.mean([row.guesses.lottery for row in full]))
    beats: Interpretation = "supported" if drawn > 0.9 else "qualified" if drawn > 0.5 else "not supported"
    emerged = [_interpret(end[:, n].mean() < before[n] / 2) for n in (1, 2, 3)]
    purer = _interpret(end[:, 0].mean() > 2 * before[0])
    ratio = float(np.mean([row.ghosts for row in full]))
    noted = [f"untrained {before[n]:.2f}" for n in range(4)]
    return (
        Finding(
            CLAIMS[3].name, _values(r.guesses.lottery for r in full), beats, _said([r.guesses for r in full])
        ),
        Finding(CLAIMS[4].name, _values(end[:, 1]), emerged[0], noted[1]),
        Finding(CLAIMS[5].name, _values(end[:, 0]), purer, noted[0]),
        Finding(CLAIMS[6].name, _values(end[:, 2]), emerged[1], noted[2]),
        Finding(CLAIMS[7].name, _values(end[:, 3]), emerged[2], noted[3]),
        Finding(
            CLAIMS[8].name,
            _values(row.ghosts for row in full),
            "supported" if abs(ratio - 0.5) < 0.1 else "qualified",
            "a network of evenly spaced, aligned phases of equal size has exactly 1/2",
        ),
    )


def _interpret(emerged: bool) -> Interpretation:
    return "supported" if emerged else "qualified"


def _grokking_findings(grok: Sequence[Row], still: Sequence[Row]) -> tuple[Finding, ...]:
    """The three stages of the network that groks, beside the same without weight decay."""
    plateau = [_at(row, row.memorized) for row in grok]
    seen, unseen, share = np.nanmean([row.mirrored for row in grok], axis=0)
    late = [_first(row, 0.95) for row in grok]
    rise = [_together(row) for row in grok]
    pairs = [(a, b) for a in grok for b in still if a.seed == b.seed]
    gains = [_at(a, int(b.evaluated[-1])) - float(b.accuracy[-1]) for a, b in pairs]
    memory = f"memorized at {min(r.memorized or 0 for r in grok)} to {max(r.memorized or 0 for r in grok)}"
    memory += f"; {np.isnan(late).sum()} of {len(late)} seeds were below .95 when training ended"
    pure = [np.mean([row.features[-1].participation for row in rows]) for rows in (grok, still)]
    without = np.mean([row.accuracy[-1] for row in still])
    mirror = (
        f"{seen:.3f} on pairs whose mirror was trained on ({share:.2f} of the test), {unseen:.3f} on others"
    )
    stays: Interpretation = "supported" if min(gains) > 0.05 else "qualified"
    return (
        Finding(CLAIMS[9].name, _values(plateau), _interpret(unseen < 0.5 * seen), mirror),
        Finding(CLAIMS[10].name, _values(late), "supported", memory),
        Finding(
            CLAIMS[11].name,
            _values(rise),
            "supported" if pure[0] > pure[1] + 0.05 else "qualified",
            f"participation at the end {pure[0]:.2f}, without decay {pure[1]:.2f}",
        ),
        Finding(CLAIMS[12].name, _values(gains), stays, f"without decay test accuracy ends at {without:.3f}"),
    )


def _at(row: Row, step: int | None) -> float:
    return float("nan") if step is None else float(np.interp(step, row.evaluated, row.accuracy))


def _first(row: Row, level: float) -> float:
    above = np.flatnonzero(row.accuracy >= level)
    return float(row.evaluated[above[0]]) if len(above) else float("nan")


def _together(row: Row) -> float:
    """Spearman correlation of test accuracy and participation from memorization on."""
    after = row.steps >= (row.memorized or 0)
    purity = np.array([found.participation for found in row.features])
    return float(stats.spearmanr(row.test[after], purity[after]).statistic)


def _values(values: Iterable[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _arrays(
    small: Sequence[Descent], full: Sequence[Row], grok: Sequence[Row], still: Sequence[Row]
) -> dict[str, NDArray[Any]]:
    """What the figure shows."""
    first = small[0]
    return {
        "times": first.times,
        "amplitudes": first.amplitudes,
        "predicted": first.predicted,
        "descent": np.array([d.guesses for d in small]),
        "adam": np.array([row.guesses for row in full]),
        "full_steps": full[0].steps,
        "full_features": np.array([row.features for row in full]),
        "grok_steps": grok[0].steps,
        "grok_participation": np.array([[f.participation for f in row.features] for row in grok]),
        "grok_evaluated": grok[0].evaluated,
        "grok_test": np.array([row.accuracy for row in grok]),
        "grok_train": np.array([row.train for row in grok]),
        "still_evaluated": still[0].evaluated,
        "still_test": np.array([row.accuracy for row in still]),
    }
