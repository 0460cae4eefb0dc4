"""Square-wave weights in networks that have only memorized: Swaroop 2026, arXiv 2603.23784."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...geometry.square_wave import ideal, random_waves, right
from ...runs.milestones import milestones
from ...runs.store import Run
from ...runs.sweep import entries
from ..claim import Claim, Finding, Interpretation, Scale
from ..idealized import KINDS, Extraction, extraction
from ..parallel import each
from ..rows import Progress
from ..study import Measured

TITLE = "Latent algorithmic structure precedes grokking"
SOURCE = "Swaroop 2026, arXiv 2603.23784"

FloatArray = NDArray[np.float64]

RANDOM = 0.9897
"""The control's label noise, 96/97: with it training labels are uniform over all 97 classes."""
UNITS, BUILT = (64, 128, 256, 512), 40
"""Sizes of the networks built from random phases, and how many of each."""
FEW = 10
"""Fewer structured units than this decide nothing."""

CLAIMS = (
    Claim(
        "square inputs need fewer units",
        "built from random phases, square input waves answer more pairs than cosines",
        "0.4449 against 0.3653 with 64 units",
        "table of the construction",
        "number",
        "accuracy of square-cosine minus cosine-cosine with 64 units on all pairs, one for each of 40 seeds",
        0.06,
        0.10,
    ),
    Claim(
        "the built network adds",
        "256 square-cosine units with random phases answer nearly all pairs",
        "0.9849 with 256 units",
        "table of the construction",
        "number",
        "accuracy of square-cosine with 256 units on all pairs, one for each of 40 seeds",
        0.98,
        0.99,
    ),
    Claim(
        "square outputs cost accuracy",
        "square output waves answer fewer pairs than cosines",
        "0.3314 with 64 units",
        "table of the construction",
        "number",
        "accuracy of square-square with 64 units, first of equal logits, one for each of 40 seeds",
        0.31,
        0.35,
    ),
    Claim(
        "the algorithm is there at saturation",
        "waves read from a network that has only memorized add far better than the network",
        "0.8133 for square-cosine, clean labels",
        "extraction at saturation",
        "number",
        "test accuracy of the square-cosine network from the weights at saturation, clean labels",
        0.75,
        0.87,
    ),
    Claim(
        "label noise leaves the algorithm",
        "the same with 30 % wrong training labels, where the network never generalizes",
        "0.6501 for square-cosine, about 0 for the network",
        "extraction at saturation",
        "number",
        "test accuracy of square-cosine minus that of the network at saturation, label noise .30",
        0.57,
        0.73,
    ),
    Claim(
        "squares read better than cosines",
        "square inputs with cosine outputs add better than cosines throughout",
        "+0.047 clean, +0.056 at label noise .30",
        "extraction at saturation",
        "number",
        "test accuracy of square-cosine minus cosine-cosine at saturation, clean and label noise .30",
        0.02,
        0.09,
    ),
    Claim(
        "training sharpens what is there",
        "after saturation the waves sharpen although the network does not generalize",
        "0.6501 at saturation, 0.9548 at the end, label noise .30",
        "extraction, final against saturation",
        "order",
        "square-cosine test accuracy at the last snapshot minus that at saturation, label noise .30",
        0.10,
        0.40,
    ),
    Claim(
        "a failed network holds the answer",
        "the waves of a noisy network of 0.23 % accuracy answer 95.5 %",
        "0.9548",
        "abstract; extraction at the end",
        "number",
        "square-cosine test accuracy at the end of training, label noise .30",
        0.925,
        0.985,
    ),
    Claim(
        "output phase is the sum of input phases",
        "φ_out = φ_a + φ_b for structured units of the clean network",
        "circular correlation 0.9993",
        "phase-sum section",
        "number",
        "circular correlation of φ_out with φ_a + φ_b over units of periodicity above 12, clean, at the end",
        0.995,
        1.0,
    ),
    Claim(
        "the phase sum survives label noise",
        "the relation holds even where the network fails to generalize",
        "at least 0.998 at every label noise",
        "abstract; phase-sum section",
        "order",
        "circular correlation of φ_out with φ_a + φ_b over all units at the last snapshot, label noise .30",
        0.90,
        1.0,
    ),
    Claim(
        "weights are squares, not cosines",
        "input weights lie nearer to a square wave than to a cosine",
        "paired t(211) = -27.0",
        "fit of the waves",
        "order",
        "mean ratio of the distances to square and cosine, minus 1, structured units, clean, at the end",
        -1.0,
        0.0,
    ),
)


