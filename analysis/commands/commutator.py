"""`grokscope analyze commutator`: exact brackets beside the published value, its noise and the nulls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from numpy.typing import NDArray

from ...runs.store import Run
from ..commutator import CommutatorCurve, commutator_along
from ..objectives import load_objective
from ..parallel import default_jobs
from ..result import save
from ..snapshots import at_most
from .bar import progress
from .output import print_json, print_table


def command(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    snapshots: int = 16,
    steps: tuple[int, ...] = (),
    pairs: int = 5,
    split_pairs: int = 2,
    batch_size: int | None = None,
    step_size: float = 1e-3,
    adaptive: bool = False,
    rank: int = 8,
    singular: int = 3,
    factor: float | None = None,
    reference: Path | None = None,
    objective: str | None = None,
    jobs: int | None = None,
    name: str | None = None,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """How far minibatch steps fail to commute along a run: exact, as published, and what chance gives.

    Args:
        run: folder of the run.
        snapshots: number of snapshots, spread over the run.
        steps: snapshots at these steps instead.
        pairs: pairs of minibatches per snapshot.
        split_pairs: of these, so many are split into gradient noise and curvature noise.
        batch_size: samples per minibatch; by default the run's.
        step_size: of the published finite step.
        adaptive: lengthen that step where gradients are tiny, as published for SCAN and Dyck.
        rank: directions of the trajectory subspaces.
        singular: singular pairs per weight matrix of the other subspaces.
        factor: an exact value sets in when it exceeds so many times its first one for 100 steps; by default
            the value that one of 20 runs on random labels exceeds.
        reference: a run of another seed, whose weight directions serve as a null.
        objective: module:function that returns the loss of a run without configuration.
        jobs: processes of one thread each; by default one per core, at most 4.
        name: name of the result, to keep several.
        out: folder of the result; by default the run's.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    opened = Run.open(run)
    chosen = at_most(opened, snapshots, steps=steps)
    curve = commutator_along(
        opened,
        objective=None if objective is None else load_objective(objective, opened),
        snapshots=chosen,
        pairs=pairs,
        split_pairs=split_pairs,
        batch_size=batch_size,
        step_size=step_size,
        adaptive=adaptive,
        rank=rank,
        singular=singular,
        factor=factor,
        reference=None if reference is None else Run.open(reference),
        name=name,
        directory=out,
        progress=progress(quiet=quiet),
        jobs=default_jobs() if jobs is None else jobs,
    )
    options = {
        "pairs": pairs,
        "split_pairs": split_pairs,
        "adaptive": adaptive,
        "rank": rank,
        "singular": singular,
        "factor": factor,
        "reference": None if reference is None else str(reference),
    }
    path = save(curve, opened, name=name, directory=out, options=options)
    if json:
        print_json(curve)
    else:
        _show(curve, path)
    return 0


def _show(curve: CommutatorCurve, path: Path) -> None:
    print(
        f"{len(curve.steps)} snapshots, medians over {curve.pairs} pairs of batches of {curve.batch_size}\n"
        f"D = raw/(‖g_A‖‖g_B‖), C1 = raw/mean‖g‖, C0 = raw/(‖H_B g_A‖ + ‖H_A g_B‖)\n"
        f"float32 D by finite steps of {curve.step_size:g}, with the rounding error in it\nsaved as {path}"
    )
    print_table(
        {
            "step": curve.steps.tolist(),
            "D": list(curve.defect),
            "float32 D": list(curve.float32_defect),
            "rounding": list(curve.defect_floor),
            "below floor": [_verdict(share) for share in curve.below_floor],
            "C1": list(curve.curvature),
            "C0": list(curve.scale_free),
            "‖Hg‖/‖g‖": list(curve.curvature_proper),
            "√b raw": list(curve.sqrt_b_raw),
            "‖g‖": list(curve.gradient_norm),
            "signal/noise": list(curve.signal_to_noise),
            "gradient noise": list(curve.gradient_noise),
            "curvature noise": list(curve.curvature_noise),
        }
        | ({"undefined": curve.undefined} if any(curve.undefined) else {})
    )
    _show_subspaces(curve)
    _show_onsets(curve)


def _verdict(share: float) -> str | None:
    """Whether a float32 value is rounding noise, from the share of pairs in which it is."""
    if np.isnan(share):
        return None
    return "yes" if share >= 0.5 else "no"


def _show_subspaces(curve: CommutatorCurve) -> None:
    """Energy inside each subspace over k/P, beside the null's, at the median over snapshots."""
    with np.errstate(invalid="ignore"):
        ratio, null = curve.inside_fraction / curve.inside_chance, curve.inside_null / curve.inside_chance
        other = curve.other_seed_fraction / curve.inside_chance
        z = (curve.inside_fraction - curve.inside_null) / curve.inside_null_deviation
    known = [k for k in range(len(curve.bases)) if not np.isnan(ratio[:, k]).all()]
    columns = {"inside/(k/P)": ratio, "same tensors": null, "deviations from it": z, "other seed": other}
    print_table(
        {"subspace": [curve.bases[k] for k in known]}
        | {name: [_middle(values[:, k]) for k in known] for name, values in columns.items()},
        title="energy of the bracket in subspaces, over what an isotropic vector has there",
    )
    print(
        f"alignment with the next displacement: {_number(_middle(curve.alignment))}, "
        f"random signs {_number(_middle(curve.alignment_null))}, isotropic {curve.alignment_chance:.2g}"
    )


def _show_onsets(curve: CommutatorCurve) -> None:
    leads = {f"lead to {t:g}": list(curve.lead[:, k]) for k, t in enumerate(curve.thresholds)}
    columns = {"after": curve.onset_below, "by step": curve.onset_step} | leads
    print_table(
        {"onset": curve.onset_rules} | {n: [_or_none(v) for v in values] for n, values in columns.items()},
        title="onsets (the published rule on float32 D; a sustained rise of exact values)",
    )


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _middle(values: NDArray[np.float64]) -> float | None:
    return _or_none(np.nanmedian(values)) if not np.isnan(values).all() else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
