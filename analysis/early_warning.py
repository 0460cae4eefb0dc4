"""Signals of runs at landmarks, from every analysis and from the user, for `signals.score_signals`."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..runs.named import load as load_function
from .ranking import wins
from .result import StaleResult, load, result_path, save
from .signals import BASELINES, LANDMARKS, Outcome, Reading, metric_readings, outcome, values_at

if TYPE_CHECKING:
    from ..runs.store import Run

Array = NDArray[np.float64]
NAME = "landmarks"  # of the results that are made here
METRICS = ("update_norm", "squared_norm.embedding", "root_second_moment.mean")
_NOT_THE_CELL = (
    "task",
    "steps",
    "stop_after_generalization",
    "seed",
    "init_seed",
    "split_seed",
    "batch_seed",
)
_EMPTY = Reading(np.zeros(0, dtype=np.int64), np.zeros(0))


class Source(NamedTuple):
    """How an analysis is made at some snapshots of a run, and its signals, which know nothing later."""

    result: Callable[[], Any]
    measure: Callable[[Run, NDArray[np.int64]], Any]
    signals: Mapping[str, Callable[[Any], Array]]


def landmark_snapshots(run: Run, landmarks: Sequence[float] = LANDMARKS) -> NDArray[np.int64]:
    """Indices of the last snapshot at or before each landmark of a run; none if it never memorized."""
    found = outcome(run)
    steps = np.array([found.landmark(multiple) for multiple in landmarks])
    steps = steps[np.isfinite(steps)]
    return np.unique(np.searchsorted(run.steps, steps, side="right") - 1).astype(np.int64)


def analysis_readings(run: Run, kind: str) -> dict[str, Reading]:
    """The signals of one analysis at a run's landmarks, measured unless they are kept beside the run.

    Raises:
        ValueError: no such analysis.
    """
    if kind not in SOURCES:
        raise ValueError(f"analyses={kind!r} gives no signals; there are {', '.join(SOURCES)}")
    source, rows = SOURCES[kind], landmark_snapshots(run)
    if not len(rows):
        return {f"{kind}: {name}": _EMPTY for name in source.signals}
    if kind == "trajectory":  # of the past of each landmark, so it is no single result
        parts = [source.measure(run, np.arange(row + 1)) for row in rows]
        found = {n: np.array([float(f(part)[0]) for part in parts]) for n, f in source.signals.items()}
        return {f"{kind}: {name}": Reading(run.steps[rows], values) for name, values in found.items()}
    result = _kept(source.result(), run, rows)
    if result is None:
        result = source.measure(run, rows)
        save(result, run, name=NAME)
    return {f"{kind}: {name}": Reading(result.steps, f(result)) for name, f in source.signals.items()}


def user_reading(run: Run, signal: str, folder: Path) -> Reading:
    """A user's signal of a run: `module:function`, or a folder of one file per run.

    The function gets the Run and returns (steps (n,), values (n,)). In the folder, `<run>.csv` has a
    header and the columns step and value, `<run>.npz` the arrays steps and values; <run> is the run's
    folder below `folder`, with `/` as `_`.

    Raises:
        ValueError: there is no such function or file, or it gives no increasing steps with one value each.
    """
    name = "_".join(Path(run.path).relative_to(folder).parts)
    if ":" in signal:
        steps, values = load_function(signal, field="signal", trust=True)(run)
    else:
        steps, values = _from_file(Path(signal), name)
    reading = Reading(np.asarray(steps, dtype=np.int64), np.asarray(values, dtype=np.float64))
    if reading.steps.shape != reading.values.shape or reading.steps.ndim != 1:
        raise ValueError(f"signal={signal!r} of {name}: steps and values must be (n,) each")
    if (np.diff(reading.steps) <= 0).any():
        raise ValueError(f"signal={signal!r} of {name}: its steps must increase")
    return reading


def base_readings(run: Run) -> dict[str, Reading]:
    """Train loss, gradient norm, squared norm, and the further metrics that the run logged."""
    more = [name for name in METRICS if name in run.metrics]
    return metric_readings(run, (*BASELINES, *more))


def setting(run: Run) -> str:
    """What a run shares with its random-label controls: its configuration less task, length and seeds."""
    fields = {} if run.config is None else asdict(run.config)
    return json.dumps({k: v for k, v in fields.items() if k not in _NOT_THE_CELL}, sort_keys=True)


def against_controls(
    readings: Sequence[Reading],
    outcomes: Sequence[Outcome],
    settings: Sequence[str],
    controls: Sequence[Reading],
    control_outcomes: Sequence[Outcome],
    control_settings: Sequence[str],
    landmarks: Sequence[float] = LANDMARKS,
) -> Array:
    """AUC (L,) of a signal at landmarks between runs that generalize and controls of the same setting.

    Read with care: controls differ in their task, so that a signal may tell the tasks apart instead.
    """
    found = []
    for multiple in landmarks:
        values, others = (
            values_at(r, np.array([one.landmark(multiple) for one in o]))
            for r, o in ((readings, outcomes), (controls, control_outcomes))
        )
        pairs = [
            (i, len(values) + j)
            for i, one in enumerate(outcomes)
            for j in range(len(others))
            if one.generalized is not None
            and one.at_risk(one.landmark(multiple))
            and settings[i] == control_settings[j]
            and np.isfinite(values[i] + others[j])
        ]
        both = np.concatenate([values, others])
        found.append(float(wins(both, np.array(pairs)).mean()) if pairs else np.nan)
    return np.array(found)


def _kept(cls: Any, run: Run, rows: NDArray[np.int64]) -> Any:
    """The result that is kept beside a run if it is of these snapshots."""
    if not result_path(cls.KIND, run, name=NAME).exists():
        return None
    try:
        found = load(cls, run, name=NAME)
    except StaleResult:
        return None
    return found if np.array_equal(found.steps, run.steps[rows]) else None


def _from_file(folder: Path, name: str) -> tuple[Any, Any]:
    if (folder / f"{name}.npz").exists():
        with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
            return stored["steps"], stored["values"]
    path = folder / f"{name}.csv"
    if not path.exists():
        raise ValueError(f"signal={str(folder)!r} has neither {name}.csv nor {name}.npz; give one per run")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    try:
        return [int(row["step"]) for row in rows], [float(row["value"]) for row in rows]
    except (KeyError, ValueError) as error:
        raise ValueError(f"signal={str(path)!r}: its columns must be step and value ({error})") from None


def _commutator_result() -> Any:
    from .commutator import CommutatorCurve

    return CommutatorCurve


def _commutator(run: Run, rows: NDArray[np.int64]) -> Any:
    from .commutator import commutator_along

    return commutator_along(run, snapshots=rows, split_pairs=1, name=NAME)


def _spectrum_result() -> Any:
    from .spectrum import SpectrumCurve

    return SpectrumCurve


def _spectrum(run: Run, rows: NDArray[np.int64]) -> Any:
    from .spectrum import spectrum_along

    options: dict[str, Any] = {"largest": 1, "density_nodes": 0, "density_probes": 0, "matrices": ()}
    return spectrum_along(run, snapshots=rows, name=NAME, **options)


def _trajectory_result() -> Any:
    from .trajectory import TrajectoryCurve

    return TrajectoryCurve


def _trajectory(run: Run, rows: NDArray[np.int64]) -> Any:
    from .trajectory import trajectory_along

    return trajectory_along(run, snapshots=rows, rank=1, windows=1)


def _weights_result() -> Any:
    from .weights import WeightsCurve

    return WeightsCurve


def _weights(run: Run, rows: NDArray[np.int64]) -> Any:
    from .weights import weights_along

    return weights_along(run, snapshots=rows, name=NAME)


def _progress_result() -> Any:
    from .progress import ProgressCurve

    return ProgressCurve


def _progress(run: Run, rows: NDArray[np.int64]) -> Any:
    from .progress import progress_along

    return progress_along(run, snapshots=rows, name=NAME)


def _columns(*names: str) -> dict[str, Callable[[Any], Array]]:
    return {name: lambda result, name=name: getattr(result, name) for name in names}  # type: ignore[misc]


SOURCES: dict[str, Source] = {
    "commutator": Source(
        _commutator_result,
        _commutator,
        _columns(
            "raw",
            "defect",
            "curvature",
            "scale_free",
            "float32_defect",
            "curvature_proper",
            "signal_to_noise",
            "batch_cosine",
            "optimizer_relative",
        )
        | {
            f"inside {basis}": lambda c, k=k: c.inside_fraction[:, k] / c.inside_null[:, k]
            for k, basis in ((1, "past"), (2, "weight"))
        },
    ),
    "spectrum": Source(
        _spectrum_result,
        _spectrum,
        _columns("scale_aware", "gauss_newton", "trace", "batch_sharpness", "gate")
        | {"largest": lambda s: s.largest[:, 0], "smallest": lambda s: s.smallest[:, 0]},
    ),
    "trajectory": Source(
        _trajectory_result,
        _trajectory,
        {
            "first component over its null": lambda t: t.explained_variance - t.random_walk_null,
            "first component without decay": lambda t: t.without_decay,
        },
    ),
    "weights": Source(
        _weights_result,
        _weights,
        {
            "effective rank": lambda w: w.effective_rank.mean(axis=1),
            "spectral norm": lambda w: w.spectral_norm.max(axis=1),
        },
    ),
    # Only what doesn't need the key frequencies, which are those of the end.
    "progress": Source(
        _progress_result,
        _progress,
        _columns("participation", "wave_share", "commutativity")
        | {"test_loss (sees test labels)": lambda p: p.test_loss},
    ),
}
"""The analyses that give signals."""