def spec(scale: Scale) -> Mapping[str, Any]:
    """The paper's network (p = 97, 256 hidden units, AdamW, full batch) over label noises and seeds.

    quick: clean, .30, and random labels, 1,000 steps. paper: seven label noises and random labels so far, and
    the three on which claims rest up to 60,000 steps or 5,000 past generalization (theirs: all seven until
    50,000 steps without progress, at most 500,000).
    """
    base = {
        "modulus": 97,
        "train_fraction": 0.3,
        "task_options": {"stratify": True},
        "model": "onehot_mlp",
        "feedforward": 256,
        "batch_size": "full",
        "second_moment_every": 0,
        "log_every": 50,
        "evaluate_every": 25,
        "snapshot_every": 25,
        "steps": 1000,
        "stop_after_generalization": 5000,
    }
    decisive = [0.0, 0.3, RANDOM]
    if scale == "quick":
        return {"base": base, "grid": {"label_noise": decisive}, "seeds": 5}
    long = {"steps": 60_000, "snapshot_every": 2000, "evaluate_every": 200}
    runs: list[dict[str, Any]] = [long | {"label_noise": noise} for noise in decisive]
    runs += [{"label_noise": noise} for noise in (*decisive, 0.05, 0.1, 0.15, 0.2, 0.25)]
    return {"base": base, "runs": runs, "seeds": 5}


def measure(
    folder: Path, *, scale: Scale, released_data: Path | None, jobs: int, progress: Progress
) -> Measured:
    """The construction table, and the waves of every run at its start, at saturation and at its end."""
    homes = [home for entry in entries(spec(scale)) if _saturated(home := folder / entry.name)]
    found_rows = each(_extracted, ((home,) for home in homes), jobs=jobs)
    rows = list(progress(found_rows, description="runs", total=len(homes)))
    cells = [(units, seed) for units in UNITS for seed in range(BUILT)]
    built = np.array(list(each(_built, cells, jobs=jobs))).reshape(len(UNITS), BUILT, -1)
    found = _construction_findings(built) + _saturation_findings(rows) + _final_findings(rows, scale)
    return Measured(found, _arrays(rows, built))


def _saturated(home: Path) -> bool:
    """Whether the run is there and once had 99 % of its training labels right."""
    return (home / "run.h5").exists() and milestones(Run.open(home)).first_memorized is not None


def _extracted(home: Path) -> Extraction:
    return extraction(Run.open(home))


def _built(units: int, seed: int) -> list[float]:
    """Accuracy over all pairs of the three constructions of `units` units from random phases."""
    waves = random_waves(units, modulus=97, generator=np.random.default_rng(seed))
    return [float(right(ideal(waves, modulus=97, inputs=a, output=b)).mean()) for a, b in KINDS]


def _construction_findings(built: FloatArray) -> tuple[Finding, ...]:
    """The first three claims, from built (units, seeds, kinds)."""
    small, large = built[UNITS.index(64)], built[UNITS.index(256)]
    strict = np.mean([_strict(seed) for seed in range(5)])
    table = "; ".join(
        f"{units}: " + "/".join(f"{value:.4f}" for value in means)
        for units, means in zip(UNITS, built.mean(1), strict=True)
    )
    return (
        Finding(CLAIMS[0].name, _values(small[:, 1] - small[:, 0]), "supported", f"accuracies {table}"),
        Finding(CLAIMS[1].name, _values(large[:, 1]), "supported", "no training; only the phases are random"),
        Finding(
            CLAIMS[2].name,
            _values(small[:, 2]),
            "qualified",
            f"needs the first of equal logits as the answer; with ties as wrong it is {strict:.3f}",
        ),
    )


def _strict(seed: int) -> float:
    waves = random_waves(64, modulus=97, generator=np.random.default_rng(seed))
    return float(right(ideal(waves, modulus=97, inputs="square", output="square"), ties="wrong").mean())


def _saturation_findings(rows: Sequence[Extraction]) -> tuple[Finding, ...]:
    """What the waves answer at saturation, beside an untrained network and one of random labels."""
    short = [row for row in rows if row.length == min(r.length for r in rows)]
    clean, noisy, random = (_of(short, noise) for noise in (0.0, 0.3, RANDOM))
    start, control = _mean(short, 0, 1), _mean(random, 1, 1)
    real = f"the network itself has {_mean(clean, 1, 3):.4f} clean, {_mean(noisy, 1, 3):.4f} noisy"
    controls = f"untrained {start:.3f}, random labels {control:.3f}, chance {1 / 97:.3f}; {real}"
    early = ", ".join(f"{value:.3f} at step {step}" for step, value in _early(clean))
    holds: Interpretation = "supported" if max(start, control) < 0.03 else "not supported"
    both = [row.accuracy[1, 1] - row.accuracy[1, 0] for row in (*clean, *noisy)]
    return (
        Finding(
            CLAIMS[3].name,
            _values([row.accuracy[1, 1] for row in clean]),
            holds,
            f"{controls}; clean {early}",
        ),
        Finding(
            CLAIMS[4].name,
            _values([row.accuracy[1, 1] - row.accuracy[1, 3] for row in noisy]),
            holds,
            controls,
        ),
        Finding(CLAIMS[5].name, _values(both), holds, _kinds(clean, noisy)),
    )


