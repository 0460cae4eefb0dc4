"""`grokscope analyze llc`: local learning coefficients with their verdicts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ...runs.store import Run
from ..llc import COUNT, LLCCurve, llc_along
from ..objectives import load_objective
from ..result import save
from ..snapshots import at_most
from .bar import progress
from .output import print_json, print_table


def command(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    snapshots: int = COUNT,
    steps: tuple[int, ...] = (),
    thorough: bool = False,
    sensitivity: bool = False,
    num_beta: float | None = None,
    localization: float | None = None,
    relative_radius: float = 0.1,
    step_size: float | None = None,
    burn_in: int | None = None,
    num_draws: int | None = None,
    num_chains: int = 2,
    batch_size: int | None = None,
    method: Literal["sgld", "rmsprop"] = "sgld",
    published_noise: bool = False,
    mode: Literal["trajectory", "snapshot"] = "trajectory",
    without_scaled: bool = False,
    max_gradients: int = 1600,
    seed: int = 0,
    objective: str | None = None,
    jobs: int = 2,
    name: str | None = None,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Local learning coefficients along a run on its training data, each with a verdict and its reason.

    Columns: published λ̂ and its error; of the tilted loss, of which a snapshot is a stationary point; the
    drift between them; what the Hessian alone predicts, and the excess over it; R-hat and effective draws;
    the published λ̂ again where localization follows the norm (scaled).

    Args:
        run: folder of the run.
        snapshots: number of snapshots, spread over the run.
        steps: snapshots at these steps instead.
        thorough: no bound on gradients; repeat with up to 8 times the draws until the verdict is ok (hours).
        sensitivity: measure a grid of step sizes and localizations at the last snapshot.
        num_beta: inverse temperature nβ; by default n/log n for n training samples.
        localization: strength γ of the pull to the snapshot; by default from relative-radius.
        relative_radius: distance that localization allows, over the norm of the last snapshot; what
            max-gradients don't pay for makes it smaller.
        step_size: by default calibrated, likewise burn-in and draws.
        burn_in: steps before the first draw.
        num_draws: draws per chain.
        num_chains: half of them start at the snapshot, half from a hotter pilot.
        batch_size: samples per minibatch; by default the run's. All samples for full gradients.
        method: plain SGLD, or preconditioned by RMSprop during burn-in.
        published_noise: fresh noise at every step, as published, instead of the mean of two draws.
        mode: one set of hyperparameters for the trajectory, or one per snapshot.
        without_scaled: leave out the estimates whose localization follows the norm.
        max_gradients: minibatch gradients per estimate, unless thorough.
        seed: of chains and probes.
        objective: module:function that returns the loss of a run without configuration.
        jobs: processes.
        name: name of the result, to keep several.
        out: folder of the result; by default the run's.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    begin = time.monotonic()
    opened = Run.open(run)
    chosen = at_most(opened, snapshots, steps=steps)
    options = {
        "thorough": thorough,
        "num_beta": num_beta,
        "localization": localization,
        "relative_radius": relative_radius,
        "step_size": step_size,
        "burn_in": burn_in,
        "num_draws": num_draws,
        "num_chains": num_chains,
        "batch_size": batch_size,
        "method": method,
        "averaged_noise": not published_noise,
        "mode": mode,
        "scaled": not without_scaled,
        "max_gradients": max_gradients,
        "seed": seed,
    }
    curve = llc_along(
        opened,
        objective=None if objective is None else load_objective(objective, opened),
        snapshots=chosen,
        sensitivity=sensitivity,
        name=name,
        directory=out,
        progress=progress(quiet=quiet),
        jobs=min(jobs, len(chosen)),
        **options,
    )
    path = save(curve, opened, name=name, directory=out, options=options | {"sensitivity": sensitivity})
    if json:
        print_json(curve, without=("traces",))
    else:
        _show(curve, path, time.monotonic() - begin)
    return 0


def _show(curve: LLCCurve, path: Path, seconds: float) -> None:
    noise = "averaged noise" if curve.averaged_noise else "published noise"
    print(
        f"{len(curve.steps)} snapshots in {seconds:.0f} s; n beta = {curve.num_beta:.4g}, "
        f"{curve.num_chains} chains of {curve.num_draws} draws, batches of {curve.batch_size}, "
        f"{curve.method} with {noise}\n"
        + "\n".join(f"  {reason}" for reason in curve.calibration)
        + f"\nsaved as {path}"
    )
    scaled = {"scaled": list(curve.scaled_llc), "scaled verdict": curve.scaled_verdict}
    print_table(
        {
            "step": curve.steps.tolist(),
            "llc": list(curve.llc),
            "stderr": list(curve.stderr),
            "tilted": list(curve.tilted),
            "drift": list(curve.drift),
            "quadratic": list(curve.quadratic),
            "excess": list(curve.excess),
            "excess stderr": list(curve.excess_stderr),
            "R-hat": list(curve.rhat),
            "ESS": list(curve.ess),
            "verdict": curve.verdict,
        }
        | (scaled if len(curve.scaled_llc) else {})
    )
    for step, verdict, reason in zip(curve.steps, curve.verdict, curve.reason, strict=True):
        if reason:
            print(f"step {step}: {verdict}: {reason}")
