"""`grokscope analyze spectrum`: extreme curvature with its evidence, and the spectral gates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from numpy.typing import NDArray

from ...runs.store import Run
from ..edge import with_moments
from ..objectives import load_objective
from ..parallel import default_jobs
from ..result import save
from ..snapshots import at_most
from ..spectrum import SpectrumCurve, spectrum_along
from .bar import progress
from .output import print_json, print_table


def command(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    snapshots: int = 10,
    steps: tuple[int, ...] = (),
    largest: int = 3,
    smallest: int = 1,
    tolerance: float = 1e-2,
    max_matvecs: int = 20,
    probes: int = 4,
    batches: int = 8,
    batch_size: int | None = None,
    matrices: tuple[str, ...] = ("heaviest",),
    density_probes: int = 2,
    density_nodes: int = 20,
    dtype: Literal["float32", "float64"] | None = None,
    warm: bool = False,
    seed: int = 0,
    objective: str | None = None,
    jobs: int | None = None,
    name: str | None = None,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Extreme Hessian eigenvalues of the full training loss along a run, trace, density and spectral gates.

    Args:
        run: folder of the run.
        snapshots: number of snapshots, spread over those with second moments.
        steps: snapshots at these steps instead.
        largest: eigenvalues at the upper end.
        smallest: eigenvalues at the lower end.
        tolerance: of a residual relative to its eigenvalue, and of an end relative to the spectrum's width.
        max_matvecs: products per eigenvalue problem; a pair that needed more says so. The lower end is dense
            and takes hundreds; until then its value and its edge bracket it.
        probes: random vectors for the trace.
        batches: minibatches for the batch sharpness.
        batch_size: samples per minibatch; by default the run's.
        matrices: weight matrices with a sharpness of their own, by group or pattern; heaviest, all or none.
        density_probes: random vectors for each spectral density; 0 for no densities.
        density_nodes: products per vector.
        dtype: precision; by default the run's.
        warm: mix the pairs of the snapshot before into the random starts; it seldom saves products.
        seed: of the random vectors and batches.
        objective: module:function that returns the loss of a run without configuration.
        jobs: processes of one thread each; by default one per core, at most 4, and one for a warm start.
        name: name of the result, to keep several.
        out: folder of the result; by default the run's.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    opened = Run.open(run)
    chosen = at_most(opened, snapshots, steps=steps)
    if not steps:
        chosen = with_moments(opened, chosen)
    options = {
        "largest": largest,
        "smallest": smallest,
        "tolerance": tolerance,
        "max_matvecs": max_matvecs,
        "probes": probes,
        "batches": batches,
        "batch_size": batch_size,
        "warm": warm,
        "seed": seed,
        "dtype": dtype,
    }
    curve = spectrum_along(
        opened,
        objective=None if objective is None else load_objective(objective, opened),
        snapshots=chosen,
        matrices=_matrices(matrices),
        density_probes=density_probes,
        density_nodes=density_nodes,
        name=name,
        directory=out,
        progress=progress(quiet=quiet),
        jobs=(1 if warm else default_jobs()) if jobs is None else jobs,
        **options,
    )
    path = save(curve, opened, name=name, directory=out, options=options)
    if json:
        print_json(curve)
    else:
        _show(curve, path)
    return 0


def _matrices(words: tuple[str, ...]) -> str | tuple[str, ...]:
    if words in (("heaviest",), ("all",)):
        return words[0]
    return () if words == ("none",) else words


def _show(curve: SpectrumCurve, path: Path) -> None:
    print(
        f"{len(curve.steps)} snapshots; Hessian of the mean loss over {curve.num_samples} {curve.data}, "
        "without any weight-decay term\n"
        "residual: an eigenvalue lies that near; edge: none lies further out, with 95 % confidence\n"
        "converged or not, the outermost eigenvalue lies between a value and its edge\n"
        f"Kuczyński-Woźniakowski gap at most {curve.bound.max():.2g} of the spectrum's width\n"
        f"saved as {path}"
    )
    _show_ends(curve)
    _show_sharpness(curve)
    _show_gates(curve)


def _show_ends(curve: SpectrumCurve) -> None:
    k = curve.largest.shape[1]
    columns: dict[str, list[object]] = {"step": curve.steps.tolist()}
    for label, values, at in (("largest", curve.largest, 0), ("smallest", curve.smallest, k)):
        columns |= {
            label: list(values[:, 0]),
            f"residual {label}": list(curve.residuals[:, at]),
            f"edge {label}": list(curve.edges[:, at]),
            f"converged {label}": list(curve.converged[:, at]),
            f"extremal {label}": list(curve.extremal[:, at]),
        }
    more = {
        "roundoff": list(curve.roundoff),
        "trace": list(curve.trace),
        "± trace": list(curve.trace_stderr),
        "products": curve.matvecs.tolist(),
    }
    print_table(columns | more)


def _show_sharpness(curve: SpectrumCurve) -> None:
    named: dict[str, list[object]] = {}
    for m, name in enumerate(curve.matrices):
        named[f"‖W‖²λ {name}"] = list(curve.matrix_scale_aware[:, m])
        named[f"edge ‖W‖²λ {name}"] = list(curve.matrix_scale_aware_edge[:, m])
    print_table(
        {
            "step": curve.steps.tolist(),
            "λ(DHD)": list(curve.scale_aware),
            "edge λ(DHD)": list(curve.scale_aware_edge),
            **named,
            "λ(G)": list(curve.gauss_newton),
            "uᵀGu/λ(H)": list(curve.gauss_newton_along / curve.largest[:, 0]),
            "batch": list(curve.batch_sharpness),
            "± batch": list(curve.batch_sharpness_stderr),
            "λ(P⁻¹H)": list(curve.preconditioned),
            "edge λ(P⁻¹H)": list(curve.preconditioned_edge),
            "P⁻¹ batch": list(curve.preconditioned_batch_sharpness),
            "clipped": list(curve.clipped),
        },
        title="sharpness: scale-aware, Gauss-Newton, of batches, preconditioned",
    )


def _show_gates(curve: SpectrumCurve) -> None:
    ratios = {name: list(curve.gates[:, g]) for g, name in enumerate(curve.gate_names)}
    print_table(
        {"step": curve.steps.tolist()} | ratios,
        title=f"gates, curvature over ceiling; primary: {curve.edge_rule}",
    )
    print_table(
        {
            "gate": curve.gate_names,
            "verdict": curve.gate_verdicts,
            "closed at": _or_none(curve.gate_closed, curve.gate_closed < 0),
            "open at": _or_none(curve.gate_opened, curve.gate_opened < 0),
            "after memorization": _or_none(curve.since_memorized, np.isnan(curve.since_memorized)),
            "before generalization": _or_none(curve.before_generalized, np.isnan(curve.before_generalized)),
        },
        title="opening of the gates (open below 1 at two snapshots; all but the first are exploratory)",
    )


def _or_none(values: NDArray[np.generic], missing: NDArray[np.bool_]) -> list[int | None]:
    return [
        None if gone else int(value) for value, gone in zip(values.tolist(), missing.tolist(), strict=True)
    ]