def _final_findings(rows: Sequence[Extraction], scale: Scale) -> tuple[Finding, ...]:
    """What becomes of the waves until the end."""
    long = [row for row in rows if row.length == max(r.length for r in rows)]
    clean, noisy, random = (_of(long, noise) for noise in (0.0, 0.3, RANDOM))
    final = scale == "paper"
    end = f"{long[0].length} steps; network {_mean(noisy, 2, 3):.4f}; random labels {_mean(random, 2, 1):.3f}"
    low = _mean(noisy, 2, 3) < 0.05 and _mean(random, 2, 1) < 0.03
    sharper: Interpretation = "supported" if low else "qualified"
    units = [row.structured for row in clean]
    enough = final and min(units) >= FEW
    count = f"{min(units)} to {max(units)} structured units after at most {long[0].length} steps"
    null = (
        f"mean cos of the difference: noisy {_agreement(noisy, 1):.2f} at saturation, "
        f"{_agreement(noisy, 2):.2f} at the end, clean {_agreement(clean, 2):.2f}, untrained "
        f"{_agreement(long, 0):.2f}, random labels {_agreement(random, 2):.2f}; the correlation needs a mean "
        "phase, which uniform phases lack"
    )
    rule: Interpretation = (
        "supported" if _agreement(noisy, 2) > 0.5 and abs(_agreement(random, 2)) < 0.2 else "qualified"
    )
    sums = _values([row.structured_correlation if row.structured >= FEW else np.nan for row in clean])
    wave = _values([row.nearer if row.structured >= FEW else np.nan for row in clean])
    settled: Interpretation = "supported" if enough else "undecided"
    units_note = f"{count}; distance in units of half the step and of the phase, the paper states none"
    return (
        Finding(
            CLAIMS[6].name, _values([row.accuracy[2, 1] - row.accuracy[1, 1] for row in noisy]), sharper, end
        ),
        Finding(CLAIMS[7].name, _values([row.accuracy[2, 1] for row in noisy]), sharper, end, testable=final),
        Finding(CLAIMS[8].name, sums, settled, f"{count}; {null}", testable=enough),
        Finding(CLAIMS[9].name, _values([row.correlation[2] for row in noisy]), rule, null),
        Finding(CLAIMS[10].name, wave, settled, units_note, testable=enough),
    )


def _early(rows: Sequence[Extraction]) -> list[tuple[int, float]]:
    """Steps nearest to 1, 10 and 100 with the mean square-cosine accuracy there: long before saturation."""
    at = [int(np.abs(rows[0].steps - step).argmin()) for step in (1, 10, 100)]
    return [(int(rows[0].steps[i]), float(np.mean([row.ideal[i] for row in rows]))) for i in at]


def _of(rows: Sequence[Extraction], noise: float) -> list[Extraction]:
    return [row for row in rows if row.noise == noise]


def _mean(rows: Sequence[Extraction], point: int, kind: int) -> float:
    return float(np.mean([row.accuracy[point, kind] for row in rows]))


def _agreement(rows: Sequence[Extraction], point: int) -> float:
    return float(np.mean([row.agreement[point] for row in rows]))


def _kinds(*groups: Sequence[Extraction]) -> str:
    return "; ".join(
        f"label noise {rows[0].noise}: "
        + ", ".join(f"{'-'.join(kind)} {_mean(rows, 1, n):.3f}" for n, kind in enumerate(KINDS))
        for rows in groups
    )


def _values(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _arrays(rows: Sequence[Extraction], built: FloatArray) -> dict[str, NDArray[Any]]:
    """What the figure shows: the table, and every run's curves, made equally long with their last value."""
    longest = max(len(row.steps) for row in rows)
    padded = {
        name: np.array(
            [np.pad(getattr(row, name), (0, longest - len(row.steps)), mode="edge") for row in rows]
        )
        for name in ("steps", "ideal", "real")
    }
    return padded | {
        "noise": np.array([row.noise for row in rows]),
        "accuracy": np.array([row.accuracy for row in rows]),
        "correlation": np.array([row.correlation for row in rows]),
        "agreement": np.array([row.agreement for row in rows]),
        "units": np.array(UNITS),
        "built": built,
    }
