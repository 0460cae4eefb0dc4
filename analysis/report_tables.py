"""The tables of the report: evidence per analysis, and runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs.milestones import milestones
from .found import Found

if TYPE_CHECKING:
    from ..runs.store import Run

Columns = dict[str, list[Any]]
# Which fields of a result stand in its table, and under which header; `field.k` is column k of it.
SHOWN: dict[str, dict[str, str]] = {
    "commutator": {
        "defect": "D",
        "float32_defect": "D in float32",
        "defect_floor": "rounding in it",
        "below_floor": "pairs below it",
        "curvature": "C₁",
        "scale_free": "C₀",
        "curvature_proper": "‖Hg‖/‖g‖",
        "sqrt_b_raw": "√b raw",
        "signal_to_noise": "signal/noise",
        "gradient_norm": "‖g‖",
        "undefined": "undefined",
    },
    "spectrum": {
        "largest.0": "top λ(H)",
        "residuals.0": "its residual",
        "extremal.0": "proven end",
        "smallest.0": "bottom λ(H)",
        "trace": "trace",
        "trace_stderr": "± of it",
        "scale_aware": "top λ(DHD)",
        "gauss_newton": "top λ(G)",
        "preconditioned": "top λ(P⁻¹H)",
        "gate": "gate",
        "roundoff": "roundoff",
        "matvecs": "products",
    },
    "llc": {
        "llc": "published λ̂",
        "stderr": "± of it",
        "tilted": "tilted λ̂",
        "tilted_stderr": "± of it ",
        "drift": "drift",
        "excess": "excess",
        "rhat": "R-hat",
        "ess": "ESS",
        "verdict": "verdict",
        "reason": "reason",
    },
    "surface": {"loss": "loss", "plane_loss": "on the plane", "residual": "distance from it"},
}


def evidence(found: Found) -> Iterator[tuple[str, str, Columns]]:
    """(title, caption, columns) of every table that the results of a run make."""
    for (kind, name), result in found.results.items():
        title = kind.capitalize() + ("" if name is None else f" ({name})")
        if kind == "trajectory":
            yield title, "Components against their nulls", _components(result)
        elif kind == "delay":
            yield (
                title,
                f"Predictors; delay {result.delay if result.delay else 'unknown'}",
                _predictors(result),
            )
        elif kind == "weights":
            yield title, "Weight matrices, first and last snapshot", matrices(result)
        elif hasattr(result, "steps"):
            yield title, f"{title} along the run", along(kind, result)


def matrices(result: Any) -> Columns:
    """One row per weight matrix: its measures at the first and the last snapshot."""
    columns: Columns = {"matrix": list(result.matrices)}
    measures = {
        "norm": "norm",
        "spectral_norm": "spectral",
        "stable_rank": "stable rank",
        "effective_rank": "effective rank",
    }
    for name, header in measures.items():
        values = getattr(result, name)
        columns |= {f"{header}, start": values[0].tolist(), f"{header}, end": values[-1].tolist()}
    return columns | {"stable rank, random": result.random_stable_rank.tolist()}


def along(kind: str, result: Any) -> Columns:
    """One row per snapshot: the fields of SHOWN, or of an unknown kind all that have a value per snapshot."""
    count = len(result.steps)
    columns: Columns = {"step": result.steps.tolist()}
    wanted = SHOWN.get(kind) or {field.name: field.name.replace("_", " ") for field in fields(result)}
    for spelled, header in wanted.items():
        name, _, column = spelled.partition(".")
        value = getattr(result, name, None)
        if isinstance(value, np.ndarray) and column:
            value = value[:, int(column)]
        if isinstance(value, np.ndarray | tuple) and np.shape(value) == (count,) and name != "steps":
            columns[header] = list(value)
    return columns


def compared(runs: Mapping[str, tuple[Run, Mapping[str, Any]]]) -> Columns:
    """One row per run: milestones, what each analysis says at its end, and the settings that differ."""
    rows = {name: _facts(run, results) for name, (run, results) in runs.items()}
    settings = {name: {} if run.config is None else asdict(run.config) for name, (run, _) in runs.items()}
    every = dict.fromkeys(key for setting in settings.values() for key in setting)
    differing = [key for key in every if len({str(s.get(key)) for s in settings.values()}) > 1]
    for name, row in rows.items():
        row |= {key: _plain(settings[name].get(key)) for key in differing}
    headers = dict.fromkeys(header for row in rows.values() for header in row)
    columns = {header: [row.get(header) for row in rows.values()] for header in headers}
    return {"run": list(rows)} | columns


def _facts(run: Run, results: Mapping[str, Any]) -> dict[str, Any]:
    found = milestones(run)
    row: dict[str, Any] = {
        "memorized": found.memorized and found.memorized.step,
        "generalized": found.generalized and found.generalized.step,
        "delay": found.delay,
        "snapshots": len(run.steps),
    }
    if "delay" in results:
        row |= {"predicted": float(results["delay"].predicted[0]), "prediction": results["delay"].verdict}
    if "spectrum" in results:
        row["top λ(H), end"] = float(results["spectrum"].largest[-1, 0])
    if "llc" in results:
        row |= {"λ̂, end": float(results["llc"].tilted[-1]), "λ̂ verdict": str(results["llc"].verdict[-1])}
    if "commutator" in results:
        row["C₁, greatest"] = float(np.nanmax(results["commutator"].curvature))
    if "trajectory" in results:
        curve = results["trajectory"]
        row["component 1 over walk"] = float(curve.explained_variance[0] - curve.random_walk_null[0])
    return row


def _components(result: Any) -> Columns:
    return {
        "component": list(range(1, len(result.explained_variance) + 1)),
        "explained": list(result.explained_variance),
        "random walk": list(result.random_walk_null),
        "difference": list(result.explained_variance - result.random_walk_null),
        "Ornstein-Uhlenbeck": list(result.ornstein_uhlenbeck_null),
        "without decay": list(result.without_decay),
        "cosine with the start": list(result.initial_cosine),
    }


def _predictors(result: Any) -> Columns:
    return {
        "predictor": list(result.predictors),
        "predicted delay": list(result.predicted),
        "ln(predicted/actual)": list(result.errors),
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)
