"""Low-dimensional trajectories and transverse commutators: Xu 2026, arXiv 2602.16746."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runs.store import Run
from ...runs.sweep import Entry, entries
from ..claim import Finding, Interpretation, Scale, interval
from ..lead_time import Course, course, lead_times
from ..parallel import each
from ..rows import Progress
from ..study import Measured
from ._manifold_claims import CLAIMS
from ._manifold_rows import ARMS, first_components, generalized, initial_defects, intervened, orthogonality

TITLE = "Low-dimensional and transversely curved optimization dynamics in grokking"
SOURCE = "Xu 2026, arXiv 2602.16746"

SEEDS = 5
Array = NDArray[np.float64]
_PAPER_MODEL = {
    "layers": 2,
    "feedforward": 256,
    "betas": [0.9, 0.98],
    "clip": 1.0,
    "model_options": {"norm_first": True, "readout": "first", "position_std": 0.08838834764831845},
}
_QUICK: Mapping[str, Any] = {
    "at": 150,
    "budget": 1500,
    "rates": (0.0015, 0.0025, 0.004, 0.0065),
    "rate": 0.004,
}
_PAPER: Mapping[str, Any] = {"at": 500, "budget": 15_000, "rates": (1e-4, 3e-4, 1e-3, 3e-3), "rate": 1e-3}
_OPERATIONS = ("add", "sub", "mul")
_RULES = ("published_float32", "defect", "curvature", "train_loss / 10", "gradient_norm / 10")


def spec(scale: Scale) -> Mapping[str, Any]:
    """The runs: operations at one learning rate, addition at several, random labels, and untrained models.

    quick: one layer of width 64 modulo 29, where generalization takes hundreds of steps. paper: the fast
    regime of the paper, four learning rates.
    """
    kind = _QUICK if scale == "quick" else _PAPER
    small = {"modulus": 29, "train_fraction": 0.6, "width": 64, "feedforward": 128, "batch_size": 128}
    often = {"log_every": 25, "evaluate_every": 25, "snapshot_every": 25, "stop_after_generalization": 100}
    seldom = {"log_every": 100, "evaluate_every": 100, "snapshot_every": 100}
    base = {**small, **often, "steps": 4000} if scale == "quick" else {**_PAPER_MODEL, **seldom}
    base |= {"second_moment_every": 100, "state_at": [kind["at"]]}
    base |= {} if scale == "quick" else {"steps": 200_000, "stop_after_generalization": 1000}
    operations = [{"task": task, "lr": kind["rate"]} for task in _OPERATIONS]
    rates = [{"task": "add", "lr": rate} for rate in kind["rates"] if rate != kind["rate"]]
    control = {"task": "random_labels", "lr": kind["rate"], "steps": 1000 if scale == "quick" else 10_000}
    untrained = {
        **_PAPER_MODEL, "task": "add", "modulus": 97, "train_fraction": 0.5, "width": 128, "batch_size": 512,
        "lr": 1e-3, "steps": 1, "state_at": [],
    }  # fmt: skip
    return {
        "base": base,
        "runs": [*operations, *rates, control, untrained],
        "seeds": SEEDS,
        "first_seed": 8000,
    }


def measure(
    folder: Path, *, scale: Scale, released_data: Path | None, jobs: int, progress: Progress
) -> Measured:
    """Components, defects, onsets, orthogonality, and branches with interventions from one state."""
    kind = _QUICK if scale == "quick" else _PAPER
    groups = _grouped(folder, entries(spec(scale)))
    parents = groups["add", kind["rate"]]
    arms = _arms(parents, kind, folder / "arms", jobs, progress)
    before = np.array([generalized(Run.open(path), 0.98) for path in parents])
    trained = [(path,) for task in _OPERATIONS for path in groups[task, kind["rate"]]]
    components = np.array(list(each(first_components, trained, jobs=jobs)))
    components = components.reshape(len(_OPERATIONS), len(parents), -1)
    untrained = [(path,) for path in groups["untrained", 1e-3]]
    defects = np.array(list(each(initial_defects, untrained, jobs=jobs)))
    beside = zip(parents, [*parents[1:], parents[0]], strict=True)
    energy = np.array(list(each(orthogonality, beside, jobs=jobs)))
    onsets, onset_arrays = _onsets(groups, kind, jobs, progress)
    findings = (
        _component_finding(components),
        _defect_finding(defects),
        *onsets,
        _orthogonal_finding(energy),
        *_arm_findings(arms, before),
    )
    arrays = {"components": components, "defects": defects, "energy": energy, "before": before}
    return Measured(
        findings,
        arrays | onset_arrays | {"arms": np.array(list(arms.values())), "names": np.array(list(arms))},
    )


def _grouped(folder: Path, runs: Sequence[Entry]) -> dict[tuple[str, Any], list[Path]]:
    """Folders of finished runs by task (or `untrained`) and learning rate, in the order of their seeds."""
    found: dict[tuple[str, Any], list[Path]] = {}
    for entry in runs:
        path = folder / entry.name
        if (path / "run.h5").exists() and Run.open(path).finished:
            task = "untrained" if entry.config.steps == 1 else entry.config.task
            found.setdefault((task, entry.config.lr), []).append(path)
    return found


def _arms(
    parents: Sequence[Path], kind: Mapping[str, Any], home: Path, jobs: int, progress: Progress
) -> dict[str, list[tuple[float, float]]]:
    """Generalization step and dose of every arm, one for each parent."""
    calls = [(path, name, kind["at"], kind["budget"], home) for name in ARMS for path in parents]
    found = list(progress(each(intervened, calls, jobs=jobs), description="arms", total=len(calls)))
    return {name: found[k * len(parents) : (k + 1) * len(parents)] for k, name in enumerate(ARMS)}


def _onsets(
    groups: Mapping[tuple[str, Any], Sequence[Path]], kind: Mapping[str, Any], jobs: int, progress: Progress
) -> tuple[tuple[Finding, Finding], dict[str, NDArray[Any]]]:
    """Onset before generalization, and the power law over learning rates, each by seed."""
    settings = [one for one in groups if one[0] in ("add", "random_labels")]
    paths = [path for one in settings for path in groups[one]]
    rows = each(_course, ((path,) for path in paths), jobs=jobs)
    courses = dict(zip(paths, progress(rows, description="onsets", total=len(paths)), strict=True))
    trained = [[courses[path] for path in groups[one]] for one in settings if one[0] == "add"]
    table = np.array(
        [[[one.onsets[rule].step for rule in _RULES] + [one.generalized] for one in row] for row in trained]
    )  # (settings, seeds, rules + 1)
    control = np.array(
        [courses[path].onsets[_RULES[0]].step for path in groups["random_labels", kind["rate"]]]
    )
    return (_onset_finding(table, control), _lead_finding(trained)), {"onsets": table, "control": control}


def _onset_finding(table: Array, control: Array) -> Finding:
    """From onsets and generalization (settings, seeds, rules + 1), and onsets on random labels."""
    leads = table[..., :-1] < table[..., -1:]
    alarms = float(np.isfinite(control).mean())
    trivial = float(leads[..., 3:].any(axis=-1).mean())
    shares = ", ".join(f"{rule} {leads[..., k].mean():.2f}" for k, rule in enumerate(_RULES))
    return Finding(
        CLAIMS[2].name,
        tuple(leads[..., 0].mean(axis=0).tolist()),
        "not supported" if alarms >= 0.5 or trivial >= leads[..., 0].mean() else "supported",
        f"share of runs that lead by rule: {shares}; the published rule sounds in {alarms:.2f} of the runs "
        "on random labels too, which never generalize",
    )


def _lead_finding(trained: Sequence[Sequence[Course]]) -> Finding:
    """From courses by setting and seed: a power law for each seed."""
    laws = [lead_times([row[seed] for row in trained], draws=1)[0].law for seed in range(SEEDS)]
    known = [law for law in laws if law is not None]
    exponents = tuple(np.nan if law is None else law.exponent for law in laws)
    nulls = [law.null_exponent for law in known if np.isfinite(law.null_exponent)]
    excess = np.array([law.exponent - law.null_exponent for law in known])
    slope = np.mean([law.onset_slope for law in known]) if known else np.nan
    return Finding(
        CLAIMS[3].name,
        exponents,
        "undecided" if not known else "supported" if interval(excess.tolist())[0] > 0 else "not supported",
        f"leads t − c with one constant onset c have exponent {np.mean(nulls) if nulls else np.nan:.2f} by "
        f"algebra; slope of log onset on log t {slope:.2f} (0: constant, 1: a fixed fraction)",
    )


def _course(path: Path) -> Course:
    return course(Run.open(path))


def _component_finding(components: Array) -> Finding:
    """From components (operations, seeds, 4)."""
    explained, walk = components[..., 0], components[..., 1]
    low, _ = interval((explained - walk).mean(axis=0).tolist())
    decay, without = components[..., 3].mean(), components[..., 2].mean()
    by_operation = ", ".join(
        f"{task} {value:.3f}" for task, value in zip(_OPERATIONS, explained.mean(axis=1), strict=True)
    )
    verdict: Interpretation = "not supported" if low < 0.05 else "qualified" if decay > 0.3 else "supported"
    return Finding(
        CLAIMS[0].name,
        tuple(explained.mean(axis=0).tolist()),
        verdict,
        f"{by_operation}; a random walk with the same step lengths has {walk.mean():.3f}; the decay of the "
        f"initial weights alone makes {decay:.2f} of all variance, and without it the first component of all "
        f"parameters explains {without:.2f}",
    )


def _defect_finding(defects: Array) -> Finding:
    """From (seeds, 2): float32 and exact."""
    ratio = (defects[:, 0] / defects[:, 1]).mean()
    return Finding(
        CLAIMS[1].name,
        tuple(defects[:, 0].tolist()),
        "not supported" if ratio > 2 else "supported",
        f"the exact defect is {defects[:, 1].mean():.3f}: the float32 value is {ratio:.1f} times as large, "
        "rounding of two subtracted parameter vectors",
    )


def _orthogonal_finding(energy: Array) -> Finding:
    """From (seeds, points, 4)."""
    inside, null, other = np.median(energy[..., 1:], axis=(0, 1))
    low, high = interval(np.log(energy[..., 1] / energy[..., 2]).mean(axis=1).tolist())
    verdict: Interpretation = "qualified" if low > 0 or high < 0 else "not supported"
    return Finding(
        CLAIMS[4].name,
        tuple(energy[..., 0].mean(axis=1).tolist()),
        verdict,
        "so has any vector in any few of many dimensions; energy inside over k/P is "
        f"{inside:.2f}, {null:.2f} for random directions in the same matrices, {other:.2f} in the directions "
        f"of another seed; over the matched null {np.exp(low):.2f} to {np.exp(high):.2f}",
    )


def _arm_findings(
    arms: Mapping[str, Sequence[tuple[float, float]]], before: Array
) -> tuple[Finding, Finding, Finding]:
    table = {name: np.array(rows) for name, rows in arms.items()}
    reached = {name: np.isfinite(rows[:, 0]) for name, rows in table.items()}
    change = {name: rows[:, 0] / before - 1 for name, rows in table.items()}
    dose = {name: f"{rows[:, 1].mean():.2f}" for name, rows in table.items()}
    counts = ", ".join(
        f"{name}: {int(reached[name].sum())} of {len(before)}" for name in arms if name.startswith("s = 1")
    )
    matched = "s = 1, random in the same matrices"
    same = reached[matched].mean() <= reached["s = 1"].mean()
    free = reached["s = 1, in the matrices only"].mean() > 0.5
    prevented = Finding(
        CLAIMS[5].name,
        tuple(reached["s = 1"].astype(float).tolist()),
        "not supported" if same or free else "supported",
        f"generalize: {counts}. Strength 1 takes the whole gradient from everything but a few directions; "
        f"a step is {dose['s = 1']} times as long as an undisturbed one ({dose[matched]} for random ones)",
    )
    shown = ("s = .75", "s = .75, random directions", "update, s = .75", "other batches")
    words = ", ".join(f"{name} {_percent(change[name])} at steps of {dose[name]}" for name in shown)
    gap = change["s = .75"] - change["s = .75, random directions"]
    low, high = interval(gap.tolist())
    delayed = Finding(
        CLAIMS[6].name,
        tuple(change["s = .75"].tolist()),
        "supported" if low > 0 else "not supported",
        f"{words}; trajectory minus random directions [{low:+.0%}, {high:+.0%}]",
    )
    kicks = ", ".join(
        f"{name} {_percent(change[name])}" for name in ("kick", "kick, random", "other batches")
    )
    kicked = Finding(
        CLAIMS[7].name,
        tuple(change["kick"].tolist()),
        "qualified",
        f"{kicks}. So short a kick is as long as a few optimizer steps: nothing follows about directions",
    )
    return prevented, delayed, kicked


def _percent(values: Array) -> str:
    known = values[np.isfinite(values)]
    return f"{known.mean():+.0%} (n = {known.size})" if known.size else "never"
